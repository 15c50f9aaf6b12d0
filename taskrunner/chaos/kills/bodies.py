"""How a body tells the witness what it does: what the tasks of `jobs` and `gates` share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from taskrunner import LeaseLost, TaskContext
from taskrunner.chaos.kills.witness import write


async def effect(label: str, pace: float, *_stamp: str) -> str:
    """A step that waits on the event loop for `pace` seconds. What it returns names this very run of it."""
    value = _effect(label)
    await asyncio.sleep(pace)
    return value


def plain_effect(label: str, pace: float) -> str:
    """The same, in a thread."""
    value = _effect(label)
    time.sleep(pace)
    return value


def _effect(label: str) -> str:
    ctx = TaskContext.current()
    return f"{os.getpid()}.{write('effect', ctx.task.id, label, ctx.attempt)}"


async def taken(ctx: TaskContext, name: str, *args: Any, label: str = "", key: str | None = None) -> str:  # noqa: ANN401 - as the step takes
    """Take a step, and witness that it returned, and with which value, or that it was refused."""
    label = label or name
    fn = plain_effect if name == "search" else effect
    with refusals(ctx, label):
        value: str = await ctx.options(key=key).step(name, fn, label, *args)
    write("ack", ctx.task.id, label, ctx.attempt, value)
    return value


@contextmanager
def refusals(ctx: TaskContext, label: str) -> Iterator[None]:
    """Witness a write that is refused."""
    try:
        yield
    except LeaseLost:
        write("refused", ctx.task.id, label, ctx.attempt)
        raise


@contextmanager
def body(ctx: TaskContext) -> Iterator[None]:
    """Witness how a body begins and ends."""
    how = "returned"
    write("enter", ctx.task.id, attempt=ctx.attempt)
    try:
        yield
    except BaseException as error:
        how = type(error).__name__
        raise
    finally:
        write("leave", ctx.task.id, attempt=ctx.attempt, text=how)
