"""Drain: from a full queue of tasks that do nothing until the last one is completed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks.enqueue import noop, task_rows
from benchmarks.measure import Durability, Race, Sample, clocked
from benchmarks.raw import make_store, raw_loop
from benchmarks.sizes import Sizes
from taskrunner import TaskRunner
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp

CONCURRENCY = 64


def races(sizes: Sizes) -> list[Race]:
    """The workloads of this file."""
    return [Race(f"drain, concurrency {CONCURRENCY}", partial(_ours, sizes.drained), partial(_raw, sizes.drained))]


async def _ours(count: int, folder: Path, durability: Durability) -> Sample:
    """On the clock: the supervisor's start, and each task's claim, body and end."""
    runner = TaskRunner(folder / "ours.db", durability=durability)
    task = runner.task(noop)
    empty = anyio.Event()
    left = count

    def completed(_fields: Mapping[str, Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            empty.set()

    runner.on("task.completed", completed)
    async with runner:
        await runner.enqueue_many([task.bind(number) for number in range(count)])
        with clocked(count) as sample:
            async with runner.working(concurrency=CONCURRENCY):
                await empty.wait()
    return sample


async def _raw(count: int, folder: Path, durability: Durability) -> Sample:
    """Each commit writes the ends of the tasks that the last one claimed, and claims as many again."""
    await make_store(folder / "raw.db")
    now = stamp(Clock().now())
    with raw_loop(folder / "raw.db", durability) as raw:
        await raw.write_many("insert_task", task_rows(count))
        with clocked(count) as sample:
            claimed = await raw.write("claim", ("raw", now, CONCURRENCY))
            while claimed:
                ends = [raw.write("complete", (task_id, "null", now)) for (task_id,) in claimed]
                claim = raw.write("claim", ("raw", now, CONCURRENCY))
                await asyncio.gather(*ends)
                claimed = await claim
    return sample
