"""The front door: a TaskRunner composes the floors below, and delegates to them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import anyio

from taskrunner.authoring.definition import TaskDefinition, Tasks
from taskrunner.authoring.enqueueing import Enqueueing
from taskrunner.authoring.listing import TaskList
from taskrunner.core.bridge import Bridge
from taskrunner.core.clock import Clock
from taskrunner.core.durations import Duration
from taskrunner.core.errors import InvalidInput, NotOpen
from taskrunner.core.events import Events, Listener
from taskrunner.core.loop import LoopRef
from taskrunner.core.settings import Settings, read_pyproject, resolve
from taskrunner.resources.sessions import Sessions
from taskrunner.runtime import origin
from taskrunner.runtime.stop_signals import obey_signals
from taskrunner.runtime.supervisor import Supervisor
from taskrunner.runtime.workshop import Workshop
from taskrunner.storage.store import Store


class TaskRunner(Tasks, Enqueueing):
    """Tasks with a database: `.tasks` looks at those in it, `.sessions` holds its conversations, once it is open.

    `async with`, `working`, `run`, `drain` and `sync` open it. `db` is a path (default: what TASKRUNNER_DB or
    `[tool.taskrunner]` says). Defaults, checked when it opens: `durability` "full" (survives a power cut; "normal": the
    death of processes), `lease` 30 s, `heartbeat` a third of it, `sweep` 1 s, `grace` 30 s, `busy_timeout` at most 5 s,
    `max_losses` 5, `max_retries` 3, `max_payload` 1 MiB (bytes, or "2MiB"), `keep_finished` for ever; of each child
    (`processes=` of `run`) `max_memory` and `max_tasks_per_child`, without a limit. Durations: 90 or "90s".
    """

    def __init__(
        self,
        db: str | Path | None = None,
        /,
        *,
        durability: Literal["full", "normal"] | None = None,
        lease: Duration | None = None,
        heartbeat: Duration | None = None,
        sweep: Duration | None = None,
        grace: Duration | None = None,
        max_losses: int | None = None,
        max_retries: int | None = None,
        max_payload: int | str | None = None,
        busy_timeout: Duration | None = None,
        max_memory: int | str | None = None,
        max_tasks_per_child: int | None = None,
        keep_finished: Duration | None = None,
        allow_unsafe_mount: bool = False,
    ) -> None:
        super().__init__()
        self._code: dict[str, object] = {
            "db": db,
            "durability": durability,
            "lease": lease,
            "heartbeat": heartbeat,
            "sweep": sweep,
            "grace": grace,
            "max_losses": max_losses,
            "max_retries": max_retries,
            "max_payload": max_payload,
            "busy_timeout": busy_timeout,
            "max_memory": max_memory,
            "max_tasks_per_child": max_tasks_per_child,
            "keep_finished": keep_finished,
            "allow_unsafe_mount": allow_unsafe_mount or None,
        }
        self._override: dict[str, object] = {}
        self._clock = Clock()
        self._events = Events()
        self._store: Store | None = None
        self._settings: Settings | None = None
        self._closing: AsyncExitStack | None = None
        self._opened = 0
        self._loop: LoopRef | None = None
        self._is_child = False
        self._address = self._setup = ""
        self._door = anyio.Lock()
        self.sessions = Sessions(lambda: self.store)
        self.tasks = TaskList(self)

    def __repr__(self) -> str:
        return f"<TaskRunner on {self._override.get('db') or self._code['db'] or 'no store named in code'}>"

    # ── define ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def include(self, tasks: Tasks, /, *more: Tasks) -> None:
        """Take in the tasks of other modules.

        Raises:
            InvalidInput: two tasks have one name; nothing is taken in then.
        """
        new = [definition for each in (tasks, *more) for definition in each.definitions.values()]
        names = [definition.name for definition in new]
        for name in names:
            if name in self.definitions or names.count(name) > 1:
                message = f"include: a task named {name!r} is defined already"
                raise InvalidInput(message, path="name")
        for definition in new:
            self._define(definition)

    def _define(self, definition: TaskDefinition[..., Any]) -> None:
        super()._define(definition)
        definition.hosts.append(self)

    def on(self, event: str, listener: Listener, /) -> None:
        """Call `listener` with the fields of every `event`, such as "task.completed"; "*" is every event.

        It is called at once and must not block; news of a blocked loop and of leaked code comes from another thread.

        Raises:
            InvalidInput: there is no such event, or the listener is not a plain function.
        """
        self._events.on(event, listener)

    @contextmanager
    def override(self, *, db: str | Path | None = None, **settings: object) -> Iterator[Self]:
        """Other settings than the code's own, for tests and for programs that start this one; for the next opening."""
        before = self._override
        given = {key: value for key, value in {"db": db, **settings}.items() if value is not None}
        self._override = {**before, **given}
        try:
            yield self
        finally:
            self._override = before

    @contextmanager
    def clocked(self, clock: Clock) -> Iterator[Self]:
        """Another clock for time and chance, for tests and simulations; for the next opening."""
        before, self._clock = self._clock, clock
        try:
            yield self
        finally:
            self._clock = before

    # ── open ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._store is not None

    @property
    def store(self) -> Store:
        """The open store, for handles and doors.

        Raises:
            NotOpen: the runner is not open.
        """
        if self._store is None:
            raise NotOpen
        return self._store

    @property
    def settings(self) -> Settings:
        """The settings as they are in force now, or would be at the next opening.

        Raises:
            InvalidInput: a setting is wrong, or two contradict each other.
        """
        return self._settings or resolve(None, self._override, self._code, os.environ, read_pyproject())

    async def __aenter__(self) -> Self:
        """Open the store as a client: enqueue, look, wait for results. Every opening has its closing.

        Raises:
            StoreError: it cannot be opened; the sentence says why.
            InvalidInput: a setting is wrong, or two contradict each other.
        """
        here = LoopRef()
        if self._loop is not None and self._loop.token != here.token:
            message = "this runner is open in another event loop: use it there, or open another TaskRunner here"
            raise NotOpen(message)
        self._loop = here
        async with self._door:
            if self._opened == 0:
                await self._open(here)
            self._opened += 1
        return self

    async def _open(self, here: LoopRef) -> None:
        origin.refuse_while_importing()
        self._loop = here
        try:
            settings = self.settings
            async with AsyncExitStack() as stack:
                self._store = await stack.enter_async_context(Store.open(settings, self._clock))
                self._closing = stack.pop_all()
            self._settings = settings
        except BaseException:
            self._loop = None
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        """Close the store with the last closing."""
        with anyio.CancelScope(shield=True):
            async with self._door:
                self._opened -= 1
                if self._opened == 0 and self._closing is not None:
                    closing, self._closing = self._closing, None
                    self._store = self._settings = self._loop = None
                    await closing.aclose()

    @asynccontextmanager
    async def in_child(self, store: Store, settings: Settings) -> AsyncIterator[None]:
        """Be open in a child process of a supervisor, on the store that asks it; for the runtime."""
        self._store, self._settings, self._loop = store, settings, LoopRef()
        self._is_child, self._opened = True, 1
        yield

    def found_at(self, address: str, *, setup: str = "") -> None:
        """Say where child processes find this runner: `module:runner`, or `module:factory`; for the command line.

        `setup` is a function that each of them calls first, written the same way.
        """
        self._address, self._setup = address, setup

    @property
    def sync(self) -> Bridge:
        """Awaits from plain code: `runner.sync(research.enqueue("x"))`, or `with runner.sync as wait:` for several.

        In a thread of a program whose event loop has this runner open, it awaits there; else in a loop of its own.
        """
        loop = self._loop if self.is_open else None
        return Bridge(opening=lambda: self) if loop is None else Bridge(loop)

    # ── work ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    @asynccontextmanager
    async def working(
        self, *, concurrency: int | None = None, processes: int | None = None, queues: Sequence[str] | None = None
    ) -> AsyncIterator[Self]:
        """A supervisor in this program, for as long as the block runs; then running tasks have the grace to end.

        When it is cancelled (Ctrl-C, a timeout), they are handed back at once, unharmed. Only `run` obeys SIGTERM.
        `concurrency`: tasks at the same time (default 10); `processes`: in how many child processes, which import the
        program by its name (default 0: here); `queues`: from which it takes them (default: all).

        Raises:
            StoreError: the store cannot be opened or used.
            InvalidInput: child processes could not import this runner and its tasks; the sentence says why.
        """
        error: Exception | None = None
        async with self._supervisor(concurrency, processes, queues) as supervisor:
            with _lone_errors():
                async with anyio.create_task_group() as group:
                    await group.start(_run_in_background, supervisor)
                    try:
                        yield self
                    except Exception as raised:  # noqa: BLE001 - raised again below, not as part of a group
                        error = raised
                    finally:
                        supervisor.stop()
            if error is not None:
                raise error

    async def run(
        self,
        *,
        concurrency: int | None = None,
        processes: int | None = None,
        queues: Sequence[str] | None = None,
        until_idle: bool = False,
    ) -> None:
        """Be the supervisor until SIGTERM or SIGINT: the first drains, a second one hands back at once.

        `until_idle`: also end when nothing is running or due (a retry that waits is not). The rest is as in `working`.
        """
        async with self._supervisor(concurrency, processes, queues) as supervisor:
            with _lone_errors():
                async with anyio.create_task_group() as group:
                    await group.start(obey_signals, supervisor)
                    await supervisor.run(until_idle=until_idle)
                    group.cancel_scope.cancel()

    async def drain(self, *, processes: int | None = None, queues: Sequence[str] | None = None) -> int:
        """Work until nothing is running or due (a retry that waits is not); the number of tasks that ended."""
        async with self._supervisor(None, processes, queues) as supervisor:
            with _lone_errors():
                await supervisor.run(until_idle=True)
            return supervisor.ended

    @asynccontextmanager
    async def _supervisor(
        self, concurrency: int | None, processes: int | None, queues: Sequence[str] | None
    ) -> AsyncIterator[Supervisor]:
        if self._is_child:
            message = "this runner is that of a child process: its supervisor works, and here is only what it gives out"
            raise NotOpen(message)
        chosen = None if queues is None else list(queues)
        with self.override(concurrency=concurrency, processes=processes, queues=chosen):
            given = resolve(None, self._override, self._code, os.environ, read_pyproject())
        home = origin.find(self, self.definitions, self._address, self._setup) if given.processes else None
        async with self:
            workshop = Workshop(
                store=self.store,
                definitions=self.definitions,
                settings=given,
                clock=self._clock,
                events=self._events,
                host=self,
                origin=home,
            )
            yield Supervisor(workshop)


@contextmanager
def _lone_errors() -> Iterator[None]:
    """One error leaves as itself: that it came from a task group is nobody's business outside.

    So does the first of several that say the same, as when the store is gone and everybody has met that.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        same = {(type(error), str(error)) for error in errors}
        raise (errors[0] if len(same) == 1 else group) from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _run_in_background(supervisor: Supervisor, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await supervisor.run(task_status=task_status)
