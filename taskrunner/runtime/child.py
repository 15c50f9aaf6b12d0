"""The program of a child process: it imports the app, runs the bodies that it is given, and says how they ended.

It has no database: its store asks the supervisor. It ignores the signals that ask a program to end, for its supervisor
hears them and tells it; and it dies with its supervisor, together with all that it has started.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
import msgspec

from taskrunner.authoring.definition import Host
from taskrunner.core.clock import Clock
from taskrunner.core.errors import TaskRunnerError, error_text, error_type_of
from taskrunner.core.events import EVERY, Events
from taskrunner.core.loop import Reply, detach, on_loop_error
from taskrunner.core.settings import Settings
from taskrunner.core.threads import threads
from taskrunner.core.traces import place_of
from taskrunner.runtime.attempt import Here, RunningTask
from taskrunner.runtime.channel import (
    NO_MEMORY,
    TO_CHILD,
    Alarm,
    Broken,
    Channel,
    End,
    Interrupt,
    Ping,
    Pong,
    Ready,
    Run,
    Stop,
    receive_first,
    send_last,
)
from taskrunner.runtime.origin import importing, load
from taskrunner.runtime.watchdog import Watchdog
from taskrunner.runtime.watched import unbegun
from taskrunner.storage.engine import Refused, Unit
from taskrunner.storage.remote import RemoteEngine
from taskrunner.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import Task
    from taskrunner.runtime.channel import ToChild
    from taskrunner.runtime.watched import Reason
    from taskrunner.storage.engine import Outcome, Statement

SHOW_PROGRESS = 0.25
"""Seconds between two writes of the progress and the log that no step has carried along."""


class Runner(Host, Protocol):
    """The app's runner, as its child process needs it."""

    @property
    def definitions(self) -> Mapping[str, TaskDefinition[..., Any]]:
        """Its tasks by name."""
        ...

    def in_child(self, store: Store, settings: Settings) -> AbstractAsyncContextManager[object]:
        """Be open on this store, for as long as the block runs; it gives what the lifespan gives."""
        ...


def main(descriptor: int, lifeline: int) -> None:
    """Be a child: `descriptor` is its end of the wire to its supervisor, and its life hangs on `lifeline`."""
    for each in (descriptor, lifeline):
        os.set_inheritable(each, False)  # noqa: FBT003 - Python's own signature
    end = socket.socket(fileno=descriptor)
    _hang_on(lifeline)
    hello = receive_first(end)
    if hello is None:
        return
    sys.path[:] = [os.fsdecode(entry) for entry in hello.path]
    sys.argv[:] = [os.fsdecode(argument) for argument in hello.argv]
    settings = msgspec.convert(hello.settings, Settings)
    _limit_memory(settings.max_memory)
    try:
        with importing():
            runner: Runner = load(hello.origin)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the supervisor has to hear why, and this one ends
        name = hello.origin.module
        send_last(end, Broken(f"{name!r} cannot be imported: {error_text(error)}{place_of(error) or ''}"))
        os._exit(1)
    try:
        anyio.run(partial(_live, end, runner, settings, Path(os.fsdecode(hello.db))))
    except* MemoryError:
        _give_up()


def _give_up() -> None:
    """There is no memory left: end at once, without a word, for each takes some."""
    os._exit(NO_MEMORY)


async def _live(end: socket.socket, runner: Runner, settings: Settings, db: Path) -> None:
    on_loop_error(MemoryError, _give_up)
    channel: Channel[ToChild] = Channel(end, TO_CHILD)
    engine = RemoteEngine(db, channel.put)
    child = Child(runner, Store(engine, Clock(), settings), engine, settings, channel)
    async with anyio.create_task_group() as group:
        group.start_soon(channel.pump)
        group.start_soon(child.hear)
        try:
            async with runner.in_child(child.store, settings) as resources:
                await child.work(resources)
        except TaskRunnerError as error:  # the lifespan's
            channel.put(Broken(str(error)))
        await engine.close()
        await channel.drained()
        group.cancel_scope.cancel()


