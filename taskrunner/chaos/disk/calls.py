"""Every public call of a client, each about a store that has what it needs, and a job that makes those of a task."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import anyio

from taskrunner.app import TaskRunner
from taskrunner.authoring.context import TaskContext
from taskrunner.chaos.disk.verbs import SeededClock, World
from taskrunner.core.errors import StoreError
from taskrunner.resources.sessions import Session

STEPS: Final = 3
"""Steps of the job."""

Call: TypeAlias = Callable[[TaskRunner, World], Awaitable[object]]


@asynccontextmanager
async def opened(db: Path, seed: int) -> AsyncIterator[TaskRunner]:
    """A runner with a still clock, whose ids come from the seed."""
    runner = _runner(db)
    with runner.clocked(SeededClock(seed)):
        async with runner:
            yield runner


def _runner(db: Path) -> TaskRunner:
    runner = TaskRunner(db, lease=2, heartbeat=0.3, sweep=0.1, grace=0.2, busy_timeout=0.1)

    @runner.task(name="later")
    async def later(size: int = 0) -> int:
        await anyio.lowlevel.checkpoint()
        return size

    return runner


async def _many(runner: TaskRunner, _world: World) -> object:
    later = runner.definitions["later"]
    return await runner.enqueue_many([later.bind(size) for size in range(20)])


async def _add(runner: TaskRunner, world: World) -> object:
    return await (await runner.sessions.get(world.session_id)).add("user", "hello")


async def _recent(runner: TaskRunner, world: World) -> object:
    return await (await runner.sessions.get(world.session_id)).recent(5)


WRITES: Final[dict[str, Call]] = {
    "enqueue": lambda runner, _: runner.enqueue("later", {}),
    "enqueue_many": _many,
    "cancel": lambda runner, world: runner.handle(world.first.id).cancel("enough"),
    "retry": lambda runner, world: runner.handle(world.failed).retry(),
    "pause": lambda runner, _: runner.pause("default"),
    "sessions.create": lambda runner, _: runner.sessions.create(title="new"),
    "session.add": _add,
}
READS: Final[dict[str, Call]] = {
    "tasks.get": lambda runner, world: runner.tasks.get(world.first.id),
    "tasks.list": lambda runner, _: runner.tasks.list(),
    "handle.info": lambda runner, world: runner.handle(world.first.id).info(),
    "handle.status": lambda runner, world: runner.handle(world.first.id).status(),
    "sessions.list": lambda runner, _: runner.sessions.list(),
    "session.recent": _recent,
    "read": lambda runner, _: runner.read("SELECT count(*) FROM tasks"),
}


class Job:
    """A job that takes steps, tells of its progress, logs and talks; and what it knows to have happened."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.runner = _runner(db)
        self.runner.task(name="job", max_retries=0)(self.body)
        self.session_id = ""
        self.runs: Counter[int] = Counter()
        self.again: list[int] = []
        """Steps that were run again after they had returned."""
        self._returned: set[int] = set()

    async def begin(self) -> str:
        """Store the task; its id."""
        async with self.runner:
            self.session_id = (await self.runner.sessions.create(title="talk")).id
            return (await self.runner.enqueue("job", {})).id

    async def body(self, ctx: TaskContext) -> int:
        """The job's own code."""
        session = await self._session()
        for number in range(STEPS):
            await ctx.step(f"step {number}", self.work, number)
            self._returned.add(number)
            await ctx.progress((number + 1) / STEPS, f"step {number}")
            ctx.log.info("done", number=number)
            await session.add("assistant", f"step {number}")
        return STEPS

    async def _session(self) -> Session:
        while True:
            with suppress(StoreError):  # a look that has failed is made again
                return await self.runner.sessions.get(self.session_id)
            await anyio.sleep(0.01)

    async def work(self, number: int) -> str:
        """A step."""
        await anyio.lowlevel.checkpoint()
        self.runs[number] += 1
        if number in self._returned:
            self.again.append(number)
        return "x" * 500
