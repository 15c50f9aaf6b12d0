"""SIGTERM and SIGINT: the first drains every supervisor of this process, the second hands back at once.

An event loop has one handler for a signal, so the first supervisor listens on behalf of all; when it ends, the next one
takes its place.

While a body blocks the event loop it hears nothing: the first signal counts when it turns again. The second one is
noted where Python interrupts the body for it, and the watchdog hands everything back in its thread. A third one, after
that, does what it does to any program.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from types import FrameType

    from taskrunner.runtime.supervisor import Supervisor

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
"""The signals that are obeyed."""


class _Ear:
    """One supervisor in the line of those that are to hear."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.asked = False
        self.noted = False
        self.first = anyio.Event()

    def hear(self) -> None:
        self.supervisor.stop(at_once=self.asked)
        self.asked = True

    def note(self) -> None:
        """Hear of a signal in the midst of whatever the main thread is doing."""
        self.supervisor.note_signal(at_once=self.noted)
        self.noted = True


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
        with anyio.open_signal_receiver(*NUMBERS) as signals, _noted():
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


@contextmanager
def _noted() -> Iterator[None]:
    """Note each signal at once, beside the event loop, which may be blocked."""
    before = {number: signal.getsignal(number) for number in NUMBERS}

    def note(number: int, frame: FrameType | None) -> None:
        if all(each.supervisor.is_abandoned for each in _line):
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        for each in _line:
            each.note()
        if callable(of_the_loop := before[signal.Signals(number)]):
            of_the_loop(number, frame)

    for number in NUMBERS:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
