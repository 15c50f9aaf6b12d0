"""A client and a supervisor in two processes: enqueue to start, cancel to the body's end, and what idling costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from benchmarks.enqueue import task_rows
from benchmarks.measure import DURABILITIES, Durability, Result, percentile
from benchmarks.other import Other, arrive, other_process, tasks, wait
from benchmarks.raw import STATEMENTS, make_store
from benchmarks.sizes import Sizes
from taskrunner import TaskRunner
from taskrunner.storage.sqlite_connection import close, connect

HUNDREDTHS = (50, 99)

ABOVE = 1.5
"""Milliseconds above two lone commits that the way from enqueue to start may take, at FULL, for half of the tasks."""

CANCELLED_WITHIN = 100.0
"""Milliseconds within which a cancel reaches the body, for 99 of a hundred."""

IDLE = 0.3
"""Percent of a core that an idle supervisor may take."""


async def measure(sizes: Sizes, folder: Path) -> list[Result]:
    """All of it, at each durability; the supervisor idles before it has anything to do, and after that."""
    results = []
    for durability in DURABILITIES:
        db = folder / f"{durability}.db"
        runner = TaskRunner(db, durability=durability)
        runner.include(tasks)
        async with runner, other_process(db, durability) as other:
            await other.hear("started")
            await anyio.sleep(0.5)  # it has settled
            results += [
                *await _starts(sizes.starts, other, folder, durability),
                *await _cancels(sizes.cancels, other, durability),
                await _idle(sizes.idle, other, durability),
            ]
    return results


async def _starts(count: int, other: Other, folder: Path, durability: Durability) -> list[Result]:
    """From the call of enqueue here to the first line of the body there, and each time a lone commit beside it."""
    await make_store(folder / f"lone {durability}.db")
    waits, commits = [], []
    with lone_commits(folder / f"lone {durability}.db", durability, count) as commit:
        for _ in range(count):
            await arrive.enqueue(time.perf_counter())
            waits.append(await other.hear("arrived") * 1_000)
            await anyio.sleep(0.002)  # its end is written meanwhile: each begins with everybody idle
            commits.append(commit() * 1_000)
            await anyio.sleep(0.002)
    allowed = 2 * percentile(commits, 50) + ABOVE
    middle, last = (percentile(waits, hundredth) for hundredth in HUNDREDTHS)
    return [
        Result(
            "enqueue to start elsewhere, p50",
            "ms",
            middle,
            durability=durability,
            beside=allowed,
            beside_what=f"two commits + {ABOVE}",
            ratio=middle / allowed,
            target=1.0 if durability == "full" else None,
            at_least=False,
        ),
        Result("enqueue to start elsewhere, p99", "ms", last, durability=durability),
    ]


async def _cancels(count: int, other: Other, durability: Durability) -> list[Result]:
    """From the call of cancel here to the end of the body there."""
    waits = []
    for _ in range(count):
        handle = await wait.enqueue()
        await other.hear("waiting")
        began = time.perf_counter()
        await handle.cancel()
        waits.append((await other.hear("cancelled") - began) * 1_000)
        await anyio.sleep(0.005)
    middle, last = (percentile(waits, hundredth) for hundredth in HUNDREDTHS)
    return [
        Result("cancel to end elsewhere, p50", "ms", middle, durability=durability),
        bounded("cancel to end elsewhere, p99", "ms", last, CANCELLED_WITHIN, durability),
    ]


async def _idle(seconds: float, other: Other, durability: Durability) -> Result:
    """The share of a core that the supervisor takes while nothing happens."""
    await anyio.sleep(1.0)  # it has settled
    cpu, began = other.cpu(), time.perf_counter()
    await anyio.sleep(seconds)
    share = (other.cpu() - cpu) / (time.perf_counter() - began) * 100
    return bounded("idle supervisor, process", "% CPU", share, IDLE, durability)


def bounded(name: str, unit: str, ours: float, bound: float, durability: Durability | None = None) -> Result:
    """A result beside the bound that it has to keep to."""
    return Result(
        name,
        unit,
        ours,
        durability=durability,
        beside=bound,
        beside_what="at most",
        ratio=ours / bound,
        target=1.0,
        at_least=False,
    )


@contextmanager
def lone_commits(path: Path, durability: Durability, count: int) -> Iterator[Callable[[], float]]:
    """What a commit of one task takes on the bare driver, in seconds, without any thread; for `count` calls."""
    connection = connect(path, busy_timeout=5.0, synchronous=durability.upper(), writing=True)
    rows = iter(task_rows(count))

    def commit() -> float:
        row = next(rows)
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(STATEMENTS["insert_task"], row).fetchall()
        connection.execute("COMMIT")
        return time.perf_counter() - began

    try:
        yield commit
    finally:
        close(connection)
