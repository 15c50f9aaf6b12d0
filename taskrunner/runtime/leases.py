"""One supervisor's lease, and its eye on those of the others: who is dead, and whose tasks are free.

A supervisor is dead when its lease has run out, or when its death can be proved (`liveness`). The lease is renewed by
the writer's thread, so no user code can keep it from beating. Expiry is judged with the clock as it stood before the
sweep waited for anything, and not at all while our own beats are late, nor before a newcomer's first one is due: the
others may be waiting for the same lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreError
from taskrunner.core.loop import LoopRef
from taskrunner.core.model import SupervisorRow
from taskrunner.runtime.liveness import Identity, OwnLock, judge, kill_left, remove_locks, wait_for_death
from taskrunner.storage.bells import folder_of
from taskrunner.storage.engine import Refused
from taskrunner.storage.owners import NANOSECONDS
from taskrunner.storage.sqlite_connection import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from anyio.abc import TaskGroup

    from taskrunner.core.clock import Clock
    from taskrunner.core.events import Events
    from taskrunner.core.model import TaskType
    from taskrunner.core.settings import Settings
    from taskrunner.storage.bells import Bell
    from taskrunner.storage.engine import Outcome
    from taskrunner.storage.store import Store

JUDGE_ALL = 5.0
"""Seconds between two looks at supervisors whose process is watched: one that is stopped may leave its row in a process
that goes on, and then its lock tells."""


class Lease:
    """The incarnation of one supervisor: registered, beating, watching the others. `lost` is called on the loop."""

    def __init__(
        self, store: Store, settings: Settings, clock: Clock, events: Events, lost: Callable[[], None]
    ) -> None:
        self.id = clock.new_id()
        self._store = store
        self._settings = settings
        self._clock = clock
        self._events = events
        self._tell_lost = lost
        self._loop = LoopRef()
        self._here = Identity.of_this_process(clock)
        self._folder = folder_of(store.path)
        self._lock: OwnLock | None = None
        self._bell: Bell | None = None
        self._stop_beating: Callable[[], None] = lambda: None
        self._watched: dict[str, anyio.CancelScope] = {}
        self._beat_at = clock.monotonic()
        self._patient_until = 0.0
        self._judge_all_at = 0.0
        self._over = False
        self._to_clear_up = True

    async def take(self, types: Iterable[TaskType], limits: Mapping[str, int | None]) -> None:
        """Lock this incarnation's file, hang its bell, store its row, types and queues' limits, and let its heart beat.

        Raises:
            StoreError: the store or the folder beside it cannot be written.
        """
        self._lock = OwnLock.take(self._store.path, self.id)
        self._bell = self._store.engine.bells.hang(self.id)
        now = self._clock.now()
        row = SupervisorRow(
            id=self.id,
            boot_id=self._here.boot_id,
            pid=self._here.pid,
            pid_namespace=self._here.pid_namespace,
            start_time=self._here.start_time,
            host=self._here.host,
            lock_name=self._lock.name,
            bell=None if self._bell is None else self._bell.name,
            expires_at=0,
            started_at=now,
            beat_at=now,
            ended_at=None,
            ended_how=None,
        )
        try:
            await self._store.owners.register(row, version(), self._settings.lease, types, limits)
        except StoreError:
            self._leave()
            raise
        except BaseException:  # a cancellation does not take the row back
            with anyio.CancelScope(shield=True):
                await self.give_up()
            raise
        self._beat_at = self._clock.monotonic()
        self._patient_until = self._beat_at + self._settings.heartbeat  # who knows what has kept the others until now
        self._stop_beating = self._store.owners.keep_beating(
            self.id, self._settings.lease, self._settings.heartbeat, self._beaten
        )

    async def give_up(self) -> None:
        """End this incarnation: no task of it may be running any more."""
        self._over = True
        self._stop_beating()
        living: set[str] | None = None
        try:
            await self._store.owners.retire(self.id)
            living = {row.lock_name for row in await self._store.owners.living()}
        except StoreError:  # a file that stays, and is free, is the proof for the others that nobody is here
            return
        finally:
            self._leave(keep_file=living is None)
        remove_locks(self._folder, living)

    def _leave(self, *, keep_file: bool = False) -> None:
        """Take the bell down, and let go of the lock."""
        if self._bell is not None:
            self._store.engine.bells.take_down(self._bell)
        if self._lock is not None:
            self._lock.release(keep_file=keep_file)

    @property
    def has_bell(self) -> bool:
        """Whether others can ring us."""
        return self._bell is not None

    async def answer_bell(self) -> None:
        """Hear what other processes have committed, if they can tell us; until it is cancelled."""
        if self._bell is not None:
            await self._store.engine.bells.answer(self._bell)

    def lose(self) -> None:
        """Hear that this incarnation was taken for dead. It is told once, and not when it is over already."""
        if not self._over:
            self._over = True
            self._stop_beating()
            self._tell_lost()

    async def sweep(self, group: TaskGroup) -> None:
        """Look at the other supervisors once; bury the dead, watch the living, and clear up what they have left."""
        now = self._clock.monotonic()
        rows = [row for row in await self._store.owners.living() if row.id != self.id]
        unsure = [row for row in rows if now >= self._judge_all_at or row.id not in self._watched]
        if now >= self._judge_all_at:
            self._judge_all_at = now + JUDGE_ALL
        dead = [(row.id, why) for row in unsure if (why := judge(row, self._here, self._folder)) is not None]
        late = now - self._beat_at > 1.5 * self._settings.heartbeat or now < self._patient_until
        expired = [row for row in rows if row.boot_id == self._here.boot_id and row.expires_at <= now * NANOSECONDS]
        for row in rows:
            if row.id not in self._watched:
                group.start_soon(self._watch, row)
        for owner in set(self._watched) - {row.id for row in rows}:
            self._watched.pop(owner).cancel()
        if dead or (expired and not late):
            await self._bury(dead, 0.0 if late else now)
        if self._to_clear_up:
            await self._clear_up()

    async def _watch(self, row: SupervisorRow) -> None:
        """Wait for the end of another supervisor's process, and bury it at once."""
        with anyio.CancelScope() as scope:
            self._watched[row.id] = scope
            how = await wait_for_death(row, self._here, self._folder)
            try:
                await self._bury([(row.id, how)], 0.0)
            except StoreError as error:  # the next sweep tries again
                self._events.trouble(error, self._clock.monotonic())
        self._watched.pop(row.id, None)

    async def _bury(self, dead: list[tuple[str, str]], monotonic: float) -> None:
        boot_id = self._here.boot_id
        ended = await self._store.owners.bury(dead, boot_id=boot_id, me=self.id, monotonic=monotonic)
        for owner, how in ended:
            self._events.emit("supervisor.buried", supervisor_id=owner, how=how, at=stamp(self._clock.now()))
        remove_locks(self._folder, {row.lock_name for row in await self._store.owners.living()})
        if ended:
            await self._clear_up()

    async def _clear_up(self) -> None:
        """Kill the children that dead supervisors have left behind, where their processes can be seen from here.

        The store may be busy just then: the next sweep goes on.
        """
        self._to_clear_up = True
        for row, children in await self._store.owners.left_children():
            if kill_left(row, children, self._here):
                await self._store.owners.record_children(row.id, ())
        self._to_clear_up = False

    def _beaten(self, outcome: Outcome) -> None:
        """Hear of a beat, in the writer's thread."""
        if isinstance(outcome, Refused):
            self._stop_beating()
            self._loop.post(self.lose)
        elif isinstance(outcome, StoreError):
            self._loop.post(self._events.trouble, outcome, self._clock.monotonic())
        else:
            now = self._clock.monotonic()
            if now - self._beat_at > 1.5 * self._settings.heartbeat:
                self._patient_until = now + self._settings.heartbeat
            self._beat_at = now
