"""Whose turn it is: no queue is left out, and nothing that is due is overlooked."""

from __future__ import annotations

from pathlib import Path

import anyio

from taskrunner import TaskContext
from tests.integration.machine import quick, until


async def test_no_queue_starves_beside_many(db: Path) -> None:
    """More queues are full than are asked without a look: each has its turn."""
    runner = quick(db)
    order: list[str] = []

    @runner.task
    async def job(ctx: TaskContext) -> None:
        order.append(ctx.task.queue)

    async with runner:
        queues = [f"q{number:02}" for number in range(30)]
        await runner.enqueue_many([job.options(queue=queue).bind() for queue in queues for _ in range(10)])
        await job.options(queue="z").enqueue()
        async with runner.working(concurrency=1):
            await until(lambda: len(order) == 301, within=15)
    assert order.index("z") < 100
    assert set(order[:100]) == {*queues, "z"}


async def test_no_queue_starves_that_was_named_last(db: Path) -> None:
    """A supervisor that takes from two queues takes from both, also when the first is full."""
    runner = quick(db)
    order: list[str] = []

    @runner.task
    async def job(ctx: TaskContext) -> None:
        order.append(ctx.task.queue)

    async with runner:
        await runner.enqueue_many([job.options(queue=queue).bind() for queue in "aab" for _ in range(20)])
        async with runner.working(concurrency=1, queues=["a", "b"]):
            await until(lambda: len(order) == 60)
    assert order.index("b") < 3


async def test_a_drain_of_one_queue_sees_past_what_is_due_in_others(db: Path) -> None:
    """A thousand delayed tasks of another queue are due before this one's: they do not hide it."""
    runner = quick(db)

    @runner.task
    async def job() -> None:
        return None

    async with runner:
        await runner.enqueue_many([job.options(queue="b", delay=0.01).bind() for _ in range(1_500)])
        handle = await job.options(queue="a", delay=0.05).enqueue()
        await anyio.sleep(0.1)
        assert await runner.drain(queues=["a"]) == 1
        assert await handle.status() == "completed"
