"""Unknown types, inputs that do not fit, rows that nobody can read: each harms only itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import Retry, TaskContext, TaskFailed
from tests.integration.machine import EffectLog, Heard, program, quick, sql, until


async def test_unknown_types_stand_in_nobodys_way(db: Path) -> None:
    """B05: five tasks of an unknown name before twenty known ones: the twenty run, the five wait and cost nothing."""
    runner = quick(db)
    heard = Heard(runner)

    @runner.task
    async def known(number: int) -> int:
        return number

    async with runner, runner.working(concurrency=2):
        strangers = [await runner.enqueue("stranger", {"number": number}, priority=0) for number in range(5)]
        handles = [await known.enqueue(number) for number in range(20)]
        assert [await handle.result(timeout=5) for handle in handles] == list(range(20))
        await until(lambda: len(heard.of("task.unknown")) >= 5)
        await anyio.sleep(0.3)
        for handle in strangers:
            info = await handle.info()
            task = info.task
            assert (task.status, task.waiting_for, task.retry_count, task.losses) == (
                "pending",
                "worker:stranger",
                0,
                0,
            )
            assert [attempt.outcome for attempt in info.attempts] == ["released"]
    assert len(heard.of("task.unknown")) == 5


async def test_who_knows_the_type_takes_them(db: Path) -> None:
    """B05: a supervisor with the function, started while the other one still runs, completes them without ado."""
    old, new = quick(db), quick(db)

    @new.task
    async def later(number: int) -> int:
        return number

    async with old.working():
        handles = [await old.enqueue("later", {"number": number}, max_retries=0) for number in range(5)]
        await until(lambda: sql(db, "SELECT count(*) FROM tasks WHERE waiting_for = 'worker:later'") == [[5]])
        async with new.working():
            assert [await new.handle(handle.id).result(timeout=5) for handle in handles] == list(range(5))
            fresh = [await new.enqueue("later", {"number": number}) for number in range(5, 15)]
            assert [await handle.result(timeout=5) for handle in fresh] == list(range(5, 15))


PUT_BACK = """
INSERT INTO tasks(id, type, hold, waiting_for, run_at, max_retries, max_losses, history_id, created_at, updated_at)
SELECT 'put-back', 'later', 3, 'worker:later', created_at, 3, 5, 'put-back', created_at, created_at FROM tasks LIMIT 1
"""


async def test_a_busy_supervisor_takes_them_too(db: Path) -> None:
    """A rolling deploy under load: what the old one puts back is run by the new one although that is never idle."""
    old, new = quick(db), quick(db)

    @new.task(name="load")
    async def load() -> None:
        await anyio.sleep(0.01)

    old.task(name="load")(load.fn)

    @new.task
    async def later() -> str:
        return "ran"

    async def keep_busy(scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                await new.enqueue("load")
                await anyio.sleep(0.02)

    async with new.working(), anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(keep_busy, scope)
        await anyio.sleep(0.2)
        sql(db, PUT_BACK)
        began = time.monotonic()
        assert await new.handle("put-back").result(timeout=3) == "ran"
        assert time.monotonic() - began < 1.5
        scope.cancel()


async def test_a_backlog_does_not_stand_before_them(db: Path) -> None:
    """They had their turn already: a full queue and a single slot do not keep them waiting to its end."""
    runner = quick(db)
    ran: list[str] = []

    @runner.task
    async def load() -> None:
        ran.append("load")
        await anyio.sleep(0.01)

    @runner.task
    async def later() -> None:
        ran.append("later")

    async with runner:
        await runner.enqueue_many([load.bind() for _ in range(200)])
        async with runner.working(concurrency=1):
            await until(lambda: ran)
            sql(db, PUT_BACK)
            await until(lambda: "later" in ran)
    assert len(ran) < 100


async def test_they_are_taken_from_the_right_queues(db: Path) -> None:
    """A supervisor of some queues leaves what was put back in the others."""
    old, new = quick(db), quick(db)

    @new.task
    async def later() -> str:
        return "ran"

    async with old.working():
        here, there = [await old.enqueue("later", queue=queue) for queue in ("here", "there")]
        await until(lambda: sql(db, "SELECT count(*) FROM tasks WHERE waiting_for = 'worker:later'") == [[2]])
    async with new.working(queues=["here"]):
        assert await new.handle(here.id).result(timeout=5) == "ran"
        await anyio.sleep(0.3)
        assert (await new.handle(there.id).task()).waiting_for == "worker:later"


async def test_one_that_waits_can_be_cancelled(db: Path) -> None:
    """It is pending like others."""
    runner = quick(db)
    async with runner.working():
        handle = await runner.enqueue("stranger")
        await until(lambda: sql(db, "SELECT waiting_for FROM tasks") == [["worker:stranger"]])
        assert await handle.cancel() == "cancelled"
        task = await handle.task()
        assert (task.status, task.waiting_for) == ("cancelled", None)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"number": "seven"}, "number"),
        ({}, "number"),
        ({"number": 1, "more": 2}, "more"),
        ({"number": None}, "number"),
        ({"number": 1.5}, "number"),
    ],
)
async def test_an_input_that_does_not_fit_fails_once(db: Path, given: dict[str, Any], word: str) -> None:
    """By name nothing is checked at the door: the body never runs, no retry is burned, the error names the place."""
    runner = quick(db)
    ran: list[int] = []

    @runner.task
    async def typed(ctx: TaskContext, number: int) -> None:
        ran.append(number)

    async with runner.working():
        handle = await runner.enqueue("typed", given)
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=5)
        task = await handle.task()
    assert failed.value.error_type == "taskrunner.InvalidInput"
    assert word in failed.value.details
    assert (task.attempt, task.retry_count, ran) == (1, 0, [])


BROKEN = [
    ("input", "UPDATE tasks SET input = '{broken' WHERE id = ?"),
    ("a list for input", "UPDATE tasks SET input = '[1]' WHERE id = ?"),
    ("input of another type", "UPDATE tasks SET input = 7 WHERE id = ?"),
    ("blob for input", "UPDATE tasks SET input = x'ff00' WHERE id = ?"),
    ("updated_at", "UPDATE tasks SET updated_at = 'yesterday' WHERE id = ?"),
    ("run_at in words", "UPDATE tasks SET run_at = 'the day before yesterday!!!' WHERE id = ?"),
    ("delayed to nowhere", "UPDATE tasks SET hold = 1, run_at = '!!!!!!!!!!!!!!!!!!!!!!!!!!!' WHERE id = ?"),
    ("delayed for ever", "UPDATE tasks SET hold = 1, run_at = 'zzzzzzzzzzzzzzzzzzzzzzzzzzz' WHERE id = ?"),
    ("progress_message", "UPDATE tasks SET progress_message = x'00' WHERE id = ?"),
    ("timeout", "UPDATE tasks SET timeout = 'soon' WHERE id = ?"),
]


@pytest.mark.parametrize(("what", "statement"), BROKEN, ids=[what for what, _ in BROKEN])
async def test_a_row_that_cannot_be_read_harms_only_itself(db: Path, what: str, statement: str) -> None:
    """G9: another program wrote nonsense into one row: it fails alone or runs; the tasks beside it are done."""
    runner = quick(db)

    @runner.task
    async def known(number: int) -> int:
        return number

    async with runner:
        before = await known.enqueue(1)
        victim = await known.options(priority=0).enqueue(2)
        after = await known.enqueue(3)
        sql(db, statement, victim.id)
        async with runner.working():
            assert [await before.result(timeout=5), await after.result(timeout=5)] == [1, 3]
            late = await known.options(delay=0.2).enqueue(4)
            assert await late.result(timeout=5) == 4
            if what != "delayed for ever":
                await until(lambda: sql(db, "SELECT status FROM tasks WHERE priority = 0") != [["pending"]])
                await until(lambda: sql(db, "SELECT status FROM tasks WHERE priority = 0") != [["running"]])
                ((status, attempt, message),) = sql(
                    db, "SELECT status, attempt, error_message FROM tasks WHERE priority = 0"
                )
                assert attempt == 1
                assert status == "completed" or (status == "failed" and message), (status, message)


@pytest.mark.parametrize("table", ["steps", "sessions"])
async def test_broken_rows_beside_a_task_fail_it_alone(db: Path, table: str) -> None:
    """A step or a session that cannot be read: the task that needs it fails, with a sentence; the others go on."""
    runner = quick(db)

    @runner.task
    async def known(ctx: TaskContext, number: int) -> int:
        if table == "steps" and number == 1 and ctx.attempt == 1:  # steps are read from the second attempt on
            raise Retry(after=0)
        return number

    async with runner:
        session = await runner.sessions.create()
        victim = await known.options(session_id=session.id).enqueue(1)
    if table == "steps":
        sql(
            db,
            "INSERT INTO steps(history_id, scope, name, occurrence, position, turn, digest, value, task_id, attempt,"
            " created_at) SELECT id, '', 'a', 0, 0, 0, '', '1', id, 1, 'long ago' FROM tasks",
        )
    else:
        sql(db, "UPDATE sessions SET created_at = 'long ago'")
    async with runner.working():
        other = await known.enqueue(2)
        assert await other.result(timeout=5) == 2
        with pytest.raises(TaskFailed):
            await victim.result(timeout=5)


CLAIMANT = """
@runner.task
async def known(number: int) -> int:
    effect("ran", number)
    return number

anyio.run(runner.run)
"""


async def test_a_supervisor_survives_a_file_full_of_nonsense(db: Path, tmp_path: Path) -> None:
    """A real process, every kind of broken row at once: it runs the good ones and stops with exit code 0."""
    log = EffectLog(tmp_path / "effects")
    client = quick(db)
    async with client:
        for _what, statement in BROKEN:
            victim = await client.enqueue("known", {"number": 0}, priority=0)
            sql(db, statement, victim.id)
        good = [await client.enqueue("known", {"number": number}) for number in range(1, 6)]
        with program(db, log, CLAIMANT) as supervisor:
            assert [await handle.result(timeout=8) for handle in good] == [1, 2, 3, 4, 5]
            supervisor.kill(15)
            code, error = supervisor.wait()
            assert (code, error) == (0, "")
    assert sql(db, "SELECT count(*) FROM tasks WHERE status = 'running'") == [[0]]
