"""Schedules after which a replay must still meet what the first attempt has met."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from taskrunner import Fail, NotInStep, StepFailed, StoreBusy, TaskContext
from taskrunner.storage.engine import Rows, Statement
from taskrunner.storage.journal import Journal
from tests.integration.machine import ended, quick


class Payment:
    """Fails the first time that it is asked for."""

    def __init__(self, error: Exception) -> None:
        self.runs = 0
        self._error = error

    def __call__(self) -> str:
        """Pay."""
        self.runs += 1
        if self.runs == 1:
            raise self._error
        return "paid"


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The first write that records a step of this name meets a locked store; the answer tells that it did."""
    write = Journal.write

    def once(name: str) -> list[str]:
        met: list[str] = []

        async def refused(journal: Journal, statements: Sequence[Statement]) -> list[Rows]:
            if not met and any(each.params.get("name") == name for each in statements):
                met.append(name)
                raise StoreBusy
            return await write(journal, statements)

        monkeypatch.setattr(Journal, "write", refused)
        return met

    return once


def again(ctx: TaskContext) -> None:
    """Have the first attempt fail here."""
    if ctx.attempt == 1:
        message = "again"
        raise RuntimeError(message)


async def test_a_caught_failure_outlives_a_write_that_was_given_up(db: Path, busy: Callable[[str], list[str]]) -> None:
    """A failure whose carrying write met a locked store, and was then cancelled, goes with the next write."""
    runner = quick(db)
    pay = Payment(RuntimeError("declined"))
    met = busy("tell")

    @runner.task(max_retries=2, wait=0.01)
    async def job(ctx: TaskContext) -> str:
        took = "paid"
        try:
            await ctx.step("pay", pay)
        except StepFailed:
            took = "declined"
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await ctx.step("tell", lambda: "told")
            await ctx.step("undo", lambda: "undone")
        again(ctx)
        return took

    task = await ended(runner, job.bind())
    assert met
    assert (task.status, task.output, pay.runs) == ("completed", "declined", 1)


async def test_a_value_outlives_a_write_that_was_given_up(db: Path, busy: Callable[[str], list[str]]) -> None:
    """So does a `ctx.uuid()`, before a recorded step may depend on it."""
    runner = quick(db)
    met = busy("tell")

    @runner.task(max_retries=2, wait=0.01)
    async def job(ctx: TaskContext) -> bool:
        value = ctx.uuid()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await ctx.step("tell", lambda: "told")
        kept = await ctx.step("keep", lambda: value)
        again(ctx)
        return kept == value

    task = await ended(runner, job.bind())
    assert met
    assert (task.status, task.output) == ("completed", True)


async def test_no_write_overtakes_the_record_that_another_carries(db: Path, busy: Callable[[str], list[str]]) -> None:
    """While one write tries again to carry a failure, another that may depend on it does not go without it."""
    runner = quick(db)
    pay = Payment(RuntimeError("declined"))
    met = busy("a")

    @runner.task(max_retries=2, wait=0.01)
    async def job(ctx: TaskContext) -> str:
        took = "paid"
        try:
            await ctx.step("pay", pay)
        except StepFailed:
            took = "declined"
        first = asyncio.ensure_future(ctx.step("a", time.sleep, 0.05))
        await ctx.step("b", time.sleep, 0.15)
        if ctx.attempt == 1:
            first.cancel()
        again(ctx)
        await first
        return took

    task = await ended(runner, job.bind())
    assert met
    assert (task.status, task.output, pay.runs) == ("completed", "declined", 1)


