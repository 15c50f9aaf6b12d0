"""The watchdog: a thread that ends attempts on time, whatever the event loop is doing.

At an attempt's timeout it asks the body to end; when the grace is over it writes the end itself, past the loop. It also
notices that the loop is blocked, and names the task that blocks it, once; and when everything has to be handed back at
once, it does so in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from taskrunner.core.loop import LoopRef
from taskrunner.core.threads import threads

if TYPE_CHECKING:
    from taskrunner.core.clock import Clock
    from taskrunner.core.events import Events
    from taskrunner.runtime.watched import Watched

BLOCKED_AFTER = 1.0
"""Seconds without an answer of the event loop after which it counts as blocked."""

CLEAN_UP = 1.0
"""Seconds that a body has to unwind when its supervisor stops and the grace is over."""

LOOK = 0.25
"""Seconds between two questions to the event loop while something runs."""


class Watchdog:
    """Watches the running attempts of one supervisor.

    `force` writes an attempt's end, and `abandon` is called once all are written that had to be because the loop did
    not turn; both in the thread.
    """

    def __init__(
        self,
        clock: Clock,
        events: Events,
        grace: float,
        force: Callable[[Watched], None],
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._events = events
        self._grace = grace
        self._force = force
        self._abandon = abandon
        self._abandoned = False
        self.hurried = False
        """Whether everything has to be handed back at once: set by a signal's handler, which may take no lock."""
        self._loop = LoopRef()
        self._running: dict[Watched, None] = {}  # in the order in which they came
        self._door = threading.Lock()
        self._asleep = False
        self._idle = False
        self._asked_at: float | None = None
        self._warned = False
        self._worker = threads.get().worker("watchdog", self._turn)

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def close(self) -> None:
        """End the thread. It blocks for a moment."""
        self._worker.end()

    def add(self, running: Watched, *, timed: bool = True) -> None:
        """Watch an attempt from now on; its timeout begins here, if it is timed here (and not by a supervisor)."""
        if timed and running.task.timeout is not None:
            running.deadline = self._clock.monotonic() + running.task.timeout
        with self._door:
            self._running[running] = None
            news = self._asleep or running.deadline is not None
        if news:
            self._worker.wake()

    def remove(self, running: Watched) -> None:
        """Watch it no longer."""
        with self._door:
            self._running.pop(running, None)

    def force_after(self, running: Watched, delay: float) -> None:
        """Write the attempt's end in `delay` seconds if it has not ended by itself; the earliest such moment counts."""
        with self._door:
            moment = self._clock.monotonic() + delay
            running.force_at = moment if running.force_at is None else min(running.force_at, moment)
        self._worker.wake()

    def _turn(self) -> float | None:
        """Do what is due, and return how many seconds to wait at most; None: until something changes."""
        now = self._clock.monotonic()
        with self._door:
            running = list(self._running)
            self._asleep = not running and self._idle
        for each in running:
            if each.deadline is not None and now >= each.deadline:
                each.deadline = None
                if each.reason is None:
                    each.take_no_more("timeout")
                    self.force_after(each, self._grace)
                    self._loop.post(each.interrupt, "timeout")
            if each.force_at is not None and now >= each.force_at and not each.forced:
                each.forced = True
                self._force(each)
        self._idle = not running
        if not running:
            self._asked_at = None
            return None if self._asleep else LOOK  # to be woken for each task costs a busy supervisor more than a look
        self._ask(now, running)
        if self.hurried and self._asked_at is not None and now - self._asked_at >= LOOK:
            self._hand_back(now, running)
        moments = [each.deadline for each in running] + [each.force_at for each in running if not each.forced]
        return min([LOOK, *(max(0.0, moment - now) for moment in moments if moment is not None)])

    def _hand_back(self, now: float, running: list[Watched]) -> None:
        """Do what the loop would do if it turned; if it has not by then, nothing of all this is left to it."""
        for each in running:
            if each.reason is None:
                each.take_no_more("stop")
            if each.force_at is None or each.force_at > now + CLEAN_UP:
                self.force_after(each, CLEAN_UP)
        if all(each.written for each in running) and not self._abandoned:
            self._abandoned = True
            self._abandon()

    def _ask(self, now: float, running: list[Watched]) -> None:
        """Ask the loop for an answer; without one for too long, say once who blocks it."""
        if self._asked_at is None:
            self._asked_at = now
            self._loop.post(self._answer)
        elif now - self._asked_at > BLOCKED_AFTER and not self._warned:
            self._warned = True
            body, place = self._loop.busy_with()
            here = [each for each in running if each.body is not None]
            guilty = [each for each in here if each.body is body] or (here if len(here) == 1 else [])
            self._events.warn(
                "loop.blocked",
                task_id=guilty[0].task.id if guilty else None,
                task_type=guilty[0].task.type if guilty else None,
                place=place,
                seconds=round(now - self._asked_at, 1),
            )

    def _answer(self) -> None:
        self._asked_at = None
        self._warned = False