class Child:
    """The bodies that run in this process. It belongs to the event loop."""

    def __init__(
        self, runner: Runner, store: Store, engine: RemoteEngine, settings: Settings, channel: Channel[ToChild]
    ) -> None:
        self.store = store
        self._definitions = runner.definitions
        self._engine = engine
        self._channel = channel
        self._clock = Clock()
        self._host = runner
        self._max_payload = settings.max_payload
        self._here: Here | None = None
        """Where the bodies run, once they may."""
        self._events = Events()
        self._events.on(EVERY, self._tell)
        self._watchdog = Watchdog(self._clock, self._events, settings.grace, lambda _running: None)
        self._running: dict[str, RunningTask] = {}
        self._coming: dict[str, Reason | None] = {}
        """The tasks that are being prepared, and whether they were asked to end meanwhile."""
        self._fault: Reply[Exception] = Reply()
        self._busy = anyio.Event()
        self._stopped = anyio.Event()

    async def hear(self) -> None:
        """Do what the supervisor says, until it hangs up."""
        while messages := await self._channel.receive():
            for message in messages:
                match message:
                    case Run(task):
                        detach(partial(self._keep_or_fail, task))
                    case Interrupt(task_id, attempt, reason):
                        self._interrupt(task_id, attempt, cast("Reason", reason))
                    case Ping():
                        self._channel.put(Pong())
                    case Stop():
                        self._stopped.set()
                    case _:
                        self._engine.hear(message)  # type: ignore[arg-type]  # a Hello comes but once, and first

    async def work(self, resources: object) -> None:
        """Say that this child is there, and run what it is given until it is told to end."""
        self._here = Here(self.store, self._clock, self._host, self._max_payload, resources)
        self._watchdog.start()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._show_progress)
                group.start_soon(self._raise_fault)
                self._channel.put(Ready(list(self._definitions)))
                await self._stopped.wait()
                group.cancel_scope.cancel()
        finally:
            self._watchdog.close()

    async def _keep_or_fail(self, task: Task) -> None:
        try:
            await self._keep(task)
        except Exception as error:  # noqa: BLE001 - a fault of ours, or no memory left: this process ends, and says so
            self._fault.give(error)

    async def _raise_fault(self) -> None:
        raise await self._fault.wait()

    async def _keep(self, task: Task) -> None:
        """Run one attempt, and hand its end over."""
        self._coming[task.id] = None
        definition = self._definitions[task.type]
        try:
            here = cast("Here", self._here)  # nothing is given to a child before it says that it is there
            running = await here.prepare(task, definition)
        except (TaskRunnerError, ValueError, TypeError) as error:  # its rows are odd, or its session is gone
            self._end(task, unbegun(self.store.tasks, task, definition, error), [])
            return
        finally:
            reason = self._coming.pop(task.id, None)
        self._running[task.id] = running
        self._busy.set()
        if reason is not None:
            running.interrupt(reason)
        self._watchdog.add(running, timed=False)
        await running.run()
        self._watchdog.remove(running)
        if self._running.get(task.id) is running:
            del self._running[task.id]
        self._end(task, *running.ending())
        running.let_go()

    def _failure(self, task: Task, error: Exception) -> Statement:
        return self.store.tasks.fail(
            task.fence, error_type=error_type_of(error), error_message=error_text(error), retry_in=None
        )

    def _end(self, task: Task, statement: Statement | None, before: list[Statement]) -> None:
        try:
            self._channel.put(End(task.id, task.attempt, statement, before))
        except Exception as error:  # noqa: BLE001 - a value that no message can hold, as no row could
            self._channel.put(End(task.id, task.attempt, self._failure(task, error), []))

    def _interrupt(self, task_id: str, attempt: int, reason: Reason) -> None:
        running = self._running.get(task_id)
        if running is None and task_id in self._coming:
            self._coming[task_id] = reason
        elif running is not None and running.task.attempt == attempt:
            running.interrupt(reason)

    async def _show_progress(self) -> None:
        while True:
            if not self._running:
                self._busy = anyio.Event()
                await self._busy.wait()
            await anyio.sleep(SHOW_PROGRESS)
            for running in self._running.values():
                if statements := running.take_shown():
                    self._engine.write_soon(Unit(tuple(statements)), partial(self._written, running))

    @staticmethod
    def _written(running: RunningTask, outcome: Outcome) -> None:
        if isinstance(outcome, Refused):
            running.interrupt("lost")

    def _tell(self, fields: Mapping[str, Any]) -> None:
        """Pass an event on; from any thread, also while a body blocks the event loop."""
        self._channel.put_now(Alarm(fields["event"], {key: value for key, value in fields.items() if key != "event"}))


def _hang_on(lifeline: int) -> None:
    """Have this process group end with the supervisor, which holds the other end of this pipe and writes nothing.

    Linux sends the signal itself, whatever this process is doing; elsewhere a thread does, when it gets to run.
    """
    die_with(lifeline)
    threads.get().start("lifeline", partial(_wait_for_its_end, lifeline))  # it may have gone before that, too


def die_with(lifeline: int) -> None:
    """Have Linux kill this process group when nobody holds the other end of this pipe open any more."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _wait_for_its_end(lifeline: int) -> None:
    with suppress(OSError):
        os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def _limit_memory(most: int | None) -> None:
    if most is not None:
        with suppress(ImportError):
            import resource

            _soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
