"""The checkpointer: one over all processes, beside the writer, so that no commit pays for it.

PASSIVE while the WAL is small; above a limit the readers of this process are asked to leave their snapshots and the WAL
is truncated (measured with a reader always present: 69 MB at most, 861 MB without the gate).
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from taskrunner.core.errors import StoreError
from taskrunner.core.threads import threads
from taskrunner.storage.bells import folder_of
from taskrunner.storage.sqlite_connection import FSYNC_ERRORS, close

if TYPE_CHECKING:
    from taskrunner.core.clock import Clock
    from taskrunner.storage.readers import Readers

_log = logging.getLogger("taskrunner")

PASSIVE_ABOVE = 4 * 1024 * 1024
"""Bytes of WAL above which it is copied into the database."""

TRUNCATE_ABOVE = 32 * 1024 * 1024
"""Bytes of WAL above which the readers are asked to step aside."""

WARN_ABOVE = 128 * 1024 * 1024
"""Bytes of WAL above which somebody should know: our own readers never keep it that large."""

PAUSE = 0.1
"""Seconds between two checkpoints."""

CUT_WITHIN = 0.2
"""Seconds that a truncation may wait for readers and writers; no process can commit meanwhile."""

MOST_ROUNDS = 512
"""Checkpoints (51 s of them, at least) after which a truncation is tried again that a foreign reader keeps refusing."""


class Checkpointer:
    """Copies the WAL back in a thread that is started by the first WAL worth it."""

    def __init__(
        self,
        path: Path,
        connect: Callable[[], apsw.Connection],
        readers: Readers,
        broken: Callable[[apsw.Error], None],
        clock: Clock,
    ) -> None:
        self._wal = Path(f"{path}-wal")
        self._lock = folder_of(path) / "checkpoint.lock"
        self._connect = connect
        self._readers = readers
        self._broken = broken
        self._rounds = 1
        self._rounds_left = 0
        self._warned = False
        self._clock = clock
        self._connection: apsw.Connection | None = None
        self._next_at = 0.0
        self._wanted = False
        self._started = False
        self._closing = False
        self._worker = threads.get().worker("checkpointer", self._turn)

    def nudge(self) -> None:
        """Look at the size of the WAL, after a commit (2 µs); from the writer's thread."""
        if not self._wanted and self._size() > PASSIVE_ABOVE:
            self._wanted = True
            if self._started:
                self._worker.wake()
                return
            with suppress(RuntimeError):  # no more threads: SQLite's own checkpoint is the net
                self._worker.start()
                self._started = True

    def close(self) -> None:
        """End the thread. It blocks for the checkpoint that is under way."""
        self._closing = True
        self._worker.end()
        if self._connection is not None:
            close(self._connection)

    def _size(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _turn(self) -> float | None:
        if not self._wanted or self._closing:
            return None
        now = self._clock.monotonic()
        if now < self._next_at:
            return self._next_at - now
        self._wanted = False
        with suppress(OSError, StoreError), self._alone() as mine:  # it is tried again after the next commit
            if mine:
                self._connection = self._connection or self._connect()
                self._checkpoint(self._connection)
        self._next_at = self._clock.monotonic() + PAUSE
        return None

    def _checkpoint(self, connection: apsw.Connection) -> None:
        try:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if (size := self._size()) > TRUNCATE_ABOVE:
                self._truncate(connection)
            self._warn(size)
        except apsw.Error as error:
            if getattr(error, "extendedresult", None) in FSYNC_ERRORS:
                self._broken(error)

    def _warn(self, size: int) -> None:
        """Say once that the WAL grows; again when it had become small meanwhile."""
        if size > WARN_ABOVE and not self._warned:
            self._warned = True
            _log.warning(
                "%s has grown to %d MB, for some program keeps a read transaction open; it is cut off when that ends",
                self._wal,
                size >> 20,
            )
        elif size < TRUNCATE_ABOVE:
            self._warned = False

    def _truncate(self, connection: apsw.Connection) -> None:
        """Cut the WAL off; while somebody else's reader keeps it from that, the attempts become rare."""
        if self._rounds_left > 0:
            self._rounds_left -= 1
            return
        with self._readers.gate_closed():
            busy = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        self._rounds = min(2 * self._rounds, MOST_ROUNDS) if busy else 1
        self._rounds_left = self._rounds - 1

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether this process may checkpoint now: an flock among all processes on this file."""
        self._lock.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        _turns.add(descriptor)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
                self._lock.unlink(missing_ok=True)
        finally:
            _turns.discard(descriptor)
            os.close(descriptor)
            with suppress(OSError):
                self._lock.parent.rmdir()  # only when it is empty


_turns: set[int] = set()
"""The descriptors of the locks that are held now: a forked child closes its copies, or it would hold them on."""


def _leave_turns_to_parent() -> None:
    for descriptor in _turns:
        os.close(descriptor)
    _turns.clear()


os.register_at_fork(after_in_child=_leave_turns_to_parent)
