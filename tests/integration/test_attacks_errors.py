"""Errors that cannot be told: each costs its own task, and the supervisor goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrunner import TaskContext, TaskFailed
from tests.integration.machine import quick


class MuteError(Exception):
    """Its text is not to be had."""

    def __str__(self) -> str:
        """Leave the program."""
        raise SystemExit


class _Nameless(type):
    def __getattribute__(cls, name: str) -> object:
        if name in {"__qualname__", "__module__"}:
            raise RuntimeError(name)
        return type.__getattribute__(cls, name)


class NamelessError(Exception, metaclass=_Nameless):
    """Its class has no name."""


class BadlyNamedError(Exception):
    """Its class has a name that is no text."""


BadlyNamedError.__qualname__ = "Bad\ud800\x00"


def deep(levels: int) -> ExceptionGroup:
    """A group in a group in a group."""
    group: ExceptionGroup[Exception] = ExceptionGroup("level", [ValueError("the innermost")])
    for _ in range(levels):
        group = ExceptionGroup("level", [group])
    return group


ERRORS: dict[str, Exception] = {
    "mute": MuteError(),
    "nameless": NamelessError("a text"),
    "badly named": BadlyNamedError("a text"),
    "a group of 400 levels": deep(400),
    "a group of 5,000 levels": deep(5_000),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("in_step", [False, True], ids=["body", "step"])
async def test_an_error_that_cannot_be_told_stops_nobody(db: Path, name: str, *, in_step: bool) -> None:
    """The task that raised it is failed, and the next one is run."""
    runner = quick(db, max_retries=0)

    @runner.task
    async def job(ctx: TaskContext) -> None:
        def fail() -> None:
            raise ERRORS[name]

        if in_step:
            await ctx.step("fail", fail)
        fail()

    @runner.task
    async def after() -> int:
        return 1

    async with runner.working():
        handle = await job.enqueue()
        assert await (await after.options(priority=6).enqueue()).result(timeout=5) == 1
        with pytest.raises(TaskFailed):
            await handle.result(timeout=5)
        task = await handle.task()
        assert (task.status, task.losses) == ("failed", 0)
        assert task.error_type
