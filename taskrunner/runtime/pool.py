"""The children of one supervisor: started, given tasks, watched, and replaced when they die.

A child that dies before it has written anything is replaced after a wait, which doubles each time: what kills
its child at once, be it the app's import or a task, costs little. A task on its way to being quarantined gets a child
all for itself, so that it takes no others along; so does, when there is no such child, one that was handed back twice
because another had to be ended by force: beside such neighbours it might never come to an end.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import anyio.lowlevel

from taskrunner.core.errors import InvalidInput, StoreError
from taskrunner.runtime.channel import Alarm, Broken, End, Hello, Pong, Ready
from taskrunner.runtime.process import ChildProcess, ChildTask
from taskrunner.runtime.vitals import FIRST_PAUSE, LEAST_WORK, Pauses, Vitals, watch_start
from taskrunner.runtime.watched import NoRoom
from taskrunner.storage.remote import Write

if TYPE_CHECKING:
    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import Task
    from taskrunner.runtime.channel import FromChild
    from taskrunner.runtime.origin import Origin
    from taskrunner.runtime.workshop import Workshop

PATIENCE: Final = 5.0
"""Seconds that a claimed task waits for a child before it is handed back."""

LEAVE: Final = 5.0
"""Seconds that a child has to end when it is told to."""

DISTURBED: Final = 2
"""Times that a task is handed back for another's sake before it gets a child of its own."""

REMEMBERED: Final = 1_000
"""Tasks of which it is known how often they were."""


