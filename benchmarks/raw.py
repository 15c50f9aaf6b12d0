"""The floor: what SQLite, its driver and the disk allow, with as little Python around them as can be.

It is a group-commit loop on apsw. Callers put (future, statement, values) into a `SimpleQueue`; one thread drains it,
runs BEGIN IMMEDIATE, each statement, COMMIT, and wakes everybody with one `call_soon_threadsafe`. It is fair to us and
to SQLite:

- the same file: the schema of taskrunner with its indexes, CHECKs and triggers, and the rows that taskrunner writes;
- the same connection: WAL, the same pragmas, apsw's cache of prepared statements, and the same checkpointer beside it;
- nothing else: the values are ready made before the clock starts, and bound by position. There are no ids to make, no
  arguments to check, no JSON, no type's defaults to look up, no conflicts, no fence, no savepoint, no events, no mark
  of the commit, no handles; a batch is one `executemany`; a drained task has no body and no asyncio task of its own.

So its rate is a ceiling that no library with these promises on this file can reach, and half of it is a lot.
"""

from __future__ import annotations

import asyncio
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.measure import Durability
from taskrunner import TaskRunner
from taskrunner.core.clock import Clock
from taskrunner.storage.checkpoint import Checkpointer
from taskrunner.storage.engine import Row, Rows
from taskrunner.storage.readers import Readers
from taskrunner.storage.sqlite_connection import connect, translate

if TYPE_CHECKING:
    import apsw

MAX_JOBS = 1_024

Future: TypeAlias = "asyncio.Future[Rows]"
Job: TypeAlias = "tuple[Future, str, Row, Sequence[Row] | None]"
"""Who is told, the statement, and its values: one row of them, or many."""


def load_statements() -> dict[str, str]:
    """The statements of `raw.sql` by name."""
    text = Path(__file__).with_name("raw.sql").read_text(encoding="utf-8")
    _head, *pieces = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {name: re.sub(r"--[^\n]*", "", body).strip() for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


STATEMENTS = load_statements()


async def make_store(path: Path) -> None:
    """Create an empty store, and close it."""
    async with TaskRunner(path):
        pass


@contextmanager
def raw_loop(path: Path, durability: Durability) -> Iterator[RawLoop]:
    """A raw loop on a store that exists; made and used on the event loop."""
    loop = RawLoop(path, durability)
    try:
        yield loop
    finally:
        loop.close()


class RawLoop:
    """One connection, one thread, one transaction for all that waits."""

    def __init__(self, path: Path, durability: Durability) -> None:
        def open_connection() -> apsw.Connection:
            return connect(path, busy_timeout=5.0, synchronous=durability.upper(), writing=True)

        self._connection = open_connection()
        readers = Readers(open_connection, lambda error: translate(error, path))
        self._checkpointer = Checkpointer(path, open_connection, readers, lambda _broken: None, Clock())
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="raw loop")
        self._thread.start()

    def write(self, name: str, values: Row) -> Future:
        """Run a statement of `raw.sql`; the future has its rows once they are committed."""
        future: Future = self._loop.create_future()
        self._queue.put((future, STATEMENTS[name], values, None))
        return future

    def write_many(self, name: str, rows: Sequence[Row]) -> Future:
        """Run a statement once for each row of values, in one commit."""
        future: Future = self._loop.create_future()
        self._queue.put((future, STATEMENTS[name], (), rows))
        return future

    def close(self) -> None:
        """End the thread, and close the connection."""
        self._queue.put(None)
        self._thread.join()
        self._checkpointer.close()
        self._connection.close()

    def _work(self) -> None:
        execute, execute_many = self._connection.execute, self._connection.executemany
        get, empty = self._queue.get, self._queue.empty
        going_on = True
        while going_on:
            jobs = [get()]
            while len(jobs) < MAX_JOBS and not empty():
                jobs.append(get())
            answers: list[tuple[Future, Rows]] = []
            execute("BEGIN IMMEDIATE")
            for job in jobs:
                if job is None:
                    going_on = False
                    continue
                future, statement, values, many = job
                cursor = execute(statement, values) if many is None else execute_many(statement, many)
                answers.append((future, cursor.fetchall()))
            execute("COMMIT")
            self._checkpointer.nudge()
            self._loop.call_soon_threadsafe(_answer, answers)


def _answer(answers: list[tuple[Future, Rows]]) -> None:
    for future, rows in answers:
        if not future.done():
            future.set_result(rows)
