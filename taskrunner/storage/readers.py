"""Connections that only read, on threads of their own, with a gate that a checkpoint can close for a moment."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import apsw

from taskrunner.core.errors import StoreError
from taskrunner.core.loop import LoopRef, Reply, spawn_thread
from taskrunner.storage.sqlite_connection import close

T = TypeVar("T")

READERS = 2
"""Threads that read: enough that one slow list does not hold up a look at a single task."""


class Readers:
    """Runs short reads. Each takes one snapshot and lets go of it: a long one would keep the WAL from shrinking."""

    def __init__(self, connect: Callable[[], apsw.Connection], translate: Callable[[apsw.Error], StoreError]) -> None:
        self._translate = translate
        self._loop = LoopRef()
        self._jobs: queue.SimpleQueue[Callable[[Callable[[], apsw.Connection]], None] | None] = queue.SimpleQueue()
        self._gates = [threading.Lock() for _ in range(READERS)]
        self._connect = connect
        self._door = threading.Lock()  # no read may come in behind the threads' backs once they were told to end
        self._closing = False
        self._threads: list[threading.Thread] = []

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
            if len(self._threads) < READERS:
                gate = self._gates[len(self._threads)]
                self._threads.append(spawn_thread(f"reader {len(self._threads)}", self._work, gate))
            self._jobs.put(job)
        return await reply.wait()

    @contextmanager
    def gate_closed(self) -> Iterator[None]:
        """Wait until no read is under way in this process, and let none begin meanwhile."""
        for gate in self._gates:
            gate.acquire()
        try:
            yield
        finally:
            for gate in self._gates:
                gate.release()

    def close(self) -> None:
        """End the threads once they have answered what was asked. It blocks."""
        with self._door:
            self._closing = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, gate: threading.Lock) -> None:
        opened: list[apsw.Connection] = []

        def connection() -> apsw.Connection:
            if not opened:
                opened.append(self._connect())
            return opened[0]

        while (job := self._jobs.get()) is not None:
            with gate:
                job(connection)
        for each in opened:
            close(each)
