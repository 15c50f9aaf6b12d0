"""The program of the simulated processes: supervisors that run jobs of all shapes, and clients that ask for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from taskrunner import (
    InvalidInput,
    LeaseLost,
    StoreError,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskHandle,
    TaskRunner,
)
from taskrunner.chaos.simulation.machine import Process
from taskrunner.chaos.simulation.world import LEASE, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

SWEEP: Final = 10.0
"""Seconds between two looks of a supervisor: ten times the default, for each look costs real time."""

BUSY: Final = 0.001
"""Seconds that a write waits for another program's lock: real ones, in which nothing moves here."""

CONCURRENCY: Final = 8


def program(world: World, process: Process) -> TaskRunner:
    """The runner of one process."""
    runner = TaskRunner(
        world.db, lease=LEASE, sweep=SWEEP, grace=5, max_retries=3, durability="normal", busy_timeout=BUSY
    )
    _Jobs(world, process).define(runner)
    runner.on("*", world.hears)
    return runner


async def supervise(world: World, process: Process) -> None:
    """Be a supervisor, until the process is asked to end."""
    runner = program(world, process)
    with runner.clocked(process.clock):
        while True:
            try:
                async with runner.working(concurrency=CONCURRENCY):
                    await process.asked_to_end.wait()
            except StoreError as error:  # as whoever starts a service again
                world.witness("crashed", str(error))
                world.counts["supervisors that gave up"] += 1
                await asyncio.sleep(1)
            if process.ending:
                return


class Refusal(Exception):
    """What a step raises, so that it is tried again."""


