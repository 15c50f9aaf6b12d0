"""Claim: how long it takes beside 0, 100,000 and a million finished rows.

What is timed is the whole unit of a claim (the look for orphans and for due tasks, the claim, the queues that have
more) as the writer commits it, without the disk's wait and without the way through the threads: these would hide a
difference. The same number of tasks is pending in each table, and the tables are looked at in turn.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, cast

from benchmarks.enqueue import task_rows
from benchmarks.measure import MICRO, Result
from benchmarks.raw import STATEMENTS, make_store
from benchmarks.sizes import Sizes
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreError
from taskrunner.storage.engine import Rows, Statement, Unit, Value, load_queries
from taskrunner.storage.sqlite_connection import connect
from taskrunner.storage.sqlite_writer import Writer
from taskrunner.storage.tasks import TaskStore

if TYPE_CHECKING:
    import apsw

    from taskrunner.storage.engine import Engine

LIMITS = (1, 50)
CHUNK = 50_000
"""Rows that are moved through their lives together while a table is filled: their pages stay in the cache."""

MOST = 1.3
"""How many times longer than in the empty table a claim may take."""


class Direct:
    """An engine without threads: it commits here and now, and keeps the time of the last commit."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._writer = Writer(
            lambda: connect(path, busy_timeout=5.0, synchronous="NORMAL", writing=True),
            path,
            load_queries("sqlite"),
            clock,
        )
        self.seconds = 0.0

    async def write(self, unit: Unit) -> list[Rows]:
        """Commit a unit, as an engine does."""
        return self.commit(unit)

    def commit(self, unit: Unit) -> list[Rows]:
        """Commit a unit."""
        began = time.perf_counter()
        (outcome,) = self._writer.commit([unit])
        self.seconds = time.perf_counter() - began
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def supervisor(name: str, clock: Clock) -> dict[str, Value]:
    """The row of a supervisor that lives for ever: the dead may not claim."""
    texts: dict[str, Value] = dict.fromkeys(("boot_id", "pid_namespace", "host", "lock_name", "version"), "")
    return {
        **texts,
        "bell": None,
        "id": name,
        "pid": 0,
        "start_time": 0,
        "expires_at": 2**62,
        "now": stamp(clock.now()),
    }


class Table:
    """A store with so many finished rows, from which tasks are claimed."""

    def __init__(self, path: Path, finished: int) -> None:
        clock = Clock()
        self.finished = finished
        self.times: dict[int, list[float]] = {limit: [] for limit in LIMITS}
        self._engine = Direct(path, clock)
        self._engine.commit(Unit((Statement("register_supervisor", supervisor("claimer", clock)),)))
        self._tasks = TaskStore(cast("Engine", self._engine), clock, default_retries=3, default_losses=5)

    async def claim(self, limit: int) -> None:
        """Claim so many tasks, on the clock, and complete them, off it."""
        claim = await self._tasks.claim("claimer", ["default"], limit)
        self.times[limit].append(self._engine.seconds * MICRO)
        for task in claim.tasks:
            await self._tasks.end(task.fence, self._tasks.complete(task.fence, "null"))

    def close(self) -> None:
        """Let go of the file."""
        self._engine.close()


async def measure(sizes: Sizes, folder: Path) -> list[Result]:
    """Fill the tables, claim from each in turn, and compare with the empty one."""
    paths = await make_tables(sizes.finished, sizes.waiting, folder)
    tables = [Table(path, finished) for path, finished in zip(paths, sizes.finished, strict=True)]
    try:
        for limit in LIMITS:
            for _ in range(sizes.claims):
                for table in tables:
                    await table.claim(limit)
    finally:
        for table in tables:
            table.close()
        for path in paths:
            path.unlink()
    return [result for limit in LIMITS for result in _results(tables, limit)]


def _results(tables: Sequence[Table], limit: int) -> list[Result]:
    empty = median(tables[0].times[limit])
    return [
        Result(
            f"claim {limit}, {table.finished:,} finished rows",
            "µs",
            (ours := median(table.times[limit])),
            beside=empty,
            beside_what="empty",
            ratio=ours / empty,
            target=MOST,
            at_least=False,
        )
        for table in tables
    ]


async def make_tables(finished: Sequence[int], waiting: int, folder: Path) -> list[Path]:
    """One file for each number of finished rows, with as many pending ones in all.

    Only the largest is filled: the smaller are copies that were taken on the way.
    """
    growing = folder / "growing.db"
    await make_store(growing)
    paths: list[Path] = []
    filled = 0
    for count in finished:
        _fill(growing, filled, count)
        filled = count
        path = folder / f"{count}.db"
        if count == finished[-1]:
            growing.rename(path)
        else:
            shutil.copyfile(growing, path)
        paths.append(path)
    for path in paths:
        _add_pending(path, waiting)
    return paths


def _fill(path: Path, first: int, last: int) -> None:
    """Finish the tasks from `first` to `last`.

    By legal moves, as the triggers allow no others, but with no care for a crash: the file is our own.
    """
    connection = _careless(path)
    now = stamp(Clock().now())
    for begin in range(first, last, CHUNK):
        span = (begin + 1, min(begin + CHUNK, last), now)
        with connection:
            for statement in ("fill_born", "fill_running", "fill_completed"):
                connection.execute(STATEMENTS[statement], span).fetchall()
    connection.pragma("journal_mode", "wal")
    connection.close()


def _add_pending(path: Path, count: int) -> None:
    connection = _careless(path)
    with connection:
        connection.executemany(STATEMENTS["insert_task"], task_rows(count))
    connection.pragma("journal_mode", "wal")
    connection.close()


def _careless(path: Path) -> apsw.Connection:
    connection = connect(path, busy_timeout=5.0, synchronous="OFF", writing=True)
    connection.pragma("journal_mode", "memory")
    connection.pragma("cache_size", -400_000)  # KiB
    return connection
