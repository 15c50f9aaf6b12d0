"""`keep_finished`: supervisors remove what was kept for long enough, beside their work."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from taskrunner import InvalidInput, TaskContext, TaskNotFound, TaskRunner
from taskrunner.core.clock import Clock
from tests.integration.machine import Heard, quick, sql, until
from tests.rivals import INSERTS, started
from tests.stores import bare, pruner_of

OLD = "2026-01-01T00:00:00.000000Z"

MAKE_OLD = """
WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < :count)
INSERT INTO tasks(id, history_id, type, max_retries, max_losses, created_at, updated_at, run_at)
SELECT 'old' || n, 'old' || n, 'old', 3, 5, :old, :old, :old FROM n;
UPDATE tasks SET status = 'running', lease_owner = 'x', attempt = 1, started_at = :old;
INSERT INTO steps(history_id, scope, name, occurrence, position, digest, value, task_id, attempt, created_at)
SELECT id, '', 'step', column1, column1, '', '1', id, 1, :old FROM tasks, (VALUES (0), (1), (2));
UPDATE tasks SET status = 'completed', outcome = 'completed', output = '1', progress = 1, lease_owner = NULL,
  completed_at = :old;
"""

WATCHES = """
import datetime, sqlite3, sys, threading
connection = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
print("ready", flush=True)
longest = 0
while not ended.wait(0.02):
    for (beat_at,) in connection.execute("SELECT beat_at FROM supervisors WHERE ended_at IS NULL"):
        passed = datetime.datetime.now(datetime.timezone.utc) - datetime.datetime.fromisoformat(beat_at)
        longest = max(longest, passed.total_seconds())
print(longest, flush=True)
"""


async def test_a_supervisor_removes_what_was_kept_for_long_enough(db: Path) -> None:
    """A second after its end a task is gone, and who asks for it is told so; one that waits is not touched."""
    runner = quick(db, keep_finished="1s")  # it looks every 0.1 s

    @runner.task
    async def job(ctx: TaskContext) -> int:
        return await ctx.step("one", int, 1)

    async with runner.working():
        waiting = await job.options(delay="1h").enqueue()
        handle = await job.enqueue()
        assert await handle.result(timeout=5) == 1
        await until(lambda: sql(db, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM steps)") == [[1, 0]])
        with pytest.raises(TaskNotFound):
            await handle.task()
        assert await waiting.status() == "pending"


async def test_for_ever_is_the_default(db: Path) -> None:
    """Nobody's tasks are removed unless somebody has asked for it."""
    runner = quick(db)
    bare_file = bare(db)
    bare_file.execute(MAKE_OLD, {"count": 10, "old": OLD}).fetchall()
    bare_file.close()
    async with runner.working():
        await anyio.sleep(0.5)
        assert len(await runner.tasks.list()) == 10
    with pytest.raises(InvalidInput, match=r"keep_finished=0\.5: it must be at least 1 s"):
        async with TaskRunner(db, keep_finished=0.5):
            pass


async def test_who_works_until_idle_looks_too(db: Path) -> None:
    """A supervisor that is started every hour and ends when nothing is due keeps the store small all the same."""
    connection = bare(db)
    connection.execute(MAKE_OLD, {"count": 2_000, "old": OLD}).fetchall()
    connection.close()
    assert await quick(db, keep_finished="1m").drain() == 0
    assert sql(db, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM steps)") == [[0, 0]]


@pytest.mark.timeout(60)
async def test_nobody_waits_while_a_large_store_is_pruned(db: Path) -> None:
    """20,000 old tasks go beside four busy slots: no lease is lost, and who waits a second at most gets in (B47).

    The heart beats all the while: seen from another process no beat is late by more than its interval.
    """
    connection = bare(db)
    connection.execute(MAKE_OLD, {"count": 20_000, "old": OLD}).fetchall()
    connection.close()
    runner = quick(db)
    heard = Heard(runner)
    old = "SELECT (SELECT count(*) FROM tasks WHERE type = 'old'), (SELECT count(*) FROM steps WHERE name = 'step')"

    @runner.task
    async def job(ctx: TaskContext) -> None:
        for number in range(5):
            await ctx.progress(number / 5)
            await ctx.step("part", anyio.sleep, 0.002)

    async def work() -> None:
        while True:
            await (await job.enqueue()).result(timeout=10)

    async with runner, anyio.create_task_group() as group:
        pruner = pruner_of(runner.store, Clock(), 60.0)
        async with runner.working(concurrency=4, queues=["default"]):
            for _ in range(4):
                group.start_soon(work)
            with started(INSERTS, db, "1") as impatient, started(WATCHES, db) as watches:
                await pruner.prune()
                told, _ = impatient.communicate("\n")
                longest, _ = watches.communicate("\n")
            group.cancel_scope.cancel()
    assert int(told) > 100
    assert 0 < float(longest) < 2 * runner.settings.heartbeat
    assert sql(db, old) == [[0, 0]]
    assert sql(db, "SELECT count(*) FROM attempts") == sql(db, "SELECT sum(attempt) FROM tasks")
    assert heard.of("lease.lost") == heard.of("store.trouble") == []
    assert sql(db, "SELECT sum(losses) FROM tasks WHERE type <> 'x'") == [[0]]
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
    assert sql(db, "PRAGMA foreign_key_check") == []
