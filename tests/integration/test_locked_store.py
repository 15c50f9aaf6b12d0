"""Another program holds the store's write lock for long: no task is charged for it, and nobody has to clean up."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from taskrunner import StoreBusy, TaskContext
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import Identity
from tests.integration.machine import Heard, quick, sql, until
from tests.integration.rival import Rival
from tests.stores import register

NO_PID = 2**22 + 1
"""More than any process can have for its number."""


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


async def test_what_the_dead_have_left_is_cleared_up_later(db: Path) -> None:
    """The store is locked just when a new supervisor looks for the children of a dead one: it works, and comes back."""
    runner = quick(db, busy_timeout=0.2)
    heard = Heard(runner)
    rival = Rival(db)

    @runner.task
    async def job() -> int:
        return 1

    def started(_event: object) -> None:
        if not rival.holds:
            rival.hold(0.6)

    async with runner:
        handle = await job.enqueue()
        await register(runner.store, "dead")
        await runner.store.owners.record_children("dead", [(NO_PID, 1)])
        here = Identity.of_this_process(Clock()).pid_namespace
        sql(db, "UPDATE supervisors SET pid = ?, start_time = 1, pid_namespace = ?", NO_PID, here)
        await runner.store.owners.bury([("dead", "it fell")], boot_id="", me="", monotonic=0.0)
        runner.on("supervisor.started", started)
        async with runner.working():
            assert await handle.result(timeout=10) == 1
            await until(lambda: sql(db, "SELECT children FROM supervisors WHERE id = 'dead'") == [["[]"]])
        await rival.gone()
    assert len(heard.of("store.trouble")) == 1


async def test_a_newcomer_robs_nobody_whom_a_lock_kept_from_beating(db: Path) -> None:
    """Another program holds the lock for longer than a lease; who starts then first gives the others time to beat."""
    busy = quick(db, busy_timeout=0.001, lease=2, heartbeat=0.5)
    newcomer = quick(db, busy_timeout=0.9, lease=2, heartbeat=0.5)
    heard, buried = Heard(busy, "lease.lost"), Heard(newcomer, "supervisor.buried")
    rival = Rival(db)

    async with busy.working():
        rival.hold(2.8)
        await anyio.sleep(2.4)
        async with newcomer.working():
            await anyio.sleep(1.0)
        await rival.gone()
    assert not buried.events
    assert not heard.events
