"""Memory: what a supervisor's process holds after 20,000, 100,000 and 200,000 tasks: it must not grow with them.

Each task is enqueued, claimed, run and ended in a process of its own, which tells its resident memory at each count:
so nothing that was measured before is part of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.enqueue import noop
from benchmarks.measure import Result
from benchmarks.sizes import Sizes
from taskrunner import TaskRunner

BATCH = 500
CONCURRENCY = 64
MOST = 1.2
"""How many times the memory after the first count it may be at the later ones."""

_MEGABYTE = 1024 * 1024


async def measure(sizes: Sizes, folder: Path) -> list[Result]:
    """Run so many tasks in a process of its own, and compare its memory at the counts."""
    words = [sys.executable, "-m", "benchmarks.memory", str(folder / "memory.db"), *map(str, sizes.remembered)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    held = [float(value) for value in json.loads(output)]
    return [
        Result(
            f"memory after {count:,} tasks",
            "MB",
            size,
            beside=held[0],
            beside_what=f"after {sizes.remembered[0]:,}",
            ratio=size / held[0],
            target=MOST,
            at_least=False,
        )
        for count, size in zip(sizes.remembered, held, strict=True)
    ]


async def run(path: Path, counts: Sequence[int]) -> list[float]:
    """Run tasks up to each of the counts; megabytes of resident memory there."""
    runner = TaskRunner(path, durability="normal")
    task = runner.task(noop)
    ended = 0
    enough = asyncio.Event()
    wanted = 0
    held: list[float] = []

    def completed(_fields: Mapping[str, Any]) -> None:
        nonlocal ended
        ended += 1
        if ended >= wanted:
            enough.set()

    runner.on("task.completed", completed)
    async with runner.working(concurrency=CONCURRENCY):
        for count in counts:
            while wanted < count:
                wanted = min(wanted + BATCH, count)
                enough.clear()
                await runner.enqueue_many([task.bind(number) for number in range(wanted - ended)])
                await enough.wait()
            held.append(resident())
    return held


def resident() -> float:
    """Megabytes of this process that are in memory: the second field of statm, in pages (proc(5))."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MEGABYTE


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    print(json.dumps(asyncio.run(run(Path(place), [int(number) for number in numbers]))))
