"""One SQLite connection as this house opens it: pragmas, the schema's version, and SQLite's errors in our words."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

import apsw

from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown
from taskrunner.storage.engine import load_migrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from taskrunner.storage.engine import Query, Value

APPLICATION_ID = 0x54534B52
"""In the file's header: "TSKR"."""

WAL_NET = 20_000
"""Pages after which SQLite checkpoints by itself: a net only, the checkpointer comes first."""

WAL_SIZE_LIMIT = 64 * 1024 * 1024
"""Bytes to which a WAL file is cut when it is reset."""

FSYNC_ERRORS = frozenset({apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC})
"""After these nothing can be looked up: the kernel may have dropped what it could not write."""


LOOK_AGAIN = 0.002
"""Seconds between two looks at a lock that another process holds. SQLite's own waits grow to 0.1: with four processes
that write all the time one waits for up to 1 s then, and for 0.13 s with these, and together they commit half as much
again."""


class _Patience:
    """What SQLite asks when it meets a lock: whether to look again, after a short wait."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until = 0.0
        self._pause = threading.Event()

    def __call__(self, count: int) -> bool:
        now = self._clock.monotonic()
        if count == 0:
            self._until = now + self._seconds
        if now >= self._until or count * LOOK_AGAIN >= self._seconds:  # the second for a clock that stands still
            return False
        self._pause.wait(min(LOOK_AGAIN, LOOK_AGAIN / 16 * 2 ** min(count, 4)))
        return True


def connect(
    path: Path,
    *,
    busy_timeout: float,
    synchronous: str,
    writing: bool,
    vfs: str | None = None,
    clock: Clock | None = None,
) -> apsw.Connection:
    """Open a connection with the pragmas of this house. The file must exist. `busy_timeout` is in seconds.

    Raises:
        StoreError: SQLite cannot open it.
    """
    connection: apsw.Connection | None = None
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs, statementcachesize=256)
        connection.set_busy_handler(_Patience(busy_timeout, clock or Clock()) if busy_timeout else None)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # plans do not change with the values bound
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        for pragma in (
            "temp_store = MEMORY",  # a claim opens ephemeral trees: 165 -> 25 µs of CPU
            f"synchronous = {synchronous}",
            "foreign_keys = ON",
            "cell_size_check = ON",  # a damaged page is found when it is read, before anything follows from it
            f"wal_autocheckpoint = {WAL_NET}",
            f"journal_size_limit = {WAL_SIZE_LIMIT}",
            f"query_only = {'OFF' if writing else 'ON'}",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.create_scalar_function("is_utf8", _is_utf8, 1, deterministic=True)
        connection.execute("PRAGMA user_version").fetchall()  # the first look at the file: is it a database at all?
    except apsw.Error as error:
        if connection is not None:
            close(connection)
        raise translate(error, path) from error
    return connection


def close(connection: apsw.Connection) -> None:
    """Close a connection; what a checkpoint at its end has to say of the disk changes nothing for what is committed."""
    with suppress(apsw.Error):
        connection.close()


def _is_utf8(*content: Any) -> bool:  # noqa: ANN401 - SQLite hands over what it likes: here, one BLOB
    try:
        content[0].decode()
    except UnicodeDecodeError:
        return False
    return True


def patience(seconds: float, step: float = 0.02) -> Iterator[Callable[[], object]]:
    """Give pauses of `step` seconds, for about `seconds` in all: call each one to wait, which blocks the thread."""
    event = threading.Event()
    for _ in range(int(seconds / step)):
        yield lambda: event.wait(step)


def switch_to_wal(connection: apsw.Connection, path: Path, busy_timeout: float) -> None:
    """Set WAL mode. The first switch of a file may meet another process's: it is tried for `busy_timeout` seconds.

    Raises:
        StoreBusy: the file stayed busy.
        StoreError: its file system does not support WAL.
    """
    busy: apsw.Error | None = None
    for pause in patience(max(busy_timeout, 0.1)):
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError as error:
            busy = error
            pause()
        except apsw.Error as error:
            raise translate(error, path) from error
        else:
            if mode == "wal":
                return
            message = f"{path}: its file system does not support SQLite's WAL mode (journal_mode is {mode!r})"
            raise StoreError(message)
    raise translate(busy or apsw.BusyError("locked"), path) from busy


def check_schema(connection: apsw.Connection, path: Path) -> int:
    """The version of the file's schema; 0: an empty file.

    Raises:
        StoreError: another program's database, or a schema that is newer than this version knows.
    """
    alone = not connection.in_transaction
    try:
        if alone:  # one snapshot: another process may be migrating between two looks
            connection.execute("BEGIN")
        application, version = connection.pragma("application_id"), connection.pragma("user_version")
        empty = not connection.pragma("schema_version")
    finally:
        if alone and connection.in_transaction:
            connection.execute("ROLLBACK")
    latest = load_migrations("sqlite")[-1][0]
    if (application not in (0, APPLICATION_ID)) or (application == 0 and not empty):
        message = f"{path}: this is a database of another program, not a taskrunner store"
        raise StoreError(message)
    if version > latest:
        message = (
            f"{path}: its schema is version {version}, this taskrunner knows up to {latest}: install a newer taskrunner"
        )
        raise StoreError(message)
    return int(version)


def migrate(connection: apsw.Connection, path: Path, clock: Clock, queries: dict[str, Query]) -> None:
    """Bring the schema up to date: each migration and its record in one transaction; many may try at once."""
    try:
        for number, script in load_migrations("sqlite"):
            if check_schema(connection, path) >= number:
                continue
            connection.execute("BEGIN IMMEDIATE")
            try:
                if check_schema(connection, path) < number:  # nobody else was faster
                    connection.execute(script).fetchall()
                    query = queries["record_migration"]
                    record: dict[str, Value] = {"number": number, "now": stamp(clock.now()), "version": version()}
                    connection.execute(query.sql, query.bind(record)).fetchall()
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}")
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
    except apsw.Error as error:
        raise translate(error, path) from error


def version() -> str:
    """The version of taskrunner that is installed."""
    try:
        return metadata.version("durable-taskrunner")
    except metadata.PackageNotFoundError:
        return "0"


def translate(error: apsw.Error, path: Path) -> StoreError:  # noqa: PLR0911 - a table, one line for each code
    """Say what an error of SQLite means for the caller, in one sentence."""
    code = getattr(error, "result", None)
    if code in (apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED):
        return StoreBusy(f"{path}: another program held the write lock for too long; nothing was written")
    if code == apsw.SQLITE_FULL:
        return StoreBusy(f"{path}: the disk is full; nothing was written")
    if code == apsw.SQLITE_NOTADB:
        return StoreError(f"{path}: this file is not a SQLite database: name another one, or restore it from a backup")
    if code == apsw.SQLITE_CORRUPT:
        return StoreError(f"{path}: the database is corrupt ({error}); restore it from a backup")
    if code in (apsw.SQLITE_READONLY, apsw.SQLITE_PERM, apsw.SQLITE_AUTH):
        return StoreError(f"{path}: this user may not write it, or not make the files that SQLite keeps beside it")
    if code == apsw.SQLITE_CANTOPEN:
        return StoreError(f"{path}: SQLite cannot open it ({_why_not(path)})")
    if getattr(error, "extendedresult", None) in FSYNC_ERRORS:
        return StoreUnknown(f"{path}: the disk failed to make a commit durable; end this process and check the disk")
    return StoreError(f"{path}: {type(error).__name__}: {error}")


def _why_not(path: Path) -> str:
    if not path.exists():
        return "there is no such file"
    return "no access" if not os.access(path.parent, os.W_OK) else "unable to open database file"
