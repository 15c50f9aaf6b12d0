"""A step's failure: recorded if the body caught it and went on, run again if not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from taskrunner import Retry, StepFailed, TaskContext
from tests.integration.machine import ended, quick

AGAIN = 0.01
"""Seconds."""


class Flaky:
    """A function that fails the first time, and works from then on: a saga must never see both."""

    def __init__(self, delay: float = 0.0) -> None:
        self.ran = 0
        self.delay = delay

    async def __call__(self) -> str:
        """Fail once."""
        self.ran += 1
        await anyio.sleep(self.delay)
        if self.ran == 1:
            raise ConnectionError("the first time")
        return "worked"


async def ok(word: str, delay: float = 0.0) -> str:
    """Work."""
    await anyio.sleep(delay)
    return word


async def test_a_saga_takes_the_same_branch_again(db: Path) -> None:
    """A failure that the body caught is committed with its next step, and raised again after a crash."""
    runner = quick(db)
    charge = Flaky()

    @runner.task
    async def saga(ctx: TaskContext) -> str:
        try:
            paid = await ctx.step("charge", charge)
        except StepFailed:
            paid = await ctx.step("compensate", ok, "compensated")
        if ctx.attempt == 1:
            raise Retry(after=0)
        return paid

    task = await ended(runner, saga.bind())
    assert (task.output, charge.ran) == ("compensated", 1), task.error_message


async def test_a_caught_failure_is_in_the_record_of_a_finished_task(db: Path) -> None:
    """A body that catches and returns has decided as well: `show` tells what failed."""
    runner = quick(db)

    @runner.task
    async def one(ctx: TaskContext) -> str:
        try:
            return await ctx.step("charge", Flaky())
        except StepFailed:
            return "gave up"

    async with runner.working():
        handle = await one.enqueue()
        assert await handle.result(timeout=10) == "gave up"
        (step,) = (await handle.info()).steps
    assert (step.name, step.value, step.error_type) == ("charge", None, "ConnectionError")


async def test_a_failure_that_nobody_caught_is_run_again(db: Path) -> None:
    """It ends the attempt, and the retry tries the step again."""
    runner = quick(db)
    charge = Flaky()

    @runner.task(wait=AGAIN)
    async def one(ctx: TaskContext) -> str:
        await ctx.step("before", ok, "x")
        return await ctx.step("charge", charge)

    task = await ended(runner, one.bind())
    assert (task.output, charge.ran, task.retry_count) == ("worked", 2, 1)


@pytest.mark.parametrize("gap", [-0.03, 0.0, 0.03])
@pytest.mark.parametrize("how", ["gather", "gather and return", "asyncio group", "anyio group"])
async def test_a_failure_beside_other_steps_is_run_again(db: Path, how: str, gap: float) -> None:
    """A sibling's record, written while nobody has caught the failure yet, does not carry it along.

    So the retry runs the failed step again, and not the one that worked, wherever that had come to its record.
    """
    runner = quick(db)
    charge = Flaky(0.05)

    @runner.task(wait=AGAIN)
    async def one(ctx: TaskContext) -> list[str]:
        charged = ctx.step("charge", charge)
        beside = ctx.step("beside", ok, "x", 0.05 + gap)
        if how == "gather":
            return list(await asyncio.gather(charged, beside))
        if how == "gather and return":
            results = await asyncio.gather(charged, beside, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return [str(result) for result in results]
        if how == "asyncio group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(charged), group.create_task(beside)]
            return [task.result() for task in tasks]
        got: list[str] = []

        async def keep(name: str) -> None:
            got.append(await (charged if name == "charge" else beside))

        async with anyio.create_task_group() as branches:
            branches.start_soon(keep, "charge")
            branches.start_soon(keep, "beside")
        return sorted(got)

    task = await ended(runner, one.bind())
    assert sorted(task.output or []) == ["worked", "x"], task.error_message
    assert (charge.ran, task.retry_count) == (2, 1)


@pytest.mark.parametrize("where", ["in the branch", "around the group"])
async def test_a_failure_caught_in_a_branch_stays_caught(db: Path, where: str) -> None:
    """What a branch of a task group decided is on record before the body goes on: a replay decides the same."""
    runner = quick(db)
    charge = Flaky()

    @runner.task
    async def saga(ctx: TaskContext) -> str:
        branches: list[str] = []

        async def branch() -> None:
            try:
                branches.append(await ctx.step("charge", charge))
            except StepFailed:
                if where == "around the group":
                    raise
                branches.append("failed")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch())
        except* StepFailed:
            branches.append("failed")
        decided = await ctx.step("decide", ok, branches[0])
        if ctx.attempt == 1:
            raise Retry(after=0)
        return decided

    task = await ended(runner, saga.bind())
    assert (task.output, charge.ran) == ("failed", 1), task.error_message


async def test_gathered_failures_that_were_caught_stay_caught(db: Path) -> None:
    """`gather(return_exceptions=True)` and a step that depends on it: a replay sees the same failures."""
    runner = quick(db)
    charges = [Flaky(), Flaky(0.02)]

    @runner.task
    async def saga(ctx: TaskContext) -> int:
        results = await asyncio.gather(
            ctx.step("charge", charges[0]),
            ctx.step("beside", ok, "x", 0.04),
            ctx.step("charge", charges[1]),
            return_exceptions=True,
        )
        failed = sum(isinstance(result, StepFailed) for result in results)
        await ctx.step("decide", ok, f"{failed} failed")
        if ctx.attempt == 1:
            raise Retry(after=0)
        return failed

    task = await ended(runner, saga.bind())
    assert (task.output, charges[0].ran, charges[1].ran) == (2, 1, 1), task.error_message


async def test_a_failure_with_text_that_cannot_be_stored(db: Path) -> None:
    """Surrogates, U+0000, ten megabytes, a `__str__` that raises: a step's failure is kept as bounded, safe text."""
    runner = quick(db)

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    errors = [ValueError("a\ud800b"), ValueError("a\x00b"), ValueError("x" * 10_000_000), Mute()]

    def fail(number: int) -> None:
        raise errors[number]

    @runner.task
    async def one(ctx: TaskContext) -> list[str]:
        told = []
        for number in range(len(errors)):
            try:
                await ctx.step("fail", fail, number)
            except StepFailed as failure:
                told.append(failure.details)
        await ctx.step("next", ok, "x")
        if ctx.attempt == 1:
            raise Retry(after=0)
        return told

    task = await ended(runner, one.bind())
    assert task.status == "completed", task.error_message
    surrogate, null, huge, mute = task.output
    assert surrogate == "ValueError: a\\ud800b"
    assert null == "ValueError: a\\x00b"
    assert len(huge) < 5_000
    assert "10,000,012 characters" in huge
    assert "__str__ raised RuntimeError" in mute
