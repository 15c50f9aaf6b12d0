"""Timeouts: of an attempt, enforced whatever its body does."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskContext, TaskFailed
from tests.integration.machine import Heard, ended, quick, until

AGAIN = 0.01
"""Seconds."""


async def test_an_attempt_that_takes_too_long_is_tried_again(db: Path) -> None:
    """A timeout is an error like others: it is retried, and names itself; recorded steps are not run again."""
    runner = quick(db)
    heard = Heard(runner)
    starts: list[float] = []
    steps: list[str] = []

    @runner.task(timeout=0.2, wait=AGAIN, max_retries=3)
    async def slow(ctx: TaskContext) -> str:
        starts.append(time.monotonic())
        await ctx.step("first", steps.append, "ran")
        if ctx.attempt < 3:
            await anyio.sleep(10)
        return "in time"

    task = await ended(runner, slow.bind())
    assert (task.status, task.output, task.retry_count) == ("completed", "in time", 2)
    assert steps == ["ran"]
    assert all(0.19 < later - earlier < 0.6 for earlier, later in pairwise(starts))
    told = heard.of("task.retried")
    assert len(told) == 2
    assert "0.2 seconds" in str(told[0]["error"])


async def test_the_last_timeout_fails_the_task(db: Path) -> None:
    """Its error type is TimeoutError."""
    runner = quick(db)

    @runner.task(timeout="1h", max_retries=0)
    async def slow() -> None:
        await anyio.sleep(10)

    async with runner.working():
        handle = await slow.options(timeout="100ms").enqueue()
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=5)
    assert failed.value.error_type == "TimeoutError"
    assert "0.1 seconds" in failed.value.details


async def test_a_timeout_is_of_one_attempt(db: Path) -> None:
    """Waiting for its turn does not count, and each attempt begins anew."""
    runner = quick(db)

    @runner.task(timeout=0.4, wait=0.3, max_retries=2)
    async def brief(ctx: TaskContext) -> int:
        await anyio.sleep(0.2)
        if ctx.attempt < 3:
            raise ConnectionError
        return ctx.attempt

    async with runner.working(concurrency=1):
        handles = [await brief.enqueue() for _ in range(3)]
        assert [await handle.result(timeout=10) for handle in handles] == [3, 3, 3]


@pytest.mark.parametrize("how", ["except BaseException", "retry helper", "return"])
async def test_a_body_that_swallows_its_timeout_is_fenced(db: Path, how: str) -> None:
    """B34: it has timed out within the grace, its slot is free, it is reported as leaked, its result is refused."""
    runner = quick(db, grace=0.2)
    heard = Heard(runner)
    stop = anyio.Event()
    wrote: list[str] = []

    async def work() -> str:
        await stop.wait()
        return "late"

    @runner.task(timeout=0.2, max_retries=0)
    async def stubborn(ctx: TaskContext) -> str:
        while True:
            try:
                result = await work()
            except BaseException:  # noqa: BLE001 - that is the point
                if how == "return":
                    return "late"
                continue
            try:
                await ctx.step("late", wrote.append, "step")
            except Exception:  # noqa: BLE001 - that is the point
                wrote.append("exception")
            return result

    @runner.task
    async def next_one() -> str:
        return "ran"

    async with runner.working(concurrency=1):
        handle = await stubborn.enqueue()
        after = await next_one.enqueue()
        with pytest.raises(TaskFailed, match="longer than its timeout"):
            await handle.result(timeout=2)
        assert await after.result(timeout=2) == "ran"
        stop.set()
        await anyio.sleep(0.1)
        task = await handle.task()
        assert (task.status, task.output) == ("failed", None)
    assert wrote == []
    assert len(heard.of("task.leaked")) == (0 if how == "return" else 1)


async def test_a_plain_body_is_left_behind(db: Path) -> None:
    """A thread cannot be stopped: its task is retried after the grace, and nothing that it still writes counts."""
    runner = quick(db, grace=0.1)
    heard = Heard(runner)
    release = threading.Event()
    late: list[BaseException | str] = []

    @runner.task(timeout=0.2, wait=AGAIN)
    def plain(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            release.wait(10)
            try:
                late.append(ctx.sync(ctx.step("late", str.upper, "x")))
            except BaseException as error:  # noqa: BLE001 - that is the point
                late.append(error)
        return ctx.attempt

    async with runner.working():
        handle = await plain.enqueue()
        assert await handle.result(timeout=5) == 2
        release.set()
        await until(lambda: late)
        info = await handle.info()
    assert not isinstance(late[0], str | Exception)
    assert info.steps == []
    assert [one.outcome for one in info.attempts] == ["retried", "completed"]
    assert len(heard.of("task.leaked")) == 1


async def test_a_timeout_during_a_plain_step(db: Path) -> None:
    """The body stops waiting for the step's thread at once, and the step is not recorded."""
    runner = quick(db, grace=30)
    release = threading.Event()

    @runner.task(timeout=0.2, max_retries=0)
    async def one(ctx: TaskContext) -> None:
        await ctx.step("slow", release.wait, 10)

    async with runner.working():
        handle = await one.enqueue()
        with pytest.raises(TaskFailed):
            await handle.result(timeout=2)
        release.set()
        assert (await handle.info()).steps == []


async def test_an_error_of_the_bodys_own_timeout_is_its_own(db: Path) -> None:
    """`asyncio.timeout`, `anyio.fail_after` and `wait_for` inside a body work as they do elsewhere."""
    runner = quick(db)

    @runner.task(timeout=30, max_retries=0)
    async def one(ctx: TaskContext) -> list[str]:
        got = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ctx.step("a", asyncio.sleep, 5)
        got.append("asyncio")
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await ctx.step("b", asyncio.sleep, 5)
        got.append("anyio")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.step("c", asyncio.sleep, 5), 0.05)
        got.append("wait_for")
        got.append(await ctx.step("d", str.upper, "x"))
        return got

    task = await ended(runner, one.bind())
    assert task.output == ["asyncio", "anyio", "wait_for", "X"], task.error_message
