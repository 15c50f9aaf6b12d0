"""The writer thread: many units, one commit.

It drains what has queued up while the last commit waited for the disk, and what comes in while it writes that; commits
it at once, and wakes all callers with one call into the event loop. No lingering: the wait for the disk is the window
(measured: a linger of 1 ms halves the throughput at 64 callers). It also beats the heart of a supervisor, because it
runs whatever blocks the event loop, rings the bells of other processes, and looks for their commits, so that an idle
loop can sleep.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import msgspec

from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown
from taskrunner.core.loop import LoopRef, Reply, call_in_thread
from taskrunner.core.threads import threads
from taskrunner.storage.changes import POLL, RUNG, Changes

if TYPE_CHECKING:
    from taskrunner.core.clock import Clock
    from taskrunner.storage.engine import Outcome, Rows, Unit

_log = logging.getLogger("taskrunner")

MAX_UNITS = 1_024
"""Units of one commit: bounds how long other processes wait for the write lock (20-30 ms)."""

BEAT_AGAIN = 0.5
"""Seconds after which a beat that met a locked store is tried again."""


class _Entry(msgspec.Struct, gc=False):
    """A unit in the queue, and who is to be told on the event loop or in the writer's thread."""

    unit: Unit
    done: Callable[[Outcome], None]
    on_loop: bool = False


@dataclass(slots=True)
class _Heart:
    """What is committed again and again, and when next, in seconds of the monotonic clock."""

    interval: float
    make: Callable[[], Unit]
    done: Callable[[Outcome], None]
    due: float


class GroupCommit:
    """Commits units in groups on a thread of its own.

    `commit` writes a list of units, and those that it is then handed by its second argument, until there are none; it
    adds them to the list, and returns the outcomes of all. `look` returns a number that changes when another process
    has committed; it is asked for while anybody listens to `changes`. `ring` tells other processes of what is news.
    """

    def __init__(
        self,
        commit: Callable[[list[Unit], Callable[[], list[Unit]]], list[Outcome]],
        look: Callable[[], int],
        ring: Callable[[Iterable[str]], None],
        clock: Clock,
    ) -> None:
        self.changes = Changes(self._look_out)
        self._commit = commit
        self._look = look
        self._ring = ring
        self._clock = clock
        self._loop = LoopRef()
        self._queue: list[_Entry] = []
        self._hearts: list[_Heart] = []
        self._door = threading.Lock()  # nothing may come in behind the thread's back once it was told to end
        self._closing = False
        self._looking = False
        self._look_at = 0.0
        self._seen: int | None = None
        self._writer = threads.get().worker("writer", self._turn)

    def start(self) -> None:
        """Start the thread."""
        self._seen = self._look()  # before anybody listens, so that the first look misses nothing
        self._writer.start()

    async def write(self, unit: Unit) -> list[Rows]:
        """Commit a unit and wait for it. A cancelled wait does not take the unit back."""
        reply: Reply[Outcome] = self._loop.reply()
        self._put(_Entry(unit, reply.give, on_loop=True))
        outcome = await reply.wait()
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def write_soon(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit and call `done` on the event loop, in one go with all that wait for the same commit."""
        self._put(_Entry(unit, done, on_loop=True))

    def submit(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit and call `done` in the writer's thread; from any thread."""
        self._put(_Entry(unit, done))

    def beat(self, interval: float, make: Callable[[], Unit], done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Commit what `make` returns every `interval` seconds from now on, until the answer is called."""
        heart = _Heart(interval, make, done, self._clock.monotonic() + interval)

        def stop() -> None:
            with self._door:
                self._hearts = [other for other in self._hearts if other is not heart]
            self._writer.wake()

        with self._door:
            self._hearts = [*self._hearts, heart]
        self._writer.wake()
        return stop

    @property
    def forked(self) -> bool:
        """Whether this belongs to the process that this one was forked from."""
        return self._loop.forked

    async def close(self) -> None:
        """Commit what was submitted, then end the thread. It is not cancelled half-way."""
        with self._door:
            self._closing = True
        with anyio.CancelScope(shield=True):
            await call_in_thread("closing", self._writer.end)

    def _turn(self) -> float | None:
        """Commit once if there is anything to commit; the seconds until there is more to do."""
        entries = self._take(MAX_UNITS)
        due: list[_Heart] = []

        def late() -> list[Unit]:
            joining = self._take(MAX_UNITS - len(entries))
            entries.extend(joining)
            return [entry.unit for entry in joining]

        try:
            now = self._clock.monotonic()
            due = [heart for heart in self._hearts if now >= heart.due]
            for heart in due:
                heart.due = now + heart.interval
            beats = [_Entry(heart.make(), heart.done) for heart in due]
            entries = [*beats, *entries]  # first in line: a lease must not wait for a crowd
            outcomes = self._commit([entry.unit for entry in entries], late) if entries else []
        except BaseException as error:  # noqa: BLE001 - a fault of ours: all have to hear, and the thread goes on
            _log.exception("the writer failed")
            outcomes = [StoreUnknown(f"the writer failed ({error!r}): this may or may not be written") for _ in entries]
        for heart, outcome in zip(due, outcomes, strict=False):
            if isinstance(outcome, StoreBusy):
                heart.due = min(heart.due, self._clock.monotonic() + BEAT_AGAIN)
        self._answer(entries, outcomes)
        self._look_again()
        return self._pause()

    def _pause(self) -> float | None:
        if self._queue:
            return 0.0
        moments = [heart.due for heart in self._hearts] + [self._look_at] * self._looking
        return max(0.0, min(moments) - self._clock.monotonic()) if moments else None

    def _look_out(self, wanted: bool) -> None:  # noqa: FBT001 - a listener's call
        self._looking = wanted
        self._writer.wake()

    def _look_again(self) -> None:
        """See whether another process has committed, if anybody wants to know and the last look was long enough ago."""
        now = self._clock.monotonic()
        if self._looking and now >= self._look_at:
            self._look_at = now + POLL
            before, self._seen = self._seen, self._look()
            if before not in {None, self._seen}:
                self._loop.post(self.changes.announce_all)

    def _put(self, entry: _Entry) -> None:
        with self._door:
            if self._closing:
                message = "the store is closed"
                raise StoreError(message)
            self._queue.append(entry)
        self._writer.wake()

    def _take(self, most: int) -> list[_Entry]:
        """At most so many of the waiting entries, in one go."""
        if not self._queue:
            return []
        with self._door:
            taken, self._queue = self._queue[:most], self._queue[most:]
        return taken

    def _answer(self, entries: list[_Entry], outcomes: list[Outcome]) -> None:
        answers: list[tuple[Callable[[Outcome], None], Outcome]] = []
        topics: set[str] = set()
        for entry, outcome in zip(entries, outcomes, strict=True):
            if entry.unit.topics and not isinstance(outcome, StoreError):
                topics.update(entry.unit.topics)
            if entry.on_loop:
                answers.append((entry.done, outcome))
            else:
                _tell(entry.done, outcome)
        if rung := topics & RUNG:
            self._ring(rung)
        if answers or topics:
            self._loop.post(self._give, answers, topics)

    def _give(self, answers: list[tuple[Callable[[Outcome], None], Outcome]], topics: Iterable[str]) -> None:
        for done, outcome in answers:
            try:
                done(outcome)
            except Exception:  # noqa: BLE001 - the others still have to hear
                _log.exception("who was told of a commit raised")
        if topics:
            self.changes.announce(topics)


def _tell(done: Callable[[Outcome], None], outcome: Outcome) -> None:
    try:
        done(outcome)
    except Exception:  # noqa: BLE001 - the others still have to hear
        _log.exception("who was told of a commit raised")
