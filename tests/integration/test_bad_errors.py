"""Errors that cannot be stored as they are: the task fails with bounded, safe text, and the next one runs."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from taskrunner import TaskContext, TaskFailed
from tests.integration.machine import quick


class TwoArguments(Exception):
    """It cannot be rebuilt from its `args`."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")
        self.lock = threading.Lock()


class Mute(Exception):
    """Its text cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Lying(Exception):
    """Its text is no text."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - that is the point


def chained(depth: int) -> Exception:
    """An error with a long chain of causes."""
    error: Exception = ValueError("the first")
    for number in range(depth):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    return error


def circular() -> Exception:
    """An error that is its own cause's cause."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def noted() -> Exception:
    """An error whose notes are none."""
    error = ValueError("noted")
    error.add_note("a\ud800")
    error.__notes__ = 7  # type: ignore[assignment]
    return error


ERRORS: dict[str, Any] = {
    "two arguments": lambda: TwoArguments("a", "b"),
    "mute": Mute,
    "lying": Lying,
    "group": lambda: ExceptionGroup("all", [ValueError("a"), ExceptionGroup("more", [KeyError("b"), Mute()])]),
    "base group": lambda: BaseExceptionGroup("all", [KeyboardInterrupt()]),
    "chain of 50": lambda: chained(50),
    "circle": circular,
    "10 MB": lambda: ValueError("x" * 10_000_000),
    "surrogate": lambda: ValueError("a\ud800\x00b"),
    "notes": noted,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator exit": GeneratorExit,
    "stop": lambda: StopAsyncIteration("stop"),
    "cancelled": asyncio.CancelledError,
    "recursion": lambda: RecursionError("deep"),
    "memory": MemoryError,
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("where", ["async", "plain", "step", "plain step"])
async def test_any_error_is_kept_as_bounded_safe_text(db: Path, kind: str, where: str) -> None:
    """B27: whatever is raised, the task fails with its type's name and a text that can be shown; the next one runs."""
    runner = quick(db)

    def fail() -> None:
        error = ERRORS[kind]()
        raise error

    async def fail_async() -> None:
        fail()

    if where == "plain":
        runner.task(name="bad", max_retries=0)(fail)
    elif where == "async":
        runner.task(name="bad", max_retries=0)(fail_async)
    else:

        @runner.task(name="bad", max_retries=0)
        async def by_step(ctx: TaskContext) -> None:
            await ctx.step("fail", fail_async if where == "step" else fail)

    @runner.task
    async def next_one() -> int:
        return 1

    async with runner.working():
        handle = await runner.enqueue("bad")
        after = await next_one.enqueue()
        assert await after.result(timeout=5) == 1
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=5)
        info = await handle.info()
    assert len(info.task.error_message or "") < 5_000
    assert len(info.attempts[0].traceback or "") < 10_000
    json.dumps([failed.value.details, failed.value.error_type]).encode()
    (info.task.error_message or "").encode()
    name = type(ERRORS[kind]()).__name__ if kind != "cancelled" else ""
    assert name in f"{failed.value.error_type} {failed.value.details}"