class Pool:
    """The children of one supervisor incarnation, as the place where bodies run. It belongs to the event loop."""

    def __init__(self, workshop: Workshop, owner: str, origin: Origin, group: anyio.abc.TaskGroup) -> None:
        self._store = workshop.store
        self._definitions = workshop.definitions
        self._settings = workshop.settings
        self._clock = workshop.clock
        self._events = workshop.events
        self._owner = owner
        self._group = group
        self._hello = _hello(workshop, origin)
        self._children: set[ChildProcess] = set()
        self._vitals = Vitals(self._children, workshop.clock, workshop.events)
        self._starting = {"shared": 0, "alone": 0}
        self._lose: Callable[[list[ChildTask], str], None] = lambda _lost, _how: None
        self._on_change: Callable[[], None] = lambda: None
        self._changed = anyio.Event()
        self._disturbed: dict[str, int] = {}
        self._over = False
        self._proved = False
        self._refusal: InvalidInput | None = None
        self._pauses = Pauses(workshop.clock, workshop.events)
        self._to_import = LEAST_WORK

    @asynccontextmanager
    async def open(
        self, lose: Callable[[list[ChildTask], str], None], on_change: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Have children for as long as the block runs. `lose` charges the tasks of one that died.

        Raises:
            InvalidInput: the app cannot be imported in a child; the sentence says why.
        """
        self._lose, self._on_change = lose, on_change
        self._to_import = max(LEAST_WORK, 4 * sum(os.times()[:2]))
        try:
            self._group.start_soon(self._vitals.listen)
            self._fill()
            await self._until(lambda: self._proved or self._refusal is not None)
            if self._refusal is not None:
                raise self._refusal
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    # ── the place ────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def is_ready(self) -> bool:
        """Whether there is a child that takes tasks, and is not blocked: what it cannot start is claimed elsewhere."""
        return any(child.takes_tasks and not child.is_blocked for child in self._children)

    shields = True
    """A suspect has a child of its own."""

    async def prepare(self, task: Task, definition: TaskDefinition[Any, Any]) -> ChildTask:
        """Find a child for a task: the one with the fewest, or one of its own.

        Raises:
            NoRoom: there is none, and there will be none soon.
        """
        alone = task.is_suspect or self._needs_quiet(task)
        child = await (self._one_for_it_alone(task) if alone else self._least_loaded())
        running = ChildTask(task, definition, self._store.tasks, child)
        child.tasks[task.id] = running
        self._vitals.wake()
        child.taken += 1
        if child.taken == self._settings.max_tasks_per_child:
            self._retire(child)
        return running

    def let_go(self) -> None:
        """Keep nobody waiting for a child any more."""
        self._over = True
        self._tell()

    def _needs_quiet(self, task: Task) -> bool:
        """Whether others have cost a task its child too often. There is one such child at a time."""
        taken = self._starting["alone"] or any(child.is_alone for child in self._children)
        return not taken and self._disturbed.get(task.id, 0) >= DISTURBED

    async def _least_loaded(self) -> ChildProcess:
        if not self.is_ready:
            with anyio.move_on_after(PATIENCE):
                await self._until(lambda: self.is_ready or self._over)
        if self._over or not self.is_ready:
            raise NoRoom
        there = (child for child in self._children if child.takes_tasks)
        return min(there, key=lambda child: (child.is_blocked, len(child.tasks)))

    async def _one_for_it_alone(self, task: Task) -> ChildProcess:
        with anyio.move_on_after(FIRST_PAUSE * 2 ** min(task.losses - 1, 3)):  # it is claimed by now: not for long
            await self._until(lambda: self._over)
        born: list[ChildProcess | None] = []
        self._starting["alone"] += 1
        self._group.start_soon(partial(self._child, born=born))
        await self._until(lambda: self._over or bool(born and (born[0] is None or born[0].is_ready)))
        child = born[0] if born else None
        if child is None or not child.is_ready or child not in self._children:
            if child is not None:
                self._dismiss(child)
            raise NoRoom
        return child

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        self._on_change()

    # ── the children ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _fill(self) -> None:
        """Start as many children as are missing: one only while it is not known whether they live."""
        at_once = self._settings.processes if self._proved and not self._pauses.deaths else 1
        coming = sum(not (child.is_ready or child.is_alone) for child in self._children)
        coming += self._starting["shared"]
        there = sum(child.takes_tasks for child in self._children)
        while not self._over and there + coming < self._settings.processes and coming < at_once:
            coming += 1
            self._starting["shared"] += 1
            self._group.start_soon(self._child)

    async def _child(self, born: list[ChildProcess | None] | None = None) -> None:
        """One child from its start to its end; `born`: it is for one task alone, and this hears of it."""
        try:
            child = await self._start("shared" if born is None else "alone")
            if child is not None:
                child.is_alone = born is not None
                if born is not None:
                    born.append(child)
                try:
                    self._group.start_soon(watch_start, child, partial(self._has_begun, child), self._to_import)
                    await child.live(self._record, self._hello, partial(self._hear, child))
                finally:
                    self._children.discard(child)
                    self._bury(child)
        finally:
            if born is not None:
                born[:] = [None]
            self._tell()
        self._fill()

    async def _start(self, kind: Literal["shared", "alone"]) -> ChildProcess | None:
        """Start one when it is its turn; None when there is none to be had, or nobody wants it any more."""
        try:
            await self._turn()
            if self._over:
                return None
            child = await ChildProcess.start(self._store.engine)
        except OSError as error:
            why = f"the system cannot start it ({error.strerror})"
            self._refuse_at_start(why)
            self._pauses.count(why)
            return None
        finally:
            self._starting[kind] -= 1
        self._children.add(child)
        if self._over:
            child.kill()
        return child

    async def _turn(self) -> None:
        """Wait until the next child may be started."""
        await anyio.lowlevel.checkpoint()
        while not self._over and (left := self._pauses.left) > 0:
            with anyio.move_on_after(left):
                await self._changed.wait()

    async def _record(self) -> None:
        """Write down which children there are, for the next supervisor to kill what this one may leave behind."""
        try:
            known = [(child.pid, child.start_time) for child in self._children]
            await self._store.owners.record_children(self._owner, known)
        except StoreError as error:  # they die with this process anyway
            self._events.trouble(error, self._clock.monotonic())

    async def _has_begun(self, child: ChildProcess, within: float) -> bool:
        """Whether a child is ready, or dead, so many seconds from now at most."""
        with anyio.move_on_after(within):
            await self._until(lambda: child.is_ready or child not in self._children)
        return child.is_ready or child not in self._children

    def _hear(self, child: ChildProcess, message: FromChild) -> None:
        if isinstance(message, Alarm):  # it comes from a thread, all else from the event loop
            child.is_blocked |= message.event == "loop.blocked"
        else:
            was_blocked, child.is_blocked, child.asked_at = child.is_blocked, False, None
            if was_blocked:
                self._tell()
        if isinstance(message, End | Write):
            child.has_worked = True
            self._pauses.forget()
        match message:
            case End(task_id, attempt, statement, before):
                self._ended(child, task_id, attempt, lambda running: running.end(statement, before))
            case Ready(types):
                self._begin(child, types)
            case Broken(why):
                child.why = why
            case Pong():
                pass
            case Alarm(event, told):
                self._events.warn(event, **told)
            case _:
                child.desk.take(message)

    def _begin(self, child: ChildProcess, types: list[str]) -> None:
        missing = sorted(set(self._definitions) - set(types))
        if missing:
            child.doom(
                f"task {missing[0]!r} is not there when a child process imports {self._hello.origin.module!r}: define "
                "it at the top of a module, not inside a function or under if __name__ == '__main__':"
            )
            return
        child.is_ready = True
        self._proved = True
        self._events.emit("child.started", pid=child.pid, supervisor_id=self._owner)
        self._fill()
        self._tell()

    def _ended(self, child: ChildProcess, task_id: str, attempt: int, end: Callable[[ChildTask], None]) -> None:
        running = child.tasks.get(task_id)
        if running is None or running.task.attempt != attempt:
            return
        del child.tasks[task_id]
        self._disturbed.pop(task_id, None)
        end(running)
        statement, _before = running.ending()
        if statement is not None and statement.params.get("error_type") == "MemoryError":
            self._retire(child)  # what it has taken it may not give back
        if not child.tasks and (child.is_leaving or child.is_alone):
            self._dismiss(child)

    def _retire(self, child: ChildProcess) -> None:
        """Give a child no more tasks, and have another one take its place."""
        child.is_leaving = True
        self._fill()

    def _dismiss(self, child: ChildProcess) -> None:
        """Have a child without tasks end, in a certain time."""
        child.leave()

        async def see_out() -> None:
            await anyio.sleep(LEAVE)
            child.kill()

        self._group.start_soon(see_out)

    # ── their ends ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _bury(self, child: ChildProcess) -> None:
        """Settle the tasks of a dead child. Those beside one that had to be ended by force are not at fault."""
        clean = child.was_killed or (child.is_leaving and not child.tasks)
        lost: list[ChildTask] = []
        for running in child.tasks.values():
            if child.was_killed or running.forced:
                if not running.forced:
                    self._remember(running.task.id)
                running.end(running.forced_ending(), [])  # one that is being written has no need of it
            else:
                running.end_unheard()
                lost.append(running)
        child.tasks.clear()
        if not clean and not self._over:
            self._events.warn("child.lost", pid=child.pid, how=child.why, tasks=len(lost))
            self._refuse_at_start(child.why)
            if not child.has_worked:
                self._pauses.count(child.why)
        if lost:
            here = f"supervisor process {os.getpid()} on {socket.gethostname()}"
            self._lose(lost, f"child process {child.pid} of {here}: {child.why}")

    def _remember(self, task_id: str) -> None:
        """Count that a task was handed back for another's sake."""
        self._disturbed[task_id] = self._disturbed.pop(task_id, 0) + 1
        if len(self._disturbed) > REMEMBERED:
            del self._disturbed[next(iter(self._disturbed))]

    def _refuse_at_start(self, why: str) -> None:
        """What keeps the first child of all from beginning ends the supervisor."""
        if not self._proved:
            message = f"processes={self._settings.processes}: a child process cannot begin: {why}"
            self._refusal = InvalidInput(message, path="processes")

    async def _close(self) -> None:
        self.let_go()
        for child in self._children:
            if child.is_ready:
                child.leave()
            else:
                child.kill()
        with anyio.move_on_after(LEAVE):
            await self._until(lambda: not self._children and not any(self._starting.values()))
        for child in self._children:
            child.kill()
        await self._until(lambda: not self._children and not any(self._starting.values()))


def _hello(workshop: Workshop, origin: Origin) -> Hello:
    settings = {each.name: getattr(workshop.settings, each.name) for each in fields(workshop.settings)}
    settings["origins"] = dict(workshop.settings.origins)
    return Hello(
        db=os.fsencode(workshop.store.path),
        origin=origin,
        settings=settings,
        path=[os.fsencode(entry) for entry in sys.path if isinstance(entry, str)],
        argv=[os.fsencode(argument) for argument in sys.argv],
    )
