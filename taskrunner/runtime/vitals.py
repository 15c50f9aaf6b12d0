"""How children are: those with tasks are asked for a sign of life, and where they die early, they come back slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from taskrunner.runtime.channel import Ping
from taskrunner.runtime.proc import work_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from taskrunner.core.clock import Clock
    from taskrunner.core.events import Events
    from taskrunner.runtime.process import ChildProcess

ASK: Final = 1.0
"""Seconds between two questions to a child that has tasks."""

SILENT: Final = 3.0
"""Seconds without an answer after which a child counts as blocked: it gets no tasks while another one does answer."""


FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
"""Seconds before a child is replaced that has died early: the first time, and at most. So there are 10 in a minute."""

DEGRADED: Final = 5
"""Early deaths in a row that make one event which somebody should see."""


START_AT_LEAST: Final = 8
START_AT_MOST: Final = 60
"""Seconds in which a child has to import the app: the latter on a busy machine, while the child still works on it."""

LEAST_WORK: Final = 2.0
"""Seconds of processor time that an import may take in any case; else four times what the supervisor has used so far,
which bounds what its own import took."""

AT_WORK: Final = 0.02
"""Seconds of processor time within a second from which on a process is at work; less is a look now and then."""


async def watch_start(child: ChildProcess, has_begun: Callable[[float], Awaitable[bool]], most: float) -> None:
    """End a child whose import does not come to an end: it waits for something, or works for more than `most` seconds.

    `has_begun` waits so many seconds at most for the child to be ready, or dead.
    """
    used, second = 0.0, 0
    for second in range(1, START_AT_MOST + 1):
        if await has_begun(1.0):
            return
        before, (state, used) = used, work_of(child.pid)
        works = state in {"R", "D"} or used - before > AT_WORK
        if second >= START_AT_LEAST and not (works and used < most):
            break
    child.doom(f"the import of its app has not come to an end within {second} s")


class Pauses:
    """How long to wait before the next child is started, after some that have died early."""

    def __init__(self, clock: Clock, events: Events) -> None:
        self._clock = clock
        self._events = events
        self._next_at = 0.0
        self.deaths = 0
        """How many in a row."""

    @property
    def left(self) -> float:
        """Seconds until the next may be started; 0 or less: now."""
        return self._next_at - self._clock.monotonic() if self.deaths else 0.0

    def count(self, why: str) -> None:
        """Another one has died early."""
        self.deaths += 1
        pause = min(FIRST_PAUSE * 2 ** min(self.deaths - 1, 20), LONGEST_PAUSE)
        self._next_at = self._clock.monotonic() + pause
        if self.deaths == DEGRADED:
            self._events.warn("children.degraded", deaths=self.deaths, how=why, next_in=pause)

    def forget(self) -> None:
        """One of them is of use."""
        self.deaths = 0


class Vitals:
    """Asks the children of a pool.

    One whose event loop is blocked mostly says so itself, and names the place; one that was stopped, or whose body
    never lets go of the interpreter, cannot.
    """

    def __init__(self, children: Collection[ChildProcess], clock: Clock, events: Events) -> None:
        self._children = children
        self._clock = clock
        self._events = events
        self._busy = anyio.Event()

    def wake(self) -> None:
        """Hear that a child has been given a task."""
        self._busy.set()

    async def listen(self) -> None:
        """Ask, for as long as any of them has a task, until this is cancelled."""
        while True:
            busy = [child for child in self._children if child.tasks and child.is_ready]
            for child in busy:
                self._ask(child, self._clock.monotonic())
            if busy:
                await anyio.sleep(ASK)
            else:
                self._busy = anyio.Event()
                await self._busy.wait()

    def _ask(self, child: ChildProcess, now: float) -> None:
        if child.asked_at is None:
            child.asked_at = now
            child.channel.put(Ping())
        elif now - child.asked_at > SILENT and not child.is_blocked:
            child.is_blocked = True
            task = next(iter(child.tasks.values())).task if len(child.tasks) == 1 else None
            self._events.warn(
                "loop.blocked",
                task_id=None if task is None else task.id,
                task_type=None if task is None else task.type,
                place=f"child process {child.pid}",
                seconds=round(now - child.asked_at, 1),
            )
