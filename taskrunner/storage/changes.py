"""Who waits for which news of the store: at once for a commit of this process, by a poll for one of another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import anyio

POLL = 0.05
"""Seconds between two looks at the file's change counter while somebody waits (7 µs each). 0.05 keeps an idle process
under a thousandth of a core and is short beside a commit's way to the disk."""


class Changes:
    """The listeners of one store. `look` returns a number that changes when another connection has committed."""

    def __init__(self, look: Callable[[], Awaitable[int]]) -> None:
        self._look = look
        self._seen: int | None = None
        self._listening: dict[str, set[News]] = {}
        self._waiting: dict[News, None] = {}

    @contextmanager
    def listen(self, topics: Sequence[str]) -> Iterator[News]:
        """Collect the news of these topics from now on: look at the store inside, so that nothing is missed."""
        news = News(self)
        for topic in topics:
            self._listening.setdefault(topic, set()).add(news)
        try:
            yield news
        finally:
            for topic in topics:
                listening = self._listening[topic]
                listening.discard(news)
                if not listening:
                    del self._listening[topic]

    def announce(self, topics: Iterable[str]) -> None:
        """Wake who listens to one of the topics."""
        for topic in topics:
            for news in self._listening.get(topic, ()):
                news.wake()

    async def look(self) -> None:
        """See whether another connection has committed; everybody is woken if so."""
        number = await self._look()
        if self._seen is not None and number != self._seen:
            self.announce(list(self._listening))
        self._seen = number

    @contextmanager
    def waiting(self, news: News) -> Iterator[None]:
        """Stand among those who wait; the first of them looks on behalf of all."""
        self._waiting[news] = None
        try:
            yield
        finally:
            first = self.is_first(news)
            del self._waiting[news]
            if first and self._waiting:
                next(iter(self._waiting)).stir()

    def is_first(self, news: News) -> bool:
        """Whether it is this one's turn to look."""
        return next(iter(self._waiting)) is news


class News:
    """What one listener hears."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._heard = False
        self._stirred = anyio.Event()

    def wake(self) -> None:
        """End the wait: there is something to look at."""
        self._heard = True
        self._stirred.set()

    def stir(self) -> None:
        """Have the waiter see whether it is the first now."""
        self._stirred.set()

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - a bound on the wait, not a deadline for work
        """Wait until a commit may concern a topic, at most `timeout` seconds; False when there was none."""
        with anyio.move_on_after(timeout), self._changes.waiting(self):
            while not self._heard:
                self._stirred = anyio.Event()
                if not self._changes.is_first(self):
                    await self._stirred.wait()
                    continue
                with anyio.move_on_after(POLL):
                    await self._stirred.wait()
                if not self._heard:
                    await self._changes.look()
        heard, self._heard = self._heard, False
        return heard
