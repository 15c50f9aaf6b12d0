"""Who waits for which news of the store: at once for a commit of this process, by a poll for one of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence

import anyio

POLL = 0.05
"""Seconds between two looks at the file's change counter while somebody waits (7 µs each). 0.05 keeps an idle process
under a thousandth of a core and is short beside a commit's way to the disk."""


class Changes:
    """Waiters by topic. `look` returns a number that changes when another process has committed."""

    def __init__(self, look: Callable[[], Awaitable[int]]) -> None:
        self._look = look
        self._seen: int | None = None
        self._looking = False
        self._waiters: defaultdict[str, set[anyio.Event]] = defaultdict(set)

    def announce(self, topics: Iterable[str]) -> None:
        """Wake who waits for one of the topics."""
        for topic in topics:
            for event in self._waiters.get(topic, ()):
                event.set()

    async def wait(self, topics: Sequence[str], timeout: float) -> bool:  # noqa: ASYNC109 - a bound, not a deadline
        """Wait until a commit may concern one of the topics; False after `timeout` seconds without one."""
        event = anyio.Event()
        for topic in topics:
            self._waiters[topic].add(event)
        try:
            with anyio.move_on_after(timeout):
                while not event.is_set():
                    await self._wait_once(event)
            return event.is_set()
        finally:
            for topic in topics:
                self._waiters[topic].discard(event)
                if not self._waiters[topic]:
                    del self._waiters[topic]

    async def _wait_once(self, event: anyio.Event) -> None:
        """One turn: a single waiter looks for the commits of other processes, on behalf of all."""
        with anyio.move_on_after(POLL):
            await event.wait()
        if event.is_set() or self._looking:
            return
        self._looking = True
        try:
            number = await self._look()
        finally:
            self._looking = False
        if self._seen is not None and number != self._seen:
            for waiting in [event for events in self._waiters.values() for event in events]:
                waiting.set()
        self._seen = number
