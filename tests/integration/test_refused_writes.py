"""Writes that the database refuses for reasons of its own: no task is left running in nobody's hands."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from taskrunner import StoreError, TaskContext
from tests.integration.machine import Heard, quick, sql


async def test_a_progress_that_is_refused_costs_no_task(db: Path) -> None:
    """Only who has lost the task has lost it: the body goes on, and its result counts."""
    runner = quick(db)
    heard = Heard(runner)

    @runner.task(max_retries=0)
    async def one(ctx: TaskContext) -> str:
        await ctx.progress(0.5, "half")
        await anyio.sleep(0.6)
        return "done"

    async with runner:
        handle = await one.enqueue()
    refuse = "CREATE TRIGGER other BEFORE UPDATE OF progress ON tasks WHEN NEW.progress = 0.5 BEGIN SELECT {}; END"
    sql(db, refuse.format("RAISE(ABORT, 'not half')"))
    async with runner.working():
        assert await handle.result(timeout=5) == "done"
    assert "not half" in str(heard.of("store.trouble")[0])


async def test_an_end_that_is_refused_ends_the_supervisor(db: Path) -> None:
    """It cannot go on as if the task had ended: it says why, and leaves the task to the next one."""
    runner = quick(db, grace=0.1)

    @runner.task(timeout=0.1, max_retries=0)
    async def stubborn() -> None:
        for _ in range(10):
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.1)

    async with runner:
        await stubborn.enqueue()
    refuse = "CREATE TRIGGER other BEFORE UPDATE OF status ON tasks WHEN NEW.status = 'failed' BEGIN SELECT {}; END"
    sql(db, refuse.format("RAISE(ABORT, 'nothing fails here')"))
    with pytest.raises(StoreError, match="nothing fails here"), anyio.fail_after(5):
        await runner.run()
    await anyio.sleep(1)
    ((alive,),) = sql(db, "SELECT count(*) FROM leases JOIN supervisors ON id = owner WHERE ended_at IS NULL")
    assert alive == 0
