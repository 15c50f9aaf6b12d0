"""The supervisor: claims what is due, runs it, and stops without breaking anything.

It is one task group: a loop that claims, one that sweeps, one that writes progress, and a keeper for each attempt.
When its lease was taken (it had been suspended for too long) everything in it ends, and it begins again as another.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import anyio

from taskrunner.core.errors import LeaseLost, StoreBusy, StoreError
from taskrunner.core.loop import see_through
from taskrunner.runtime.attempt import Here
from taskrunner.runtime.keeper import Keeper
from taskrunner.runtime.leases import Lease
from taskrunner.runtime.pool import Pool
from taskrunner.runtime.retention import Pruner
from taskrunner.runtime.watchdog import CLEAN_UP
from taskrunner.storage.changes import CANCEL, OWNERS, WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskrunner.runtime.workshop import Workshop
    from taskrunner.storage.changes import News
    from taskrunner.storage.claims import Claim

SHOW_PROGRESS = 0.25
"""Seconds between two writes of the progress and the log that no step has carried along."""

MEET = 0.5
"""Seconds between two looks at the other supervisors at most, where no newcomer can ring us: it must be known, and
watched, before it may die without being missed for a second."""

STARTED_BY = 0.05
"""Seconds after which a cancel is looked for again that may have met a task which was just being started."""

HOT_QUEUES = 16
"""Queues that are claimed from without being asked first whether they hold anything."""


class Supervisor:
    """Runs tasks of the given definitions from one store, in this process."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._store = workshop.store
        self._definitions = workshop.definitions
        self._settings = workshop.settings
        self._clock = workshop.clock
        self._events = workshop.events
        self._hot: list[str] = []
        self._served = ""
        self._ready = ""
        self._stopping = False
        self._until_idle = False
        self._wake: Callable[[], None] = lambda: None
        self._lost = False
        self._started = False
        self._keeper: Keeper | None = None
        self._claimed = anyio.Event()
        self.ended = 0
        """Tasks that came to a terminal state here."""

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more; running tasks have the grace to end (`at_once`: none), the rest is handed back."""
        self._stopping = True
        self._wake()
        if at_once and self._keeper is not None:
            self._keeper.hand_back(CLEAN_UP)

    def note_signal(self, *, at_once: bool) -> None:
        """Know that `stop` is going to be called when the event loop turns; with `at_once` it is not waited for.

        It takes no lock: it is called in the midst of whatever the main thread is doing.
        """
        self._stopping = True
        if at_once and self._keeper is not None:
            self._keeper.hurry()

    @property
    def is_abandoned(self) -> bool:
        """Whether everything was handed back while the event loop did not turn."""
        return self._keeper is not None and self._keeper.ends.is_abandoned

    async def run(
        self, *, until_idle: bool = False, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Work until `stop`; with `until_idle` until nothing is running and nothing is due.

        Raises:
            StoreError: the store cannot be used any more.
        """
        self._until_idle = until_idle
        while True:
            self._lost = False
            try:
                await self._incarnation(task_status)
            except StoreBusy as error:
                if not self._started:
                    raise
                self._lost = True  # it could not register again: nobody has to start it for that
                self._events.trouble(error, self._clock.monotonic())
                await anyio.sleep(self._settings.sweep)
            if not self._lost or self._stopping:
                return

    async def _incarnation(self, task_status: anyio.abc.TaskStatus[None]) -> None:
        lease = Lease(self._store, self._settings, self._clock, self._events, self._lease_lost)
        kinds = [definition.kind for definition in self._definitions.values()]
        await lease.take(kinds, self._workshop.limits)
        self._events.emit("supervisor.started", supervisor_id=lease.id, store=str(self._store.path))
        keeper: Keeper | None = None
        try:
            with self._store.engine.listen((WORK,)) as news:
                async with anyio.create_task_group() as group:
                    pool = self._pool(lease, group)
                    place = self._here() if pool is None else pool
                    keeper = self._keeper = Keeper(self._workshop, lease.id, group, news.wake, place)
                    self._wake = news.wake
                    async with keeper.open(), nullcontext() if pool is None else pool.open(keeper.lose, news.wake):
                        await self._work(lease, keeper, news, group, task_status)
                    group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await lease.give_up()
            leaked = 0 if keeper is None else len(keeper.leaked)
            self.ended += 0 if keeper is None else keeper.ended
            self._events.emit("supervisor.stopped", supervisor_id=lease.id, leaked=leaked)

    def _here(self) -> Here:
        workshop = self._workshop
        return Here(self._store, self._clock, workshop.host, self._settings.max_payload, workshop.resources)

    def _pool(self, lease: Lease, group: anyio.abc.TaskGroup) -> Pool | None:
        origin = self._workshop.origin
        return None if origin is None else Pool(self._workshop, lease.id, origin, group)

    async def _work(
        self,
        lease: Lease,
        keeper: Keeper,
        news: News,
        group: anyio.abc.TaskGroup,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        group.start_soon(lease.answer_bell)
        await self._sweep(lease, group)  # before the first claim: what the dead have left is due at once
        group.start_soon(self._sweeps, lease, group)
        group.start_soon(self._watch_cancels, keeper)
        group.start_soon(self._show_progress, keeper)
        pruner = Pruner(self._store, self._settings, self._clock, self._events)
        group.start_soon(pruner.run)
        if not self._started:
            self._started = True
            task_status.started()
        try:
            await self._claims(lease, keeper, news)
            self._events.emit("supervisor.stopping", supervisor_id=lease.id, running=len(keeper.running))
            await self._drain(keeper)
            if self._until_idle and not self._stopping:  # it may never run for long enough to look by itself
                await pruner.look(self._settings.grace)
        finally:
            await see_through(partial(self._abandon, keeper))

    # ── claiming ─────────────────────────────────────────────────────────────────────────────────────────────────────
    async def _claims(self, lease: Lease, keeper: Keeper, news: News) -> None:
        look_at = self._clock.monotonic()  # for tasks that were put back: nobody tells of them
        turn = True  # the suspects', and then every other one while there are any: nobody starves, and at first
        # there are no neighbours whom a guilty one could harm
        vain = False  # whether their last turn brought none: the next one waits for news
        while not self._stopping and not self._lost:
            if keeper.free <= 0:
                await news.wait(self._settings.sweep)
                vain = False
                continue
            now = self._clock.monotonic()
            claim = await self._claim(lease, keeper, look_for_known=turn or now >= look_at, suspect=turn)
            if claim is None:
                continue
            if turn:
                turn, vain = False, not claim.tasks
                continue
            look_at = now + self._settings.sweep if now >= look_at else look_at
            turn = claim.suspects and not vain and keeper.suspect is None
            if claim.tasks or turn or (claim.unasked and self._settings.queues is None and not self._stopping):
                continue
            more = claim.recovered or claim.promoted or claim.suspects
            if self._until_idle and keeper.is_empty and not more:
                return
            await news.wait(await self._pause())
            vain = False

    async def _claim(self, lease: Lease, keeper: Keeper, *, look_for_known: bool, suspect: bool) -> Claim | None:
        """Claim once. The answer is not lost to a cancellation: what was claimed is run or handed back."""
        known = list(self._definitions) if look_for_known else []
        asked = self._queues()

        async def claim_and_take() -> Claim:
            only = self._settings.queues
            claim = await self._store.tasks.claim(lease.id, asked, keeper.slots, known, only=only, suspect=suspect)
            await self._take(claim, keeper)
            return claim

        try:
            claim = await see_through(claim_and_take)
        except LeaseLost:
            lease.lose()
            return None
        except StoreBusy as error:
            self._events.trouble(error, self._clock.monotonic())
            await anyio.sleep(self._settings.sweep)
            return None
        if self._ready != lease.id:
            self._ready = lease.id
            self._events.emit("supervisor.ready", supervisor_id=lease.id)
        served = {task.queue for task in claim.tasks}
        self._served = next((name for name in reversed(asked) if name in served), self._served)
        left = self._in_turn(claim.queues)
        self._hot = [*dict.fromkeys([*left[: HOT_QUEUES // 2], *served, *left, *self._hot])][:HOT_QUEUES]
        return claim

    async def _take(self, claim: Claim, keeper: Keeper) -> None:
        for orphan in claim.recovered:
            keeper.ends.tell_recovered(orphan)
        for task in claim.tasks:
            await keeper.take(task, run=not self._stopping)
        for row in claim.unreadable:
            await keeper.ends.write_unreadable(row)
        if claim.tasks:
            self._claimed.set()
            self._claimed = anyio.Event()

    def _queues(self) -> list[str]:
        return self._in_turn(self._hot if self._settings.queues is None else self._settings.queues)

    def _in_turn(self, names: Iterable[str]) -> list[str]:
        """Queues in the order of their turns: no one starves beside full ones, however many they are."""
        return sorted(names, key=lambda name: (name <= self._served, name))

    async def _pause(self) -> float:
        """Seconds until there is something to do that no news will tell of."""
        due = await self._store.tasks.next_due()
        if due is None:
            return self._settings.sweep
        return min(self._settings.sweep, max(0.001, (due - self._clock.now()).total_seconds()))

    # ── beside it ────────────────────────────────────────────────────────────────────────────────────────────────────
    async def _sweeps(self, lease: Lease, group: anyio.abc.TaskGroup) -> None:
        pause = self._settings.sweep if lease.has_bell else min(self._settings.sweep, MEET)
        with self._store.engine.listen((OWNERS,)) as news:
            while True:
                await news.wait(pause)
                await self._sweep(lease, group)

    async def _sweep(self, lease: Lease, group: anyio.abc.TaskGroup) -> None:
        try:
            await lease.sweep(group)
        except StoreError as error:  # the next one tries again
            self._events.trouble(error, self._clock.monotonic())

    async def _watch_cancels(self, keeper: Keeper) -> None:
        with self._store.engine.listen((CANCEL,)) as news:
            heard = False
            while True:
                await self._something_runs(keeper)
                if keeper.running:
                    try:
                        await keeper.look_for_cancels()
                    except StoreError as error:
                        self._events.trouble(error, self._clock.monotonic())
                heard = await news.wait(STARTED_BY if heard and keeper.starting else self._settings.sweep)

    async def _show_progress(self, keeper: Keeper) -> None:
        while True:
            await self._something_runs(keeper)
            await anyio.sleep(SHOW_PROGRESS)
            keeper.write_progress()

    async def _something_runs(self, keeper: Keeper) -> None:
        """Sleep while nothing runs here."""
        while keeper.is_empty:
            await self._claimed.wait()

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────
    async def _drain(self, keeper: Keeper) -> None:
        """Wait for the running tasks, at most the grace long; a lost lease leaves nothing to wait for."""
        if self._lost:
            return
        with anyio.move_on_after(self._settings.grace):
            await keeper.all_ended()

    async def _abandon(self, keeper: Keeper) -> None:
        """Hand back what still runs, and see it through: nothing is left running under our name."""
        while not keeper.is_empty:
            keeper.hand_back(CLEAN_UP)
            with anyio.move_on_after(CLEAN_UP):  # one that was just starting is asked in the next round
                await keeper.all_ended()

    def _lease_lost(self) -> None:
        self._lost = True
        if self._keeper is not None:
            self._events.warn("lease.lost", running=len(self._keeper.running))
            self._keeper.abandon_all()
        self._wake()
