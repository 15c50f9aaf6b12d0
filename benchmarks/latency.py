"""What a single task feels, and what nobody feels: the way from enqueue to start, and an idle supervisor."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

from benchmarks.measure import DURABILITIES, Durability, Result, percentile
from benchmarks.sizes import Sizes
from taskrunner import TaskRunner

HUNDREDTHS = (50, 99)


async def measure_starts(sizes: Sizes, folder: Path) -> list[Result]:
    """From the call of enqueue to the first line of the body, one task at a time, in one process."""
    results = []
    for durability in DURABILITIES:
        waits = await _waits(sizes.starts, folder / f"{durability}.db", durability)
        results += [
            Result(f"enqueue to start, p{hundredth}", "ms", percentile(waits, hundredth), durability=durability)
            for hundredth in HUNDREDTHS
        ]
    return results


async def _waits(count: int, path: Path, durability: Durability) -> list[float]:
    runner = TaskRunner(path, durability=durability)
    waits: list[float] = []
    ended = anyio.Event()

    @runner.task
    async def arrive(sent: float) -> None:
        waits.append((time.perf_counter() - sent) * 1_000)
        ended.set()

    async with runner.working():
        for _ in range(count):
            ended = anyio.Event()
            await arrive.enqueue(time.perf_counter())
            await ended.wait()
            await anyio.sleep(0.002)  # its end is written meanwhile: each begins with everybody idle
    return waits


async def measure_idle(sizes: Sizes, folder: Path) -> list[Result]:
    """The share of one core that a supervisor takes while there is nothing to do."""
    async with TaskRunner(folder / "idle.db").working():
        await anyio.sleep(0.2)  # it has settled
        cpu, began = time.process_time(), time.perf_counter()
        await anyio.sleep(sizes.idle)
        share = (time.process_time() - cpu) / (time.perf_counter() - began)
    return [Result("idle supervisor", "% CPU", share * 100)]
