"""Slots and queues: never more than allowed at once, and no queue starves."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskContext
from tests.integration.machine import quick


@pytest.mark.parametrize("plain", [False, True])
async def test_never_more_than_its_slots(db: Path, plain: bool) -> None:
    """`concurrency` bounds the bodies that run at the same time, async and plain, and all of it is used."""
    runner = quick(db)
    lock = threading.Lock()
    now: list[int] = []
    most = 0

    def enter(number: int) -> None:
        nonlocal most
        with lock:
            now.append(number)
            most = max(most, len(now))

    def leave(number: int) -> None:
        with lock:
            now.remove(number)

    async def body(number: int) -> None:
        enter(number)
        await anyio.sleep(0.02)
        leave(number)

    def plain_body(number: int) -> None:
        enter(number)
        time.sleep(0.02)
        leave(number)

    runner.task(name="body")(plain_body if plain else body)
    async with runner.working(concurrency=4):
        handles = [await runner.enqueue("body", {"number": number}) for number in range(60)]
        for handle in handles:
            await handle.result(timeout=10)
    assert most == 4


async def test_no_queue_starves(db: Path) -> None:
    """Forty queues, one of them full: each task of the others is run long before the full one is empty."""
    runner = quick(db)
    order: list[str] = []

    @runner.task
    async def note(ctx: TaskContext) -> None:
        order.append(ctx.task.queue)
        await anyio.sleep(0.002)

    async with runner:
        await runner.enqueue_many([note.options(queue="full").bind() for _ in range(1_500)])
        names = [f"queue {number:02}" for number in range(40)]
        await runner.enqueue_many([note.options(queue=name).bind() for name in names])
        assert await runner.drain() == 1_540
    last = max(order.index(name) for name in names)
    assert last < 1_000, last
    assert Counter(order)["full"] == 1_500


async def test_a_supervisor_of_some_queues(db: Path) -> None:
    """`queues=` names those it takes from; the others are left alone."""
    runner = quick(db)

    @runner.task
    async def one(n: int) -> int:
        return n

    async with runner:
        mine = await one.options(queue="mine").enqueue(1)
        other = await one.options(queue="other").enqueue(2)
        async with runner.working(queues=["mine", "nothing"]):
            assert await mine.result(timeout=5) == 1
            await anyio.sleep(0.3)
            assert await other.status() == "pending"
