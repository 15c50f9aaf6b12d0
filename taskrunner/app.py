"""The front door: a TaskRunner composes the floors below, and delegates to them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import anyio

from taskrunner.authoring.definition import TaskDefinition, Tasks
from taskrunner.authoring.enqueueing import Enqueueing
from taskrunner.authoring.listing import TaskList
from taskrunner.authoring.options import integer, text
from taskrunner.core.durations import Duration, seconds
from taskrunner.core.errors import InvalidInput, NotOpen, StoreError, StoreUnknown
from taskrunner.core.events import Events, Listener
from taskrunner.core.model import JSON
from taskrunner.core.redaction import redaction_of
from taskrunner.core.settings import Settings, read_pyproject, resolve
from taskrunner.resources.sessions import Sessions
from taskrunner.runtime import origin
from taskrunner.runtime.lifespan import checked_lifespan, entered
from taskrunner.runtime.opening import Opening
from taskrunner.runtime.stop_signals import obey_signals
from taskrunner.runtime.supervisor import Supervisor
from taskrunner.runtime.workshop import Workshop
from taskrunner.storage.questions import question
from taskrunner.storage.store import Store

MOST_CONCURRENT = 1_000_000
"""Tasks of one queue that a limit may allow at the same time."""


class TaskRunner(Opening, Tasks, Enqueueing):
    """Tasks with a database: `.tasks` looks at those in it, `.sessions` holds its conversations, once it is open.

    `async with`, `working`, `run`, `drain` and `sync` open it. `db` is a path (default: what TASKRUNNER_DB or
    `[tool.taskrunner]` says). Defaults, checked when it opens: `durability` "full" (survives a power cut; "normal": the
    death of processes), `lease` 30 s, `heartbeat` a third of it, `sweep` 1 s, `grace` 30 s, `busy_timeout` at most 5 s,
    `max_losses` 5, `max_retries` 3, `max_payload` 1 MiB (bytes, or "2MiB"), `keep_finished` for ever; of each child
    (`processes=` of `run`) `max_memory` and `max_tasks_per_child`, without a limit. Durations: 90 or "90s".

    `lifespan` gets the runner and gives an async context manager, whose value is `ctx.resources`: each process that
    runs bodies (a supervisor, or each of its children) enters it before its first claim, and leaves it after its last
    attempt has ended; clients do not.

    `redact` names keys whose values are hidden in logs, events, errors' texts and the command line, such as
    `["password", "*_token"]`; or is a function that gets a JSON value, or a text, and gives what may be seen of it.
    The store keeps the values themselves. SECURITY.md says what is covered, and what is not.
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
        lifespan: Callable[[TaskRunner], AbstractAsyncContextManager[Any]] | None = None,
        redact: Sequence[str] | Callable[[JSON], JSON] = (),
    ) -> None:
        Tasks.__init__(self)
        Opening.__init__(
            self,
            redaction_of(redact),
            db=db,
            durability=durability,
            lease=lease,
            heartbeat=heartbeat,
            sweep=sweep,
            grace=grace,
            max_losses=max_losses,
            max_retries=max_retries,
            max_payload=max_payload,
            busy_timeout=busy_timeout,
            max_memory=max_memory,
            max_tasks_per_child=max_tasks_per_child,
            keep_finished=keep_finished,
            allow_unsafe_mount=allow_unsafe_mount or None,
        )
        self._events = Events()
        self._limits: dict[str, int | None] = {}
        self._lifespan = checked_lifespan(lifespan)
        self._address = self._setup = ""
        self.made_in: str = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001 - the way to ask for a caller
        """The module that made it: where child processes look for it first."""
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

    async def read(
        self,
        sql: str,
        params: Mapping[str, JSON] | None = None,
        /,
        *,
        timeout: Duration = 10,  # noqa: ASYNC109 - the database has to stop, not only the wait for it
    ) -> list[dict[str, JSON]]:
        """The rows of one SELECT on the store, as the file has them: times as texts, JSON as text.

        It cannot write, whatever stands in it. `params` are its `:name` values; `timeout` is how long it may take
        (default 10 s). At most 100,000 rows with 64 MiB of values.

        Raises:
            InvalidInput: it is not one statement that only reads, it cannot be run, or its rows are too many.
            StoreError: it takes too long, or the store cannot be read.
            NotOpen: the runner is not open.
        """
        answer = await self.store.engine.ask(question(sql, params, seconds(timeout, "timeout")))
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    # ── queues ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def limit(self, *, queue: str, concurrency: int | None) -> None:
        """Let at most `concurrency` tasks of a queue run at the same time, over all supervisors of the store.

        Every supervisor of this runner writes it into the store when it starts, where it stays: the last one counts.
        None lifts a limit that an earlier version of the program has set.

        Raises:
            InvalidInput: not the name of a queue, or not a whole number from 1 on.
        """
        most = None if concurrency is None else integer(concurrency, "concurrency", 1, MOST_CONCURRENT)
        self._limits[text(queue, "queue")] = most

    async def pause(self, queue: str, /) -> None:
        """Have all supervisors of the store claim nothing more from a queue; what runs goes on. Durable.

        Raises:
            InvalidInput: not the name of a queue.
            StoreBusy: the store was locked for too long, or its disk is full; nothing was written.
            NotOpen: the runner is not open.
        """
        await self.store.queues.pause(text(queue, "queue"))

    async def resume(self, queue: str, /) -> None:
        """Have supervisors claim from a queue again; harmless when it was not paused. Raises as `pause` does."""
        await self.store.queues.resume(text(queue, "queue"))

    # ── children ─────────────────────────────────────────────────────────────────────────────────────────────────────
    @asynccontextmanager
    async def in_child(self, store: Store, settings: Settings) -> AsyncIterator[Any]:
        """Be open in a child process of a supervisor, on the store that asks it; for the runtime.

        It gives what the lifespan gives.
        """
        self._be_open(store, settings)
        async with entered(self._lifespan, self) as resources:
            yield resources

    def found_at(self, address: str, *, setup: str = "") -> None:
        """Say where child processes find this runner: `module:runner`, or `module:factory`; for the command line.

        `setup` is a function that each of them calls first, written the same way.
        """
        self._address, self._setup = address, setup

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
        async with self, entered(None if home else self._lifespan, self) as resources:
            workshop = Workshop(
                store=self.store,
                definitions=self.definitions,
                settings=given,
                clock=self._clock,
                events=self._events,
                host=self,
                limits=self._limits,
                resources=resources,
                origin=home,
            )
            yield Supervisor(workshop)


@contextmanager
def _lone_errors() -> Iterator[None]:
    """One error leaves as itself: that it came from a task group is nobody's business outside.

    So does the first of several that say the same, as when the store is gone and everybody has met that. Of several of
    the store's, the one leaves that says a write may or may not have happened.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        same = {(type(error), str(error)) for error in errors}
        lone: BaseException = group
        if len(same) == 1:
            lone = errors[0]
        elif all(isinstance(error, StoreError) for error in errors):
            lone = next((error for error in errors if isinstance(error, StoreUnknown)), errors[0])
        raise lone from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _run_in_background(supervisor: Supervisor, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await supervisor.run(task_status=task_status)
