"""Steps: each is durable before the next begins, in one task and in a hundred at the same time."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import Durability, Race, Sample, clocked
from benchmarks.raw import RawLoop, make_store, raw_loop
from benchmarks.sizes import Sizes
from taskrunner import TaskContext, TaskRunner
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.storage.engine import Row

TASKS = 100


def races(sizes: Sizes) -> list[Race]:
    """The workloads of this file."""
    return [
        Race("steps, 1 task", partial(_ours, sizes, 1), partial(_raw, sizes, 1)),
        Race(f"steps, {TASKS} tasks", partial(_ours, sizes, TASKS), partial(_raw, sizes, TASKS), target=0.5),
    ]


async def one() -> int:
    """The step's function."""
    return 1


async def _ours(sizes: Sizes, tasks: int, folder: Path, durability: Durability) -> Sample:
    """On the clock: from the first task's first step to the last task's last one."""
    each = sizes.calls(tasks, durability) // tasks
    runner = TaskRunner(folder / "ours.db", durability=durability)
    sample = Sample(each * tasks)
    moments: list[tuple[float, float]] = []

    async def walk(ctx: TaskContext) -> None:
        moments.append((time.perf_counter(), time.process_time()))
        for _ in range(each):
            await ctx.step("one", one)
        moments.append((time.perf_counter(), time.process_time()))

    task = runner.task(walk)
    async with runner:
        handles = await runner.enqueue_many([task.bind() for _ in range(tasks)])
        async with runner.working(concurrency=tasks):
            for handle in handles:
                await handle.result()
    sample.seconds, sample.cpu = (max(ends) - min(ends) for ends in zip(*moments, strict=True))
    return sample


async def _raw(sizes: Sizes, tasks: int, folder: Path, durability: Durability) -> Sample:
    each = sizes.calls(tasks, durability) // tasks
    clock = Clock()

    async def walk(raw: RawLoop, rows: list[Row]) -> None:
        for row in rows:
            await raw.write("insert_step", row)

    await make_store(folder / "raw.db")
    with raw_loop(folder / "raw.db", durability) as raw:
        walks = [_step_rows(clock, each) for _ in range(tasks)]
        with clocked(each * tasks) as sample:
            await asyncio.gather(*(walk(raw, rows) for rows in walks))
    return sample


def _step_rows(clock: Clock, count: int) -> list[Row]:
    """Ready-made values of the steps of one history, as `ctx.step` writes them."""
    history = clock.new_id()
    return [(history, "one", number, "0123456789abcdef", "1", stamp(clock.now())) for number in range(count)]
