"""Rows that plain SQL has written, oddly: each may cost its own task, and none may stop the others."""
# ruff: noqa: S608 - every statement is put together of the tests' own texts

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner.core.clock import Clock
from taskrunner.storage.claims import Claim
from taskrunner.storage.tasks import TaskStore
from tests.integration.machine import quick, sql

RUNNING = "status = 'running', attempt = attempt + 1, lease_owner = 'ghost'"
A_ROW = (
    "INSERT INTO tasks({0}, max_retries, max_losses, run_at, created_at, updated_at)"
    " SELECT {1}, 3, 5, run_at, created_at, updated_at FROM tasks"
)
BRACKETS = "replace(hex(zeroblob(50000)), '0', '{}')"

REFUSED = {
    "claimed without a start": f"UPDATE tasks SET {RUNNING}",
    "running and waiting": f"UPDATE tasks SET {RUNNING}, started_at = created_at, hold = 3, waiting_for = 'x'",
    "a queue of bytes": "UPDATE tasks SET queue = CAST('mail' AS BLOB)",
    "a type of bytes": A_ROW.format("id, type, history_id", "'x', CAST('job' AS BLOB), 'x'"),
    "an id of bytes": A_ROW.format("id, type, history_id", "x'0102', 'job', 'x'"),
    "a history of bytes": "UPDATE tasks SET history_id = x'0102'",
}

ODD = {
    "more losses than it may have": f"UPDATE tasks SET losses = 5, {RUNNING}, started_at = created_at",
    "an attempt's row is there already": "INSERT INTO attempts(task_id, attempt, series, owner, started_at, ended_at,"
    " outcome) SELECT id, 1, 0, 'x', created_at, created_at, 'lost' FROM tasks",
    "an input that is too deep": "UPDATE tasks SET input = '{\"x\":' || "
    + " || ".join(map(BRACKETS.format, "[]"))
    + " || '}'",
    "a time without a zone": "UPDATE tasks SET hold = 1, run_at = '2037-01-01T00:00:00.0000000'",
    "an old time without a zone": "UPDATE tasks SET hold = 1, run_at = '2017-01-01T00:00:00.0000000'",
    "no number of retries": "UPDATE tasks SET max_retries = 'many'",
}


@pytest.mark.parametrize("odd", REFUSED)
async def test_what_no_supervisor_could_move_is_refused(db: Path, odd: str) -> None:
    """A row by which every claim would fail, or that none would find again, cannot be written."""
    runner = quick(db)

    @runner.task
    async def job() -> None:
        return None

    async with runner:
        await job.enqueue()
        with pytest.raises(AssertionError, match="CHECK constraint failed"):
            sql(db, REFUSED[odd])


@pytest.mark.parametrize("odd", ODD)
async def test_the_others_go_on(db: Path, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an odd row, at a supervisor of one slot, the others are run, and nothing spins."""
    runner = quick(db)
    claims: list[str] = []
    claim = TaskStore.claim

    async def counted(store: TaskStore, owner: str, *args: Any, **kwargs: Any) -> Claim:  # noqa: ANN401 - the claim's
        claims.append(owner)
        return await claim(store, owner, *args, **kwargs)

    @runner.task
    async def job(x: int = 0) -> int:
        return x

    monkeypatch.setattr(TaskStore, "claim", counted)
    async with runner:
        await job.enqueue(0)
        sql(db, ODD[odd])
        good = [await job.enqueue(number) for number in (1, 2)]
        async with runner.working(concurrency=1):
            assert [await handle.result(timeout=5) for handle in good] == [1, 2]
            before = len(claims)
            await anyio.sleep(0.5)
            assert len(claims) - before < 30


@pytest.mark.parametrize("change", ["beat_at = 'soon'", "host = CAST(x'ff' AS TEXT)"])
async def test_an_odd_row_of_a_supervisor_hides_no_dead_one(db: Path, change: str) -> None:
    """Beside a supervisor's row that nobody can read, another one is found dead, and its task is run again."""
    runner = quick(db)
    columns = "id, boot_id, pid, pid_namespace, start_time, host, lock_name, version, expires_at, started_at, beat_at"

    @runner.task
    async def job() -> int:
        return 1

    async with runner:
        handle = await job.enqueue()
        for name in ("odd", "dead"):
            sql(
                db,
                f"INSERT INTO supervisors({columns})"
                " SELECT ?, ?, 1, 'c', 1, 'h', 'a.lock', '0', 1, run_at, run_at FROM tasks",
                name,
                Clock().boot_id(),
            )
        sql(db, f"UPDATE supervisors SET {change} WHERE id = 'odd'")
        sql(db, f"UPDATE tasks SET {RUNNING.replace('ghost', 'dead')}, started_at = created_at")
        async with runner.working():
            assert await handle.result(timeout=5) == 1


async def test_a_supervisor_of_odd_numbers_is_refused(db: Path) -> None:
    """What a judgement needs must be of the right kind."""
    runner = quick(db)
    async with runner.working():
        for change in ("expires_at = 'soon'", "pid = 'x'", "lock_name = x'00'", "bell = x'00'", "bell = '../agent.db'"):
            with pytest.raises(AssertionError, match="CHECK constraint failed"):
                sql(db, f"UPDATE supervisors SET {change}")
