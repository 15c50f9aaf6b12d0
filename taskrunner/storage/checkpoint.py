"""The checkpointer: one over all processes, beside the writer, so that no commit pays for it.

PASSIVE while the WAL is small; above a limit the readers of this process are asked to leave their snapshots and the WAL
is truncated (measured with a reader always present: 69 MB at most, 861 MB without the gate).
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from taskrunner.core.loop import spawn_thread

if TYPE_CHECKING:
    from taskrunner.storage.readers import Readers

PASSIVE_ABOVE = 4 * 1024 * 1024
"""Bytes of WAL above which it is copied into the database."""

TRUNCATE_ABOVE = 32 * 1024 * 1024
"""Bytes of WAL above which the readers are asked to step aside."""

PAUSE = 0.1
"""Seconds between two checkpoints."""


class Checkpointer:
    """Copies the WAL back in a thread that is started by the first WAL worth it."""

    def __init__(self, path: Path, connect: Callable[[], apsw.Connection], readers: Readers) -> None:
        self._wal = Path(f"{path}-wal")
        self._lock = Path(f"{path}.d") / "checkpoint.lock"
        self._connect = connect
        self._readers = readers
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def nudge(self) -> None:
        """Look at the size of the WAL, after a commit (2 µs); from the writer's thread."""
        if not self._wanted.is_set() and self._size() > PASSIVE_ABOVE:
            self._wanted.set()
            if self._thread is None:
                self._thread = spawn_thread("checkpointer", self._work)

    def close(self) -> None:
        """End the thread. It blocks for the checkpoint that is under way."""
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _size(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _work(self) -> None:
        connection = self._connect()
        while not self._closing.is_set():
            self._wanted.clear()
            with suppress(apsw.Error, OSError), self._turn() as mine:  # it is tried again after the next commit
                if mine:
                    self._checkpoint(connection)
            self._closing.wait(PAUSE)
            self._wanted.wait()
        connection.close()

    def _checkpoint(self, connection: apsw.Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if self._size() > TRUNCATE_ABOVE:
            with self._readers.gate_closed():
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether this process may checkpoint now: an flock among all processes on this file."""
        self._lock.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
                self._lock.unlink(missing_ok=True)
        finally:
            os.close(descriptor)
            with suppress(OSError):
                self._lock.parent.rmdir()  # only when it is empty
