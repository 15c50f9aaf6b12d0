"""Who waits for which news of the store: told at once of a commit of this process, and soon of one of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import anyio


class Changes:
    """The listeners of one store. `look_out` is told whether there are any: then other processes are watched."""

    def __init__(self, look_out: Callable[[bool], None]) -> None:
        self._look_out = look_out
        self._listening: dict[str, set[News]] = {}

    @contextmanager
    def listen(self, topics: Sequence[str]) -> Iterator[News]:
        """Collect the news of these topics from now on: look at the store inside, so that nothing is missed."""
        news = News()
        if not self._listening:
            self._look_out(True)  # noqa: FBT003 - whether anybody listens
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
            if not self._listening:
                self._look_out(False)  # noqa: FBT003 - as above

    def announce(self, topics: Iterable[str]) -> None:
        """Wake who listens to one of the topics."""
        for topic in topics:
            for news in self._listening.get(topic, ()):
                news.wake()

    def announce_all(self) -> None:
        """Wake everybody: another process has committed something."""
        self.announce(list(self._listening))


class News:
    """What one listener hears."""

    def __init__(self) -> None:
        self._heard = anyio.Event()

    def wake(self) -> None:
        """End the wait: there is something to look at."""
        self._heard.set()

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 - a bound on the wait, not a deadline for work
        """Wait until a commit may concern a topic, at most `timeout` seconds; False when there was none."""
        if not self._heard.is_set():
            with anyio.move_on_after(timeout):
                await self._heard.wait()
        heard = self._heard.is_set()
        if heard:
            self._heard = anyio.Event()
        return heard