class _Jobs:
    """Jobs whose shape follows from their key."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def define(self, runner: TaskRunner) -> None:
        """Have the runner know them."""
        runner.task(wait=2, max_losses=20)(self._as_task("job", self._job))
        runner.task(timeout=25, wait=1, max_retries=2)(self._as_task("hasty", self._hasty))
        runner.task(wait=3, max_retries=1, priority=2, queue="other")(self._as_task("fragile", self._fragile))

    @staticmethod
    def _as_task(
        name: str, body: Callable[[TaskContext, str], Coroutine[Any, Any, list[str]]]
    ) -> Callable[[TaskContext, str], Coroutine[Any, Any, list[str]]]:
        async def task(ctx: TaskContext, key: str) -> list[str]:
            return await body(ctx, key)

        task.__name__ = name
        return task

    async def _job(self, ctx: TaskContext, key: str) -> list[str]:
        """Steps one after the other and beside each other, a message, progress and lines of the log."""
        shape = Random(key)
        values = [await self._taken(ctx, "plan", pace=shape.random())]
        for number in range(shape.randrange(4)):
            values.append(await self._taken(ctx, f"search {number}", pace=shape.expovariate(0.06)))
            if shape.random() < 0.3:
                await ctx.progress((number + 1) / 5, "searching")
                ctx.log.info("searched", number=number)
        if ctx.task.session_id is not None:
            await self._say(ctx, key)
        if shape.random() < 0.4:
            sides = (self._taken(ctx, "merge", side, pace=shape.expovariate(0.1)) for side in ("left", "right"))
            values += await asyncio.gather(*sides)
        if shape.random() < 0.2:
            values.append(ctx.uuid())
            await asyncio.sleep(shape.expovariate(0.1))
        return [*values, await self._taken(ctx, "report", pace=0.1)]

    async def _hasty(self, ctx: TaskContext, key: str) -> list[str]:
        """It may take longer than its timeout, and then cleans up."""
        shape = Random(key)
        try:
            values = [await self._taken(ctx, "plan", pace=shape.expovariate(0.2))]
            await asyncio.sleep(shape.expovariate(0.06))
            return [*values, await self._taken(ctx, "report", pace=shape.expovariate(0.1))]
        finally:
            self._world.witness("leave", ctx.task.id, ctx.attempt)

    async def _fragile(self, ctx: TaskContext, key: str) -> list[str]:
        """A step that fails now and then, tried again by itself or by another attempt."""
        shape = Random(key)
        values = [await self._taken(ctx, "plan", pace=0.05)]
        odds = shape.random()

        async def fetch(pace: float) -> str:
            self._world.begins(ctx.task.id, ctx.task.history_id, ("fetch", ""), ctx.attempt)
            await asyncio.sleep(pace)
            if self._process.random.random() < odds:
                raise Refusal
            return self._value()

        retries = ctx.options(max_retries=1, wait=1, timeout=20)
        value: str = await retries.step("fetch", fetch, shape.expovariate(0.5))
        self._world.stored(ctx.task.id, ctx.task.history_id, ("fetch", ""), ctx.attempt, value)
        return [*values, value]

    async def _taken(self, ctx: TaskContext, name: str, key: str = "", *, pace: float) -> str:
        """Take a step, and witness that it began, and that it is recorded."""
        task, history, label = ctx.task.id, ctx.task.history_id, (name, key)

        async def effect(pace: float) -> str:
            self._world.begins(task, history, label, ctx.attempt)
            await asyncio.sleep(pace)
            return self._value()

        def plain_effect(_pace: float) -> str:
            self._world.begins(task, history, label, ctx.attempt)
            return self._value()

        fn = plain_effect if name == "plan" else effect
        try:
            value: str = await ctx.options(key=key or None).step(name, fn, pace)
        except LeaseLost:
            self._world.witness("refused", task, name, key, ctx.attempt)
            self._world.counts["writes of zombies that were refused"] += 1
            raise
        self._world.stored(task, history, label, ctx.attempt, value)
        return value

    def _value(self) -> str:
        """What names this very run of a step."""
        self._process.runs += 1
        return f"{self._process.pid}.{self._process.runs}"

    async def _say(self, ctx: TaskContext, key: str) -> None:
        try:
            message = await ctx.session.add("user", key)
        except LeaseLost:
            self._world.counts["writes of zombies that were refused"] += 1
            raise
        self._world.said(message.id, key)


class Client:
    """Who asks for jobs, with keys of its own: what it does not hear of, it asks for again."""

    def __init__(self, world: World, process: Process, pace: float) -> None:
        self._world = world
        self._process = process
        self._random = process.random
        self._pace = pace
        self._runner = program(world, process)

    async def live(self) -> None:
        """Ask, until the faults are over."""
        with self._runner.clocked(self._process.clock):
            async with self._runner:
                while not self._world.calm:
                    await asyncio.sleep(self._random.expovariate(1 / self._pace))
                    try:
                        await self._act()
                    except StoreError as error:
                        self._world.witness("unknown", f"{type(error).__name__}: {error}")
                        self._world.counts["calls with an unknown end"] += 1

    async def _act(self) -> None:
        chance = self._random.random()
        known = list(self._world.keys)
        unheard = [key for key in self._world.asked if key not in self._world.keys]
        if unheard:
            await self._enqueue(unheard[0])
        elif chance < 0.7 or not known:
            kind = self._random.choice(("job", "job", "hasty", "fragile"))
            self._world.asked.append(f"{kind} {len(self._world.asked)}")
            await self._enqueue(self._world.asked[-1])
        elif chance < 0.8:
            await self._enqueue(self._random.choice(known[-20:]))
        else:
            handle = TaskHandle[Any](self._runner, self._world.keys[self._random.choice(known[-20:])])
            await self._touch(handle, chance)

    async def _touch(self, handle: TaskHandle[Any], chance: float) -> None:
        if chance < 0.87:
            how = await handle.cancel("not wanted any more")
            self._world.cancelled(handle.id, how)
            self._world.counts[f"cancels: {how}"] += 1
        elif chance < 0.94:
            cancelled = self._world.cancels.get(handle.id)
            self._world.again(handle.id)  # who dies on the way does not know whether it is
            try:
                await handle.retry()
            except InvalidInput:
                if cancelled is not None:
                    self._world.cancels[handle.id] = cancelled
            else:
                self._world.counts["retries by hand"] += 1
        else:
            try:
                result = await handle.result(timeout=20)
            except (TaskFailed, TaskCancelled, TimeoutError) as error:
                self._world.witness("heard", handle.id, type(error).__name__)
            else:
                self._world.witness("heard", handle.id, str(result))
                self._world.counts["results that were waited for"] += 1

    async def _enqueue(self, key: str) -> None:
        """Ask for a job under its key; it is acknowledged when this returns."""
        shape = Random(f"{key} options")
        definition = self._runner.definitions[key.partition(" ")[0]]
        delay = shape.choice((None, None, None, shape.uniform(1, 90)))
        session = await self._session() if shape.random() < 0.2 else None
        handle = await definition.options(
            idempotency_key=key, session_id=session, delay=delay, priority=shape.choice((None, 1, 9))
        ).enqueue(key=key)
        self._world.witness("enqueued", key, handle.id)
        self._world.acknowledged(key, handle.id)

    async def _session(self) -> str:
        if self._world.session is None:
            self._world.session = (await self._runner.sessions.create(title="talk")).id
        return self._world.session


async def ask(world: World, process: Process, pace: float) -> None:
    """Be a client that asks for something every `pace` seconds."""
    while not world.calm:
        with suppress(StoreError):  # it could not open the store
            await Client(world, process, pace).live()
