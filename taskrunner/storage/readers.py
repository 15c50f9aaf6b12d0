"""Connections that only read, on threads of their own, with a gate that a checkpoint can close for a moment."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import apsw

from taskrunner.core.errors import StoreError
from taskrunner.core.loop import LoopRef, Reply
from taskrunner.core.threads import threads
from taskrunner.storage.sqlite_connection import close

T = TypeVar("T")

READERS = 2
"""Threads that read: enough that one slow list does not hold up a look at a single task."""

_Job: TypeAlias = Callable[[Callable[[], apsw.Connection]], None]


class Readers:
    """Runs short reads. Each takes one snapshot and lets go of it: a long one would keep the WAL from shrinking."""

    def __init__(self, connect: Callable[[], apsw.Connection], translate: Callable[[apsw.Error], StoreError]) -> None:
        self._translate = translate
        self._loop = LoopRef()
        self._jobs: deque[_Job] = deque()
        self._door = threading.Lock()  # no read may come in behind the threads' backs once they were told to end
        self._closing = False
        self._readers = [_Reader(f"reader {number}", connect, self._next) for number in range(READERS)]
        self._started = 0
        self._idle: list[_Reader] = []

    async def run(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run `read` with a connection on a reader's thread.

        Raises:
            StoreError: SQLite refused the read, or the store is closed.
        """
        reply: Reply[T] = Reply()

        def job(connection: Callable[[], apsw.Connection]) -> None:
            try:
                value = read(connection())
            except apsw.Error as error:
                self._loop.post(reply.fail, self._translate(error))
            except BaseException as error:  # noqa: BLE001 - it is raised again where the read is awaited
                self._loop.post(reply.fail, error)
            else:
                self._loop.post(reply.give, value)

        with self._door:
            if self._closing:
                message = "the store is closed"
                raise StoreError(message)
            if self._idle:
                self._idle.pop().worker.wake()
            elif self._started < READERS:
                self._readers[self._started].worker.start()
                self._started += 1
            self._jobs.append(job)  # they take none before the door is open again
        return await reply.wait()

    @contextmanager
    def gate_closed(self) -> Iterator[None]:
        """Wait until no read is under way in this process, and let none begin meanwhile."""
        for reader in self._readers:
            reader.gate.acquire()
        try:
            yield
        finally:
            for reader in self._readers:
                reader.gate.release()

    def close(self) -> None:
        """End the threads once they have answered what was asked. It blocks."""
        with self._door:
            self._closing = True
        for reader in self._readers:
            reader.close()

    def _next(self, reader: _Reader) -> _Job | None:
        """What this reader is to run now; None: it is woken when there is something."""
        with self._door:
            if self._jobs:
                return self._jobs.popleft()
            if reader not in self._idle:
                self._idle.append(reader)
            return None


class _Reader:
    """One thread that reads."""

    def __init__(
        self, name: str, connect: Callable[[], apsw.Connection], take: Callable[[_Reader], _Job | None]
    ) -> None:
        self._connect = connect
        self._take = take
        self._connection: apsw.Connection | None = None
        self.gate = threading.Lock()
        self.worker = threads.get().worker(name, self._turn)

    def close(self) -> None:
        """End the thread, and close its connection. It blocks."""
        self.worker.end()
        if self._connection is not None:
            close(self._connection)

    def _turn(self) -> float | None:
        job = self._take(self)
        if job is None:
            return None
        with self.gate:
            job(self._connected)
        return 0.0

    def _connected(self) -> apsw.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection
