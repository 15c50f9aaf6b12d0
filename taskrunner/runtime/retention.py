"""Retention: a supervisor removes the finished tasks that were kept for long enough, and holds nobody up by it.

Old tasks are looked for by a reader, and removed in commits of a thousand rows at most (3 ms on a quiet machine, 16 ms
on a busy one), with a pause after each that is as long as it took. So another process waits for one of them at most,
and half of the time there is none. Nothing shrinks the file: the pages that become free are written again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from taskrunner.core.errors import StoreError
from taskrunner.core.states import TERMINAL
from taskrunner.storage.retention import START, WHOLE

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from datetime import datetime

    from taskrunner.core.clock import Clock
    from taskrunner.core.events import Events
    from taskrunner.core.settings import Settings
    from taskrunner.core.states import Status
    from taskrunner.storage.retention import Finished
    from taskrunner.storage.store import Store

T = TypeVar("T")

EVERY: Final = 60.0
"""Seconds between two looks for old tasks, at most."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.02
"""Seconds of the pause after a commit: what it took beyond that, it waited for others."""


class Pruner:
    """Removes what finished longer ago than the setting `keep_finished` says; without it, what was begun only."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, events: Events) -> None:
        self._retention = store.retention
        self._keep = settings.keep_finished
        self._sweep = settings.sweep
        self._clock = clock
        self._events = events
        self._removed = 0

    async def run(self) -> None:
        """Look for old tasks now, and again and again, until it is cancelled; once without the setting."""
        if self._keep is None:
            await self.look()
            return
        pause = min(EVERY, max(self._sweep, self._keep / 10))
        while True:
            await self.look()
            await anyio.sleep(pause * (0.5 + self._clock.random() / 2))  # several supervisors take turns

    async def look(self, patience: float | None = None) -> None:
        """Remove what is old, for at most `patience` seconds (None: no limit); trouble with the store is told of."""
        try:
            with anyio.move_on_after(patience):
                await self.prune()
        except StoreError as error:  # the next look tries again
            self._events.trouble(error, self._clock.monotonic())

    async def prune(self) -> int:
        """Remove what is old now, children before their parents; the number of tasks that were removed.

        Raises:
            StoreError: the store cannot be used at the moment.
        """
        self._removed = 0
        await self._finish_begun()  # half of a task is of no use to anybody, whatever the setting says by now
        if self._keep is None:
            return self._removed
        before = self._clock.now() - timedelta(seconds=self._keep)
        again = True
        while again:  # a parent may be removed once its children are gone
            removed_before, kept = self._removed, False
            for status in sorted(TERMINAL):
                kept |= await self._prune_status(status, before)
            again = kept and self._removed > removed_before
        return self._removed

    async def _prune_status(self, status: Status, before: datetime) -> bool:
        """Remove the old tasks of one status; whether some had to stay."""
        place, kept = START, False
        while page := await self._retention.finished(status, before, place):
            place = page[-1].place
            kept |= any(task.work == 0 for task in page)
            await self._remove([task for task in page if task.work], before)
        return kept

    async def _remove(self, tasks: list[Finished], before: datetime) -> None:
        for task in tasks:
            if task.work > WHOLE:
                await self._timed(self._retention.begin(task.id, before))
        if any(task.work > WHOLE for task in tasks):
            await self._finish_begun()
        batch: list[str] = []
        work = 0
        for task in tasks:
            if task.work > WHOLE:
                continue
            if batch and work + task.work > WHOLE:
                self._removed += await self._timed(self._retention.remove(batch, before))
                batch, work = [], 0
            batch.append(task.id)
            work += task.work
        if batch:
            self._removed += await self._timed(self._retention.remove(batch, before))

    async def _finish_begun(self) -> None:
        """Remove the tasks that are removed a part at a time; somebody may have died while doing so."""
        for task, history in await self._retention.begun():
            while await self._timed(self._retention.remove_steps(history, WHOLE)):
                pass
            while await self._timed(self._retention.remove_log_lines(task, WHOLE)):
                pass
            self._removed += await self._timed(self._retention.end(task))

    async def _timed(self, commit: Awaitable[T]) -> T:
        """Wait for a commit, and pause for as long as it took."""
        began = self._clock.monotonic()
        answer = await commit
        took = self._clock.monotonic() - began
        await anyio.sleep(min(max(took, SHORTEST_PAUSE), LONGEST_PAUSE))
        return answer
