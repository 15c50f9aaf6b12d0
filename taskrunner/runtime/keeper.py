"""The keeper of a supervisor's attempts, from a task's claim to the end of its row.

Each attempt has one async task, detached: a body that ignores its cancellation holds up nobody. When the body has ended
there is nothing left to await in it, so nothing that the body did to its own async task can keep the end from being
written; and the watchdog may write the end while the body is still running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from taskrunner.core.errors import StoreBusy, StoreError, TaskRunnerError
from taskrunner.core.loop import LoopRef, Reply, current_caller, detach, is_cancelled
from taskrunner.core.states import TERMINAL
from taskrunner.runtime.ends import WRITE_AGAIN, Ends
from taskrunner.runtime.watchdog import Watchdog
from taskrunner.runtime.watched import NoRoom, Watched
from taskrunner.storage.engine import Refused, Unit
from taskrunner.storage.tasks import status_of

if TYPE_CHECKING:
    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import Task
    from taskrunner.runtime.watched import Place, Reason
    from taskrunner.runtime.workshop import Workshop
    from taskrunner.storage.engine import Outcome, Statement

LET_GO = 1.0
"""Seconds that the bodies of a supervisor have to unwind when its lease is lost, before they are reported as leaked."""


class Keeper:
    """The running tasks of one supervisor incarnation. It belongs to the event loop."""

    def __init__(
        self,
        workshop: Workshop,
        owner: str,
        group: anyio.abc.TaskGroup,
        on_free: Callable[[], None],
        place: Place,
    ) -> None:
        self._store = workshop.store
        self._definitions = workshop.definitions
        self._settings = workshop.settings
        self._clock = workshop.clock
        self._events = workshop.events
        self._owner = owner
        self._place = place
        self.ends = Ends(workshop, owner)
        self._group = group
        self._on_free = on_free
        self._loop = LoopRef()
        self._host = current_caller()
        self._watchdog = Watchdog(self._clock, self._events, self._settings.grace, self._force, self._abandon)
        self._empty = anyio.Event()
        self._failure: Reply[BaseException] = Reply()
        self._asked: set[tuple[str, int]] = set()
        self._over: Reason | None = None
        self.running: dict[str, Watched] = {}
        self.starting: dict[tuple[str, int], Task] = {}
        self.suspect: str | None = None
        """The suspect that runs here and has recorded no step yet: it may end this process, so nothing joins it."""
        self._settling = 0
        self.leaked: set[Watched] = set()
        """Attempts whose body went on after their end was written: code that cannot be stopped."""
        self.ended = 0
        self.slots = self._settings.concurrency

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep attempts, with the watchdog beside them. What fails here ends the task group."""
        self._watchdog.start()
        self._group.start_soon(self._raise_failure)
        try:
            yield
        finally:
            self._watchdog.close()

    @property
    def free(self) -> int:
        """How many more tasks may be claimed: a claim is written behind the ends that are on their way."""
        if not self._place.is_ready or (self.suspect is not None and not self._place.shields):
            return 0
        return self.slots - len(self.running) - len(self.starting) + self._settling

    @property
    def is_empty(self) -> bool:
        """Whether nothing of this incarnation is running."""
        return not self.running and not self.starting

    async def take(self, task: Task, *, run: bool) -> None:
        """Run a claimed task, or hand it back."""
        definition = self._definitions.get(task.type)
        if definition is None:
            self._events.emit("task.unknown", task_id=task.id, task_type=task.type)
            await self.ends.write(task.fence, self._store.tasks.release(task.fence, f"worker:{task.type}"))
        elif not run:
            await self.ends.write(task.fence, self._store.tasks.release(task.fence))
        else:
            self.starting[task.id, task.attempt] = task
            if task.is_suspect:
                self.suspect = task.id
            detach(partial(self._keep, task, definition))

    async def look_for_cancels(self) -> None:
        """Interrupt the running tasks whose cancel was asked for."""
        for task_id, attempt in await self._store.tasks.cancel_requests(self._owner):
            running = self.running.get(task_id)
            if running is not None and running.task.attempt == attempt and (task_id, attempt) not in self._asked:
                self._asked.add((task_id, attempt))
                running.interrupt("cancel")
                self._watchdog.force_after(running, self._settings.grace)

    def write_progress(self) -> None:
        """Write the progress and the lines of the log that no step has carried along."""
        for running in self.running.values():
            if statements := running.take_shown():
                self._store.engine.submit(Unit(tuple(statements)), self._progress_written(running))

    def hand_back(self, patience: float) -> None:
        """Ask every body to end, and hand its task back unharmed; after `patience` seconds in any case."""
        self._over = self._over or "stop"
        self._place.let_go()
        for running in list(self.running.values()):
            running.interrupt("stop")
            self._watchdog.force_after(running, patience)

    def hurry(self) -> None:
        """Have the watchdog hand everything back if the loop does not turn; from a signal's handler."""
        self._watchdog.hurried = True

    def abandon_all(self) -> None:
        """The lease is lost: every body has to end, and nothing of it will be kept."""
        self._over = "lost"
        self._place.let_go()
        for running in list(self.running.values()):
            running.interrupt("lost")
            self._watchdog.force_after(running, LET_GO)

    def lose(self, lost: Sequence[Watched], how: str) -> None:
        """Have tasks charged whose process has died, all in one statement; `how` is the evidence."""

        async def charge() -> None:
            try:
                found = await self.ends.write_lost([running.task.fence for running in lost], how)
            except BaseException as failure:  # noqa: BLE001 - the supervisor has to hear of it
                self._failure.give(failure)
                found = []
            self.ended += sum(orphan.status in TERMINAL for orphan in found)
            for orphan in found:
                self.ends.tell_recovered(orphan)
            for running in lost:
                self._let_go(running)

        detach(charge)

    async def all_ended(self) -> None:
        """Wait until no task of this incarnation is running."""
        while not self.is_empty:
            self._empty = anyio.Event()
            await self._empty.wait()

    # ── one attempt ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def _keep(self, task: Task, definition: TaskDefinition[Any, Any]) -> None:
        """Run one attempt from its recorded steps to the end of its body, and have its end written."""
        running: Watched | None = None
        try:
            running = await self._begin(task, definition)
        except BaseException as error:  # noqa: BLE001 - the supervisor has to hear of it
            self._failure.give(error)
        del self.starting[task.id, task.attempt]
        if running is None:
            self._trust(task.id)
            self._freed()
            return
        self.running[task.id] = running
        self._events.emit("task.started", task_id=task.id, task_type=task.type, attempt=task.attempt)
        self._watchdog.add(running)
        await running.run()
        if running.was_cancelled and running.reason is None and is_cancelled(self._host):
            running.reason = "stop"  # the loop ends, or all that runs there is cancelled: that is no fault of this body
        if not running.forced:  # else its end is being written, without a word of the body's
            self._watchdog.remove(running)
            self._settle(running)

    async def _begin(self, task: Task, definition: TaskDefinition[Any, Any]) -> Watched | None:
        """The attempt, ready to run; None when the task was let go of already."""
        try:
            running = await self._place.prepare(task, definition)
        except NoRoom:
            await self._end_unbegun(task)
            return None
        except (TaskRunnerError, ValueError, TypeError) as error:  # its rows are odd, or its session is gone
            await self.ends.write_unbegun(task, definition, error)
            self._freed()
            return None
        if task.is_suspect:
            running.when_it_records(partial(self._trust, task.id))
        if self._over is not None:
            running.let_go()
            await self._end_unbegun(task)
            return None
        return running

    async def _end_unbegun(self, task: Task) -> None:
        """Let go of a task that was still being prepared when everything here was asked to end."""
        if self._over != "lost":
            await self.ends.write(task.fence, self._store.tasks.release(task.fence))
        name = "task.fenced" if self._over == "lost" else "task.released"
        self._events.emit(name, task_id=task.id, task_type=task.type, attempt=task.attempt)
        self._freed()

    def _settle(self, running: Watched) -> None:
        """Have the end written of an attempt whose body has ended."""
        try:
            statement, before = running.ending()
            if statement is None:
                self._events.emit("task.fenced", task_id=running.task.id, task_type=running.task.type)
                self._let_go(running)
                return
            unit = self._store.tasks.ending(running.task.fence, statement, before)
            self._store.engine.write_soon(unit, partial(self._settled, running, statement, before))
        except BaseException as failure:  # noqa: BLE001 - the supervisor has to hear of it
            self._fail(running, failure)
        else:
            self._settling += 1
            self._on_free()

    def _settled(
        self,
        running: Watched,
        statement: Statement,
        before: list[Statement],
        outcome: Outcome,
    ) -> None:
        """Hear how the writing of an end went; one that did not go well is a longer story."""
        self._settling -= 1
        if not isinstance(outcome, StoreError):
            self._ended(running, statement, status_of(outcome))
            return

        async def insist() -> None:
            try:
                status = await self.ends.write(running.task.fence, statement, before, outcome)
            except BaseException as failure:  # noqa: BLE001 - the supervisor has to hear of it
                self._fail(running, failure)
            else:
                self._ended(running, statement, status)

        detach(insist)

    def _ended(self, running: Watched, statement: Statement, status: str | None) -> None:
        """Tell of an end that is written; of two that were tried at once (by the watchdog, too) the first counts."""
        if self.running.get(running.task.id) is running:
            self.ended += status in TERMINAL
            self.ends.tell(running.task, statement, status)
            self._let_go(running)

    def _fail(self, running: Watched, failure: BaseException) -> None:
        self._failure.give(failure)
        self._let_go(running)

    async def _raise_failure(self) -> None:
        raise await self._failure.wait()

    def _let_go(self, running: Watched) -> None:
        task = running.task
        if self.running.get(task.id) is not running:
            return
        del self.running[task.id]
        self._trust(task.id)
        if running.forced or not running.body_ended:
            self._watchdog.remove(running)
        self._asked.discard((task.id, task.attempt))
        running.let_go()
        if not running.body_ended:
            self.leaked = {each for each in self.leaked if not each.body_ended} | {running}
            self._events.warn("task.leaked", task_id=task.id, task_type=task.type, reason=running.reason)
        self._freed()

    def _trust(self, task_id: str) -> None:
        """Let others run beside a suspect again: it has recorded a step, or has ended."""
        if self.suspect == task_id:
            self.suspect = None
            self._on_free()

    def _freed(self) -> None:
        if self.is_empty:
            self._empty.set()
        self._on_free()

    # ── from other threads ───────────────────────────────────────────────────────────────────────────────────────────
    def _force(self, running: Watched) -> None:
        """Write an attempt's end past the loop; in the watchdog's thread."""
        running.force()
        statement = running.forced_ending()

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, StoreBusy):
                running.force_at, running.forced = None, False
                self._watchdog.force_after(running, WRITE_AGAIN)
                return
            running.written = True
            if isinstance(outcome, StoreError) and not isinstance(outcome, Refused):
                self._loop.post(self._fail, running, outcome)
                return
            status = None if isinstance(outcome, Refused) else status_of(outcome)
            self._loop.post(self._ended, running, statement, status)

        unit = self._store.tasks.ending(running.task.fence, statement)
        try:
            self._store.engine.submit(unit, done)
        except StoreError:
            self._loop.post(self._let_go, running)

    def _abandon(self) -> None:
        """Hand back what has not begun, after all the others; in the watchdog's thread."""
        self.ends.abandon(list(self.starting.values()))

    def _progress_written(self, running: Watched) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Refused):
                self._loop.post(running.interrupt, "lost")
            elif isinstance(outcome, StoreError):
                self._loop.post(self._events.trouble, outcome, self._clock.monotonic())

        return done