async def test_a_refused_write_takes_no_record_with_it(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that the store refuses for a reason of its own carried a failure: others wait until that is known."""
    runner = quick(db)
    pay = Payment(RuntimeError("declined"))
    write = Journal.write

    async def slowly(journal: Journal, statements: Sequence[Statement]) -> list[Rows]:
        if any(each.params.get("name") == "a" for each in statements):
            await anyio.sleep(0.3)
        return await write(journal, statements)

    monkeypatch.setattr(Journal, "write", slowly)

    @runner.task(max_retries=2, wait=0.01)
    async def job(ctx: TaskContext) -> str:
        took = "paid"
        try:
            await ctx.step("pay", pay)
        except StepFailed:
            took = "declined"

        async def answer_nobody() -> None:
            await ctx.session.add("user", "hello", parent_msg_id="nobody")

        a, b = ctx.step("a", answer_nobody), ctx.step("b", time.sleep, 0.1)
        await asyncio.gather(a, b, return_exceptions=True)
        again(ctx)
        return took

    async with runner:
        session = await runner.sessions.create()
        task = await ended(runner, job.options(session_id=session.id).bind())
    assert (task.status, task.output, pay.runs) == ("completed", "declined", 1)


async def test_a_caught_fail_is_raised_again(db: Path) -> None:
    """`Fail` passes through a step, and a body that caught it takes the same branch on replay."""
    runner = quick(db)
    pay = Payment(Fail("declined"))

    @runner.task(max_retries=2, wait=0.01)
    async def job(ctx: TaskContext) -> str:
        took = "paid"
        try:
            await ctx.step("pay", pay)
        except Fail as error:
            took = str(error)
            await ctx.step("undo", lambda: "undone")
        again(ctx)
        return took

    task = await ended(runner, job.bind())
    assert (task.status, task.output, pay.runs) == ("completed", "declined", 1)


async def test_a_step_that_was_called_before_a_value_may_depend_on_it(db: Path) -> None:
    """A step's number is taken when it is called; what it reads, it reads later."""
    runner = quick(db)

    @runner.task(max_retries=2, wait=0.01)
    async def job(ctx: TaskContext) -> bool:
        box: list[str] = []
        pending = ctx.step("keep", lambda: box[0])
        box.append(ctx.uuid())
        kept = await pending
        again(ctx)
        return kept == box[0]

    task = await ended(runner, job.bind())
    assert (task.status, task.output) == ("completed", True)


async def test_a_try_that_was_given_up_adds_no_message(db: Path) -> None:
    """The thread of a try that took too long goes on; what it adds then is not committed with the next try's."""
    runner = quick(db)

    @runner.task
    async def job(ctx: TaskContext) -> None:
        tries: list[int] = []

        def slow() -> None:
            tries.append(len(tries) + 1)
            mine = tries[-1]
            time.sleep(0.4 if mine == 1 else 0.25)
            ctx.sync(ctx.session.add("user", f"try {mine}"))

        await ctx.options(timeout=0.3, max_retries=3, wait=0.01).step("slow", slow)

    async with runner.working():
        session = await runner.sessions.create()
        await (await job.options(session_id=session.id).enqueue()).result(timeout=5)
        assert [message.content for message in await session.recent(10)] == ["try 2"]


async def test_what_a_step_left_running_is_told_that_its_message_is_lost(db: Path) -> None:
    """The step's commit is over: a message that came too late for it is refused, not swallowed."""
    runner = quick(db)

    @runner.task
    async def job(ctx: TaskContext) -> None:
        left: list[asyncio.Task[None]] = []

        async def late() -> None:
            await anyio.sleep(0.1)
            await ctx.session.add("user", "late")

        async def step() -> None:
            left.append(asyncio.create_task(late()))

        await ctx.step("step", step)
        with pytest.raises(NotInStep, match="has ended without this message"):
            await left[0]

    async with runner.working():
        session = await runner.sessions.create()
        await (await job.options(session_id=session.id).enqueue()).result(timeout=5)
        assert await session.recent(10) == []


async def test_many_values_cost_little(db: Path) -> None:
    """Thousands of values that wait for one write do not hold up the event loop."""
    runner = quick(db)

    @runner.task
    async def job(ctx: TaskContext) -> float:
        for _ in range(6_000):
            ctx.random()
        begun = time.monotonic()
        await ctx.step("write", lambda: None)
        return time.monotonic() - begun

    task = await ended(runner, job.bind())
    assert isinstance(task.output, float)
    assert task.output < 2
