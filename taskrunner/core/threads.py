"""The threads of this house, and the seam at which a simulation takes their place."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Final


class Worker:
    """A thread that takes turns. Each does what is due, and returns for how many seconds at most the thread may wait.

    0 is for another turn at once; None waits until `wake`, which counts for the next wait when it comes in a turn. The
    turns must not raise.
    """

    def __init__(self, name: str, turn: Callable[[], float | None]) -> None:
        self._name = name
        self._turn = turn
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._asleep = False
        self._woken = False
        self._ending = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread with its first turn.

        Raises:
            RuntimeError: the system gives no more threads.
        """
        thread = _start(self._name, self._run)
        self._thread = thread

    def wake(self) -> None:
        """Have a turn taken soon; from any thread."""
        with self._door:
            self._woken = True
            if self._asleep:
                self._asleep = False
                self._alarm.put(None)

    def end(self) -> None:
        """Have turns taken until there is nothing left to be done at once, and end the thread. It blocks."""
        self._ending = True
        self.wake()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            ending = self._ending  # looked at first: a whole turn comes after it was set
            pause = self._turn()
            if pause == 0:
                continue
            if ending:
                return
            self._sleep(pause)

    def _sleep(self, timeout: float | None) -> None:
        """Wait until it is woken, or the time is over. It may end early."""
        with self._door:
            if self._woken:
                self._woken = False
                return
            self._asleep = True
        with suppress(queue.Empty):
            self._alarm.get(timeout=timeout)
        self._asleep = self._woken = False


class Threads:
    """Gives threads. All are daemons, so that no handler can hold up the exit."""

    def start(self, name: str, call: Callable[[], object]) -> None:
        """Run plain code in a thread of its own."""
        _start(name, call)

    def worker(self, name: str, turn: Callable[[], float | None]) -> Worker:
        """A thread that takes turns, yet to be started."""
        return Worker(name, turn)


threads: Final[ContextVar[Threads]] = ContextVar("threads", default=Threads())  # noqa: B039 - it has no state
"""Who gives threads here."""


def _start(name: str, call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, name=f"taskrunner {name}", daemon=True)
    thread.start()
    return thread
