"""A body that blocks the event loop: its supervisor keeps its lease, says who it is, and bounds it by its timeout."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskContext
from tests.integration.machine import EffectLog, Heard, program, quick, sql, until


def block(seconds: float) -> None:
    """Compute: no await, no sleep of the system."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


IDLE = """
runner = TaskRunner(db, lease=1, heartbeat=0.2, sweep=0.1)

@runner.task(name="blocking")
async def blocking():
    effect("second start")

@runner.task(name="beside")
async def beside(number: int):
    effect("second start")

async def main():
    async with runner.working():
        print("ready")
        await anyio.to_thread.run_sync(sys.stdin.readline)

anyio.run(main)
"""


@pytest.mark.parametrize("how", [time.sleep, block])
async def test_nothing_is_run_twice(db: Path, tmp_path: Path, how: object) -> None:
    """B17: three times the lease without a turn of the loop: no second start, and one warning that names the task.

    Another supervisor idles on the same file meanwhile. The other tasks of the blocked one are late, not run again.
    """
    runner = quick(db, lease=1, heartbeat=0.2)
    heard = Heard(runner)
    starts: list[str] = []

    @runner.task(queue="mine")
    async def blocking() -> str:
        starts.append("blocking")
        await anyio.sleep(0.2)
        how(3)  # type: ignore[operator]
        return "done"

    @runner.task(queue="mine")
    async def beside(number: int) -> int:
        starts.append(f"beside {number}")
        await anyio.sleep(0.4)
        return number

    log = EffectLog(tmp_path / "effects")
    with program(db, log, IDLE) as other:
        async with runner.working(queues=["mine"]):
            handles = [await beside.enqueue(number) for number in range(2)]
            guilty = await blocking.enqueue()
            await until(lambda: len(starts) == 3)
            assert await anyio.to_thread.run_sync(other.hear) == "ready"
            assert await guilty.result(timeout=10) == "done"
            assert [await handle.result(timeout=10) for handle in handles] == [0, 1]
            attempts = [(await handle.task()).attempt for handle in [guilty, *handles]]
        assert other.process.stdin
        other.process.stdin.write("\n")
        assert other.wait()[0] == 0
    assert sorted(starts) == ["beside 0", "beside 1", "blocking"]
    assert log.lines() == []
    assert attempts == [1, 1, 1]
    (warning,) = heard.of("loop.blocked")
    assert (warning["task_id"], warning["task_type"]) == (guilty.id, "blocking")
    assert __file__ in str(warning["place"])
    assert heard.of("lease.lost") == []
    assert sql(db, "SELECT sum(losses) FROM tasks") == [[0]]


async def test_a_blocked_body_is_ended_from_outside_the_loop(db: Path, tmp_path: Path) -> None:
    """After timeout and grace its row is another's to run, while its loop is still blocked; its result is refused."""
    code = """
runner = TaskRunner(db, lease=2, heartbeat=0.3, sweep=0.1, grace=0.2)

@runner.task(timeout=0.3, wait=0.01)
async def blocking(ctx: TaskContext) -> str:
    effect("start", ctx.attempt)
    await anyio.sleep(0)
    time.sleep(3)
    effect("late", ctx.attempt)
    try:
        await ctx.step("late", effect, "late step")
    except Exception:
        effect("exception")
    return "late"

runner.on("task.retried", lambda event: effect("retried"))
anyio.run(runner.run)
"""
    runner = quick(db)

    @runner.task(timeout=5)
    async def blocking(ctx: TaskContext) -> int:
        return ctx.attempt

    log = EffectLog(tmp_path / "effects")
    with program(db, log, code) as blocked:
        async with runner:
            handle = await runner.enqueue("blocking", timeout=0.3)
            await anyio.to_thread.run_sync(log.wait_for, 1)
            began = time.monotonic()
            async with runner.working():
                assert await handle.result(timeout=2) == 2
            assert time.monotonic() - began < 2
        assert log.lines() == ["start 1"]
        await anyio.to_thread.run_sync(log.wait_for, 2)
        blocked.kill(15)
        assert blocked.wait()[0] == 0
    assert set(log.lines()) == {"start 1", "late 1", "retried"}
    async with runner:
        info = await runner.handle(handle.id).info()
    assert [(one.outcome, one.error_type) for one in info.attempts] == [
        ("retried", "TimeoutError"),
        ("completed", None),
    ]
    assert info.steps == []


async def test_a_warning_comes_once_for_each_time(db: Path) -> None:
    """One line for as long as it is blocked; a second one when it blocks again."""
    runner = quick(db)
    heard = Heard(runner, "loop.blocked")

    @runner.task
    async def blocking() -> None:
        for _ in range(2):
            time.sleep(2)
            await asyncio.sleep(0.6)

    async with runner.working():
        await (await blocking.enqueue()).result(timeout=10)
    assert len(heard.events) == 2


async def test_a_loop_that_is_not_blocked_is_not_blamed(db: Path) -> None:
    """Plain bodies and steps in threads may take as long as they like."""
    runner = quick(db)
    heard = Heard(runner, "loop.blocked")

    @runner.task
    def plain(ctx: TaskContext) -> None:
        time.sleep(1.5)

    @runner.task
    async def step(ctx: TaskContext) -> None:
        await ctx.step("slow", time.sleep, 1.5)

    async with runner.working():
        for handle in [await plain.enqueue(), await step.enqueue()]:
            await handle.result(timeout=10)
    assert heard.events == []
