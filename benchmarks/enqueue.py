"""Enqueue: one caller after the other's answer, a hundred callers at once, and batches in one commit."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from benchmarks.measure import Durability, Race, Sample, clocked
from benchmarks.raw import RawLoop, make_store, raw_loop
from benchmarks.sizes import Sizes
from taskrunner import TaskRunner
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.storage.engine import Row

CALLERS = 100


def races(sizes: Sizes) -> list[Race]:
    """The workloads of this file."""
    return [
        Race("enqueue, 1 caller", partial(_ours, sizes, 1), partial(_raw, sizes, 1)),
        Race(f"enqueue, {CALLERS} callers", partial(_ours, sizes, CALLERS), partial(_raw, sizes, CALLERS), target=0.5),
        Race(f"enqueue_many, {sizes.batch:,} each", partial(_ours_batches, sizes), partial(_raw_batches, sizes)),
    ]


async def noop(number: int) -> None:
    """The task that is enqueued, and does nothing."""


async def _ours(sizes: Sizes, callers: int, folder: Path, durability: Durability) -> Sample:
    runner = TaskRunner(folder / "ours.db", durability=durability)
    task = runner.task(noop)

    async def call(numbers: range) -> None:
        for number in numbers:
            await task.enqueue(number)

    count = sizes.calls(callers, durability)
    async with runner:
        with clocked(count) as sample:
            await asyncio.gather(*(call(range(first, count, callers)) for first in range(callers)))
    return sample


async def _raw(sizes: Sizes, callers: int, folder: Path, durability: Durability) -> Sample:
    count = sizes.calls(callers, durability)
    rows = task_rows(count)

    async def call(raw: RawLoop, mine: list[Row]) -> None:
        for row in mine:
            await raw.write("insert_task", row)

    await make_store(folder / "raw.db")
    with raw_loop(folder / "raw.db", durability) as raw:
        shares = [rows[first::callers] for first in range(callers)]
        with clocked(count) as sample:
            await asyncio.gather(*(call(raw, share) for share in shares))
    return sample


async def _ours_batches(sizes: Sizes, folder: Path, durability: Durability) -> Sample:
    runner = TaskRunner(folder / "ours.db", durability=durability)
    task = runner.task(noop)
    async with runner:
        with clocked(sizes.batch * sizes.batches) as sample:
            for batch in range(sizes.batches):
                first = batch * sizes.batch
                await runner.enqueue_many([task.bind(number) for number in range(first, first + sizes.batch)])
    return sample


async def _raw_batches(sizes: Sizes, folder: Path, durability: Durability) -> Sample:
    batches = [task_rows(sizes.batch) for _ in range(sizes.batches)]
    await make_store(folder / "raw.db")
    with raw_loop(folder / "raw.db", durability) as raw, clocked(sizes.batch * sizes.batches) as sample:
        for rows in batches:
            await raw.write_many("insert_task", rows)
    return sample


def task_rows(count: int) -> list[Row]:
    """Ready-made values of pending tasks, as `noop.enqueue` writes them."""
    clock = Clock()
    return [(clock.new_id(), "noop", f'{{"number":{number}}}', stamp(clock.now())) for number in range(count)]
