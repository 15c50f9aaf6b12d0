"""Who waits for which news of the store: told at once of a commit of this process, and soon of one of another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import anyio

WORK: Final = "work"
"""The topic of commits that made something runnable."""

CANCEL: Final = "cancel"
"""The topic of commits that asked a running task to end."""

OWNERS: Final = "owners"
"""The topic of commits by which a supervisor came."""

RUNG: Final = frozenset({WORK, CANCEL, OWNERS})
"""Topics that concern other processes' supervisors: their bells are rung for them (`bells`)."""

POLL: Final = 0.05
"""Seconds between two looks for other processes' commits, where no bell tells of them: each costs 0.1 ms of a core."""


class Changes:
    """The listeners of one store. `look_out` is told whether other processes' commits have to be looked for.

    They have to while somebody listens, unless a bell tells of all that is listened to. (A ring may be lost, and a
    database shell rings nobody: who relies on a bell looks at the store once in a while, as supervisors do.)
    """

    def __init__(self, look_out: Callable[[bool], None]) -> None:
        self._look_out = look_out
        self._listening: dict[str, dict[News, None]] = {}  # in the order in which they came
        self._bells = 0
        self._looking = False

    @contextmanager
    def listen(self, topics: Sequence[str]) -> Iterator[News]:
        """Collect the news of these topics from now on: look at the store inside, so that nothing is missed."""
        news = News()
        for topic in topics:
            self._listening.setdefault(topic, {})[news] = None
        self._watch()
        try:
            yield news
        finally:
            for topic in topics:
                listening = self._listening[topic]
                listening.pop(news, None)
                if not listening:
                    del self._listening[topic]
            self._watch()

    @contextmanager
    def belled(self) -> Iterator[None]:
        """Rely on a bell for what is rung, for as long as the block runs: whoever hears it calls `announce`."""
        self._bells += 1
        self._watch()
        try:
            yield
        finally:
            self._bells -= 1
            self._watch()

    def announce(self, topics: Iterable[str]) -> None:
        """Wake who listens to one of the topics."""
        for topic in sorted(topics):
            for news in self._listening.get(topic, ()):
                news.wake()

    def announce_all(self) -> None:
        """Wake everybody but those who watch supervisors come: another process has committed something.

        Whoever watches them without a bell looks by itself, and more rarely than others commit.
        """
        self.announce([topic for topic in self._listening if topic != OWNERS])

    def _watch(self) -> None:
        wanted = bool(self._listening) and not (self._bells and self._listening.keys() <= RUNG)
        if wanted != self._looking:
            self._looking = wanted
            self._look_out(wanted)


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
