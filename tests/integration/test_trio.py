"""Under trio: a program whose event loop is trio's enqueues, works and cancels as under asyncio."""

from __future__ import annotations

from pathlib import Path

import anyio
import trio

from taskrunner import TaskContext, TaskRunner
from tests.integration.machine import Heard, quick, until


def run(runner: TaskRunner, main: object) -> None:
    """Run a program under trio."""
    anyio.run(main, backend="trio")  # type: ignore[arg-type]


def test_open_enqueue_step_and_cancel(db: Path) -> None:
    """A client and a supervisor in one trio program: results, steps by name, retries, plain code, and a cancel."""
    runner = quick(db)
    heard = Heard(runner)
    begun = []

    @runner.task(max_retries=1, wait="10ms")
    async def adds(ctx: TaskContext, number: int) -> int:
        first = await ctx.step("first", int, number)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0.01)
        if ctx.attempt == 1:
            message = "again"
            raise ValueError(message)
        return first + await ctx.step("second", int, 1)

    @runner.task
    def plain(ctx: TaskContext, number: int) -> int:
        return ctx.sync(ctx.step("double", int, 2 * number))

    @runner.task
    async def endless() -> None:
        begun.append(1)
        await trio.sleep_forever()

    async def main() -> None:
        async with runner.working():
            assert await (await adds.enqueue(1)).result(timeout=5) == 2
            assert await (await plain.enqueue(4)).result(timeout=5) == 8
            handle = await endless.enqueue()
            await until(lambda: begun)
            assert await handle.cancel() == "cancelling"
            await until(lambda: heard.of("task.cancelled"))
            assert await handle.status() == "cancelled"
            left = await endless.enqueue()
            await until(lambda: len(begun) == 2)
        async with runner:
            assert await left.status() == "pending"

    run(runner, main)
    assert heard.names().count("task.released") == 1
    assert [task.status for task in runner.sync(runner.tasks.list(limit=2))] == ["pending", "cancelled"]  # by asyncio


def test_a_client_from_plain_code_beside_trio(db: Path) -> None:
    """A cancelled wait for a result leaves the task as it is."""
    runner = quick(db)

    @runner.task
    async def one() -> int:
        return 1

    async def main() -> None:
        async with runner:
            handle = await one.enqueue()
            with trio.move_on_after(0.1) as scope:
                await handle.result()
            assert scope.cancelled_caught
            assert await handle.status() == "pending"
            assert await runner.drain() == 1
            assert await handle.result() == 1

    run(runner, main)
