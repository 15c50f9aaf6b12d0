"""A runner on a temporary file: with a clock that stands still, or by the machine's own."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from taskrunner.app import TaskRunner
from taskrunner.authoring.handle import TaskHandle
from taskrunner.authoring.listing import MAX_LIST
from taskrunner.core.clock import Clock
from taskrunner.core.durations import Duration, after, aware, seconds
from taskrunner.core.errors import NotOpen
from taskrunner.core.states import TERMINAL
from taskrunner.core.waiting import waits_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from taskrunner.authoring.definition import BoundTask, TaskDefinition, Tasks

P = ParamSpec("P")
R = TypeVar("R")

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""Where a harness's clock stands unless it is told."""


class StillClock(Clock):
    """A wall clock that stands still until it is moved. Leases and timeouts go on by the machine's own clock."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def now(self) -> datetime:
        """Where it stands."""
        return self._now

    def move(self, duration: float) -> None:
        """Go on by `duration` seconds."""
        self._now = after(self._now, duration)


class Harness:
    """A runner on a temporary file, with a clock that stands still until it is told to move."""

    def __init__(self, runner: TaskRunner, clock: StillClock) -> None:
        self.runner = runner
        self._clock = clock

    @property
    def now(self) -> datetime:
        """Where the clock stands."""
        return self._clock.now()

    async def advance(self, duration: Duration, /) -> None:
        """Move the clock (seconds, or like "3d"), then work until nothing is due.

        Raises:
            InvalidInput: not a duration, or a negative one.
        """
        self._clock.move(seconds(duration, "duration", zero=True))
        await self.drain()

    async def drain(self) -> int:
        """Work until nothing is running and nothing is due; the number of tasks that ended."""
        return await self.runner.drain()

    async def call(self, bound: BoundTask[R], /) -> R:
        """Enqueue a task, work until nothing is due, and return its result.

        Raises:
            TaskFailed: it failed.
            TaskCancelled: it was cancelled.
            TimeoutError: it has not ended: it waits for a time that `advance` has to move the clock to, or for more.
        """
        handle = await self.runner.enqueue(bound)
        await self.drain()
        task = await handle.task()
        if task.status not in TERMINAL:
            waits = ", ".join(waits_for(task, await self.runner.store.queues.all(), self.now))
            message = f"task {task.type} has not ended, though all that is due has run: it waits for {waits}"
            raise TimeoutError(message)
        return await handle.result()

    async def enqueued(self, task: TaskDefinition[P, R, Any], /) -> list[TaskHandle[R]]:
        """The handles of all tasks of this type, ended or not, in the order in which they were enqueued."""
        handles: list[TaskHandle[R]] = []
        last: str | None = None
        while page := await self.runner.tasks.list(type=task.name, limit=MAX_LIST, after=last):
            handles += [TaskHandle(self.runner, each.id, task.signature.returns) for each in page]
            last = page[-1].id
        return handles[::-1]


@asynccontextmanager
async def temp_runner(*tasks: Tasks, **settings: Any) -> AsyncIterator[TaskRunner]:  # noqa: ANN401 - a runner's own
    """A runner with these tasks, working on a temporary file by the machine's own clock.

    `settings` are those of `TaskRunner`. The file is removed in the end.
    """
    with TemporaryDirectory(prefix="taskrunner-") as folder:
        runner = TaskRunner(Path(folder) / "test.db", **settings)
        for each in tasks:
            runner.include(each)
        async with runner.working():
            yield runner


@asynccontextmanager
async def harness(runner: TaskRunner, /, *, now: datetime | None = None) -> AsyncIterator[Harness]:
    """Put a program's own runner on a temporary file, with a clock that stands still at `now` (default: START).

    Nothing works by itself: `advance` and `drain` do. The runner is as it was in the end.

    Raises:
        InvalidInput: `now` has no time zone.
        NotOpen: the runner is open already, on its own store.
    """
    if runner.is_open:
        message = "the runner is open already, on its own store: a harness opens it on another"
        raise NotOpen(message)
    clock = StillClock(START if now is None else aware(now, "now"))
    with (
        TemporaryDirectory(prefix="taskrunner-") as folder,
        runner.override(db=Path(folder) / "test.db", processes=0),  # a child has the machine's clock
        runner.clocked(clock),
    ):
        async with runner:
            yield Harness(runner, clock)
