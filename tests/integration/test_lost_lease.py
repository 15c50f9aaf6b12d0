"""A supervisor whose lease was taken from it: it lets go of everything, and goes on as another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import Retry, TaskContext
from taskrunner.core.model import Step
from taskrunner.storage.journal import Journal
from tests.integration.machine import Heard, quick, sql, until
from tests.integration.rival import Rival

BURY = "UPDATE supervisors SET ended_at = '2026-01-01T00:00:00.000000Z', ended_how = 'a test' WHERE ended_at IS NULL"


def attempts(db: Path) -> list[Any]:
    """How each ended attempt ended."""
    return sql(db, "SELECT attempt, outcome FROM attempts ORDER BY seq")


async def test_it_claims_nothing_in_the_name_of_the_dead(db: Path) -> None:
    """Taken for dead while it was suspended, a supervisor first registers anew: it charges no task with a loss."""
    runner = quick(db, lease=60, heartbeat=20)
    heard = Heard(runner)

    @runner.task
    async def job() -> int:
        return 1

    async with runner.working():
        await until(lambda: heard.of("supervisor.started"))
        sql(db, BURY)
        handles = [await job.enqueue() for _ in range(3)]
        assert [await handle.result(timeout=5) for handle in handles] == [1, 1, 1]
    assert attempts(db) == [[1, "completed"]] * 3
    assert heard.names().count("lease.lost") == 1
    assert len(heard.of("supervisor.started")) == 2


async def test_a_body_is_not_entered_when_its_task_was_taken_meanwhile(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was claimed, and is lost while its recorded steps are read, is not begun."""
    runner = quick(db)
    heard = Heard(runner)
    entered: list[int] = []

    @runner.task
    async def job(ctx: TaskContext) -> None:
        entered.append(ctx.attempt)
        if ctx.attempt == 1:
            raise Retry(after=0)

    read = Journal.steps

    async def slowly(journal: Journal, history_id: str) -> list[Step]:
        if not heard.of("lease.lost"):
            await anyio.to_thread.run_sync(sql, db, BURY)
            await until(lambda: heard.of("lease.lost"))
        return await read(journal, history_id)

    monkeypatch.setattr(Journal, "steps", slowly)
    async with runner.working():
        await (await job.enqueue()).result(timeout=10)
    assert entered == [1, 3]
    assert attempts(db) == [[1, "retried"], [2, "lost"], [3, "completed"]]
    assert len(heard.of("task.fenced")) == 1


async def test_it_registers_again_although_the_store_is_locked(db: Path) -> None:
    """Another program holds the write lock for longer than it waits for it: it says so, and tries until it may."""
    runner = quick(db, lease=2, heartbeat=0.5, busy_timeout=0.2)
    heard = Heard(runner)
    rival = Rival(db)
    runner.on("lease.lost", lambda _fields: rival.hold(1.0))

    @runner.task
    async def job() -> int:
        return 1

    async with runner.working():
        await until(lambda: heard.of("supervisor.started"))
        sql(db, BURY)
        await until(lambda: len(heard.of("supervisor.started")) == 2)
        await rival.gone()
        assert await (await job.enqueue()).result(timeout=5) == 1
    assert heard.of("store.trouble")


async def test_it_stops_when_it_is_told_to_while_it_cannot_register(db: Path) -> None:
    """Told to stop while it waits for a locked store to register again, it stops, and raises nothing."""
    runner = quick(db, lease=2, heartbeat=0.5, busy_timeout=0.2)
    heard = Heard(runner)
    rival = Rival(db)
    runner.on("lease.lost", lambda _fields: rival.hold(2.0))
    with anyio.fail_after(5):
        async with runner.working():
            await until(lambda: heard.of("supervisor.started"))
            sql(db, BURY)
            await until(lambda: heard.of("store.trouble"))
    await rival.gone()
    assert len(heard.of("supervisor.started")) == 1
