"""A step's own options: how often, how long, after which errors; and what passes through them."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from taskrunner import Fail, Retry, StepFailed, TaskContext
from tests.integration.machine import ended, quick


async def test_a_step_is_tried_again_as_its_options_say(db: Path) -> None:
    """`max_retries` tries more after the errors of `retry`, `wait` between them; other errors fail at once."""
    runner = quick(db)
    tries: list[tuple[str, float]] = []

    async def flaky(name: str, kind: type[Exception], fails: int) -> str:
        tries.append((name, time.monotonic()))
        if sum(1 for tried, _ in tries if tried == name) <= fails:
            raise kind(name)
        return name

    @runner.task
    async def steps(ctx: TaskContext) -> list[str]:
        careful = ctx.options(retry=ConnectionError, wait=0.1, max_retries=2)
        got = [await careful.step("a", flaky, "a", ConnectionResetError, 2)]
        for name, fails, kind in (("b", 3, ConnectionError), ("c", 1, ValueError)):
            try:
                await careful.step(name, flaky, name, kind, fails)
            except StepFailed as failure:
                got.append(failure.error_type)
        return got

    task = await ended(runner, steps.bind())
    assert task.output == ["a", "ConnectionError", "ValueError"]
    assert [name for name, _ in tries] == ["a", "a", "a", "b", "b", "b", "c"]
    assert 0.09 < tries[1][1] - tries[0][1] < 1


async def test_a_try_has_its_timeout(db: Path) -> None:
    """`timeout` is of one try: it counts as an error of the step, and is tried again like one."""
    runner = quick(db)
    tries: list[int] = []
    told: list[StepFailed] = []

    async def slow() -> str:
        tries.append(1)
        await anyio.sleep(5 if len(tries) < 3 else 0)
        return "done"

    @runner.task
    async def one(ctx: TaskContext) -> str:
        try:
            await ctx.options(timeout=0.05).step("hang", slow)
        except StepFailed as failure:
            told.append(failure)
        return await ctx.options(timeout="50ms", max_retries=1, wait=0.01).step("again", slow)

    task = await ended(runner, one.bind())
    assert (task.output, len(tries)) == ("done", 3), task.error_message
    assert told[0].error_type == "TimeoutError"
    assert "0.05 seconds" in told[0].details


async def test_retry_and_fail_pass_through_a_step(db: Path) -> None:
    """What a step's function says of the whole task is not wrapped, and not tried again by the step's own options."""
    runner = quick(db)
    ran: list[str] = []

    def says(error: Exception) -> None:
        ran.append(type(error).__name__)
        raise error

    @runner.task(max_retries=5)
    async def one(ctx: TaskContext) -> None:
        error = Retry("not yet", after=0.01) if ctx.attempt == 1 else Fail("never")
        with pytest.raises(type(error)):
            await ctx.options(max_retries=3, wait=0.01).step("ask", says, error)
        raise error

    task = await ended(runner, one.bind())
    assert (task.status, task.attempt, ran) == ("failed", 2, ["Retry", "Fail"])
    assert task.error_message == "taskrunner.Fail: never"
