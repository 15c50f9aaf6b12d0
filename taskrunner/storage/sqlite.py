"""The SQLite engine: one writer thread, a few readers, one checkpointer, and the guards of the file."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import apsw

from taskrunner.core.durations import stamp
from taskrunner.core.errors import InvalidInput, StoreBusy, StoreError
from taskrunner.core.loop import call_in_thread
from taskrunner.core.places import is_huge, shown
from taskrunner.storage import guard
from taskrunner.storage.bells import Bells, folder_of
from taskrunner.storage.checkpoint import CUT_WITHIN, Checkpointer
from taskrunner.storage.engine import Statement, Unit, Unreadable, load_migrations, load_queries
from taskrunner.storage.group_commit import GroupCommit
from taskrunner.storage.hold import SharedHold, same_file
from taskrunner.storage.questions import Questions
from taskrunner.storage.readers import Readers
from taskrunner.storage.sqlite_connection import (
    check_schema,
    close,
    connect,
    migrate,
    patience,
    switch_to_wal,
    translate,
)
from taskrunner.storage.sqlite_writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from contextlib import AbstractContextManager

    from taskrunner.core.clock import Clock
    from taskrunner.storage.changes import News
    from taskrunner.storage.engine import Answer, Outcome, Question, Rows

WRITERS_KEPT = timedelta(days=30)
"""How long the mark of a writer that crashed is kept."""


class SQLiteEngine:
    """One SQLite file. Made by `open`; its coroutines belong to the event loop that opened it."""

    dialect: Literal["sqlite", "postgres"] = "sqlite"

    def __init__(
        self, path: Path, *, clock: Clock, busy_timeout: float, durability: str, writing: bool, vfs: str | None
    ) -> None:
        self.path = path
        self.queries = load_queries(self.dialect)
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._synchronous = "FULL" if durability == "full" else "NORMAL"
        self._writing = writing
        self._vfs = vfs
        self._hold: SharedHold | None = None
        self._watch: apsw.Connection | None = None
        self._writer: Writer | None = None
        self._readers = Readers(self._reader, self._translate)
        self._questions = Questions(self._reader, self._translate, clock)
        self._checkpointer = Checkpointer(path, self._checkpointing, self._readers, self._no_longer_safe, clock)
        self._group = GroupCommit(self._commit, self._look, self._ring, clock)
        self.bells = Bells(folder_of(path), self._group.changes)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        busy_timeout: float = 5.0,
        durability: Literal["full", "normal"] = "full",
        allow_unsafe_mount: bool = False,
        writing: bool = True,
        vfs: str | None = None,
    ) -> Self:
        """Open the file at `path` (made by `guard.resolve`); a writer creates it and brings its schema up to date.

        `busy_timeout` is in seconds. A reader (`writing=False`) creates and changes nothing.

        Raises:
            StoreError: the file, its folder, its mount, its schema or the SQLite library cannot be used.
            StoreBusy: another program holds the write lock.
        """
        guard.check_library(apsw.sqlite_lib_version())
        guard.check_mount(path, allow_unsafe=allow_unsafe_mount)
        guard.check_access(path, writing=writing)
        engine = cls(path, clock=clock, busy_timeout=busy_timeout, durability=durability, writing=writing, vfs=vfs)
        try:
            with anyio.CancelScope(shield=True):  # a thread cannot be stopped: what it opens has to be closed again
                await call_in_thread("opening", engine._open)
            await anyio.lowlevel.checkpoint()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await call_in_thread("closing", engine._let_go)
            if isinstance(error, apsw.Error):
                raise translate(error, path) from error
            raise
        engine._group.start()
        return engine

    async def read(self, statement: Statement) -> Rows:
        """Run one SELECT on a reader's connection.

        Raises:
            InvalidInput: a value is looked for that no store can hold, such as a text with lone surrogates.
            Unreadable: a row holds text that is not UTF-8.
        """
        query = self.queries[statement.name]
        values = query.bind(statement.params)
        for name, value in zip(query.names, values, strict=True):
            if not isinstance(value, str | int | float | bytes | None) or is_huge(value):
                message = f"{name}={shown(value)}: this cannot be looked for, the store holds nothing of its kind"
                raise InvalidInput(message, path=name)
        try:
            return await self._readers.run(lambda connection: connection.execute(query.sql, values).fetchall())
        except UnicodeEncodeError:
            message = "a text with lone surrogates cannot be looked for: the store holds none"
            raise InvalidInput(message) from None
        except UnicodeDecodeError as error:
            raise Unreadable(statement.name, f"a row holds text that is not UTF-8 ({error.reason})") from None

    def ask(self, question: Question) -> Coroutine[Any, Any, Answer]:
        """Run one SELECT of the user's, on a connection of its own."""
        return self._questions.answer(question)

    def write(self, unit: Unit) -> Coroutine[Any, Any, list[Rows]]:
        """Commit a unit with whatever else is waiting, and return its rows once they are durable."""
        self._require_writer()
        return self._group.write(unit)

    def write_soon(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit; `done` is called on the event loop."""
        self._group.write_soon(unit, done)

    def submit(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit; `done` is called in the writer's thread. From any thread."""
        self._require_writer()
        self._group.submit(unit, done)

    def beat(self, interval: float, make: Callable[[], Unit], done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Commit what `make` returns every `interval` seconds, from the writer's thread, until the answer is called."""
        self._require_writer()
        return self._group.beat(interval, make, done)

    def listen(self, topics: Sequence[str]) -> AbstractContextManager[News]:
        """Hear of commits that may concern one of the topics."""
        return self._group.changes.listen(topics)

    async def close(self) -> None:
        """Commit what was submitted and close every connection; the last one of a file leaves only the file.

        It is not cancelled half-way. In a forked child nothing is closed: that would harm the parent's file.
        """
        if self._group.forked:
            return
        with anyio.CancelScope(shield=True):
            await self._group.close()
            await call_in_thread("closing", self._let_go)

    def _open(self) -> None:
        if self._writing:
            guard.create_private(self.path)
        elif not self.path.exists():
            message = f"{self.path}: there is no such store"
            raise StoreError(message)
        self._hold = SharedHold.take(self.path, lock=False)  # the switch to WAL wants the file for itself
        if self._writing:
            self._prepare(self._hold)
            self._writer = Writer(self._connect, self.path, self.queries, self._clock)
            self._forget_writers(self._writer.connection)
        self._watch = self._reader(busy_timeout=0.0)
        if check_schema(self._watch, self.path) != (latest := load_migrations(self.dialect)[-1][0]):
            message = (
                f"{self.path}: its schema is older than version {latest}: start a supervisor or a client on it first"
            )
            raise StoreError(message)
        self._lock(self._hold)

    def _prepare(self, hold: SharedHold) -> None:
        first = self._connect()
        try:
            check_schema(first, self.path)
            switch_to_wal(first, self.path, self._busy_timeout)
            self._lock(hold)
            migrate(first, self.path, self._clock, self.queries)
        finally:
            close(first)

    def _lock(self, hold: SharedHold) -> None:
        """Lock the file as being in use; another process that opens or closes it may have it for itself."""
        for pause in patience(self._busy_timeout):
            try:
                hold.lock()
            except StoreBusy:
                pause()
            else:
                return
        hold.lock()

    def _let_go(self) -> None:
        with ExitStack() as last_first:  # whatever one of them raises, the others are closed
            if self._hold is not None:
                last_first.callback(self._hold.close)
            if self._writer is not None:
                last_first.callback(self._writer.close)
            if self._watch is not None:
                last_first.callback(close, self._watch)
            if self._hold is not None:
                last_first.callback(self._hold.unlock)  # else SQLite could not delete the WAL with its last connection
            if self._writer is not None:
                last_first.callback(self._writer.finish)
            last_first.callback(self._checkpointer.close)
            last_first.callback(self.bells.close)
            last_first.callback(self._readers.close)
            last_first.callback(self._questions.close)

    def _connect(self, busy_timeout: float | None = None, *, writing: bool = True) -> apsw.Connection:
        return connect(
            self.path,
            busy_timeout=self._busy_timeout if busy_timeout is None else busy_timeout,
            synchronous=self._synchronous,
            writing=writing,
            vfs=self._vfs,
            clock=self._clock,
        )

    def _checkpointing(self) -> apsw.Connection:
        """A connection that waits for nobody for long: while it waits to cut the WAL off, no process can commit."""
        return self._connect(CUT_WITHIN)

    def _no_longer_safe(self, error: apsw.Error) -> None:
        if self._writer is not None:
            self._writer.give_up(self._translate(error))

    def _reader(self, busy_timeout: float | None = None) -> apsw.Connection:
        return self._connect(busy_timeout, writing=False)

    def _require_writer(self) -> Writer:
        if self._writer is None:
            message = f"{self.path}: this store was opened for reading only"
            raise StoreError(message)
        return self._writer

    def _commit(self, units: list[Unit], late: Callable[[], list[Unit]]) -> list[Outcome]:
        if self._hold is not None and not same_file(self.path, self._hold.key):  # 2 µs; a deleted file keeps nothing
            message = f"{self.path}: the file was deleted or replaced while it was open; nothing was written"
            return [StoreError(message) for _ in units]
        outcomes = self._require_writer().commit(units, late)
        self._checkpointer.nudge()
        return outcomes

    def _ring(self, topics: Iterable[str]) -> None:
        self.bells.ring(self._require_writer().bells, topics)

    def _look(self) -> int:
        """The file's change counter as SQLite tells it: it moves when another connection commits (7 µs, no disk)."""
        if self._writer is not None:
            return self._writer.foreign_commits()
        with suppress(apsw.Error):
            if self._watch is not None:
                return int(self._watch.pragma("data_version"))
        return -1

    def _forget_writers(self, connection: apsw.Connection) -> None:
        query = self.queries["forget_writers"]
        with suppress(apsw.Error):  # house-keeping: the next opening will do it
            connection.execute(query.sql, query.bind({"before": stamp(self._clock.now() - WRITERS_KEPT)})).fetchall()

    def _translate(self, error: apsw.Error) -> StoreError:
        return translate(error, self.path)
