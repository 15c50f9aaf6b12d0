"""Another program holds the store's write lock for long: no task is charged for it, and nobody has to clean up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from taskrunner import StoreBusy, TaskContext
from tests.integration.machine import Heard, quick, until
from tests.integration.rival import Rival


async def test_a_step_waits_for_its_record(db: Path) -> None:
    """A step whose record cannot be written is not run again: its result waits, and no retry is charged."""
    runner = quick(db, busy_timeout=0.2)
    rival = Rival(db)
    runs: list[str] = []

    def work(name: str) -> str:
        runs.append(name)
        if name == "first":
            rival.hold(1.2)
        return name

    @runner.task(max_retries=0)
    async def job(ctx: TaskContext) -> list[str]:
        await ctx.progress(0.5, "half-way")
        return [await ctx.step(name, work, name) for name in ("first", "second")]

    async with runner.working():
        handle = await job.enqueue()
        assert await handle.result(timeout=10) == ["first", "second"]
    await rival.gone()
    assert runs == ["first", "second"]


async def test_an_enqueue_says_that_nothing_was_written(db: Path) -> None:
    """A client is told in time that its task is not stored, and may send it again."""
    runner = quick(db, busy_timeout=0.2)
    rival = Rival(db)

    @runner.task
    async def job() -> int:
        return 1

    async with runner:
        rival.hold(1.0)
        with pytest.raises(StoreBusy, match="nothing was written"):
            await job.enqueue()
        await rival.gone()
        assert await runner.tasks.list() == []
        await job.enqueue()
        assert await runner.drain() == 1


async def test_a_locked_store_does_not_flood_the_log(db: Path) -> None:
    """V7: while nothing can be written, this is said once in a while, however many have met it."""
    runner = quick(db, busy_timeout=0.1, lease=1, heartbeat=0.1)
    heard = Heard(runner, "store.trouble")
    rival = Rival(db)

    @runner.task
    async def job(ctx: TaskContext, name: str) -> None:
        await ctx.progress(0.5)
        await ctx.step("hold", lambda: rival.hold(3.0) if name == "0" else time.sleep(0.5))

    async with runner.working():
        handles = [await job.enqueue(name) for name in "0123"]
        await until(lambda: rival.holds)
        await rival.gone()
        count = len(heard.events)
        for handle in handles:
            await handle.result(timeout=10)
    assert count == 1
