"""SIGTERM and SIGINT: the first drains every supervisor of this process, the second hands back at once.

An event loop has one handler for a signal, so the first supervisor listens on behalf of all; when it ends, the next one
takes its place.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from taskrunner.runtime.supervisor import Supervisor


class _Ear:
    """One supervisor in the line of those that are to hear."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.asked = False
        self.first = anyio.Event()

    def hear(self) -> None:
        self.supervisor.stop(at_once=self.asked)
        self.asked = True


_line: list[_Ear] = []


async def obey_signals(supervisor: Supervisor, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Stop the supervisor at the first signal, and at once at the second: listen until this is cancelled.

    Python hears signals in the main thread only; in another one there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        task_status.started()
        return
    with _in_line(_Ear(supervisor)) as ear:
        waits = not ear.first.is_set()
        if waits:
            task_status.started()
            await ear.first.wait()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            if not waits:
                task_status.started()
            async for _number in signals:
                for each in _line:
                    each.hear()


@contextmanager
def _in_line(ear: _Ear) -> Iterator[_Ear]:
    _line.append(ear)
    _line[0].first.set()
    try:
        yield ear
    finally:
        _line.remove(ear)
        if _line:
            _line[0].first.set()
