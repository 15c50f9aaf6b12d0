"""Tasks that wait at a gate until the test opens it, and zombies: bodies that stop their own process on the way.

A gate is a file beside the witness's log, one for each key. Who waits at a gate records nothing more than its first
step, however often its process is killed: `max_losses` is out of reach for that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Final

from taskrunner import TaskContext, Tasks
from taskrunner.chaos.kills.bodies import body, effect, refusals, taken
from taskrunner.chaos.kills.witness import VARIABLE, write

LOOK: Final = 0.01
"""Seconds between two looks at a gate."""

tasks = Tasks()


def gate_of(log: str | Path, key: str) -> Path:
    """The gate at which tasks of this key wait."""
    return Path(f"{log}.{key}.gate")


def _is_open(key: str) -> bool:
    return gate_of(os.environ[VARIABLE], key).exists()


@tasks.task(max_losses=100)
async def waiting(ctx: TaskContext, key: str) -> str:
    """A step, a wait on the event loop until the gate is open, a step."""
    with body(ctx):
        await taken(ctx, "first", 0.0)
        await _wait(ctx, key)
        return await taken(ctx, "last", 0.0)


@tasks.task(max_losses=100)
def plain_waiting(ctx: TaskContext, key: str) -> str:
    """The same as a plain function, which waits in its thread."""
    with body(ctx):
        ctx.sync(taken(ctx, "first", 0.0))
        write("gate", ctx.task.id, attempt=ctx.attempt)
        while not _is_open(key):
            time.sleep(LOOK)
        return ctx.sync(taken(ctx, "last", 0.0))


async def _wait(ctx: TaskContext, key: str) -> None:
    write("gate", ctx.task.id, attempt=ctx.attempt)
    while not _is_open(key):  # noqa: ASYNC110 - it looks for a file
        await asyncio.sleep(LOOK)


@tasks.task(max_losses=3)
async def guilty(ctx: TaskContext, how: str) -> None:
    """Ends its process each time that it runs, and records nothing."""
    with body(ctx):
        write("kill", text="guilty")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)


# ── zombies ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stop(ctx: TaskContext, place: str, wanted: str) -> None:
    """Stop this process here, in its first attempt, if this is the place."""
    if ctx.attempt == 1 and place == wanted:
        write("stop", ctx.task.id, attempt=ctx.attempt, text=place)
        os.kill(os.getpid(), signal.SIGSTOP)


async def stopping_effect(label: str, wanted: str) -> str:
    """A step whose process is stopped when its work is done and nothing of it is recorded."""
    value = await effect(label, 0.0)
    _stop(TaskContext.current(), "step", wanted)
    return value


@tasks.task
async def zombie(ctx: TaskContext, key: str, stop_at: str) -> str:
    """Stops its process at the place named; the next attempt waits at the gate before it writes anything."""
    with body(ctx):
        await taken(ctx, "first", 0.0)
        if ctx.attempt > 1:
            await _wait(ctx, key)
        if stop_at == "progress":
            await ctx.progress(0.5, "half-way")
        _stop(ctx, "progress", stop_at)
        if stop_at == "progress":
            await asyncio.sleep(0.4)  # time for the progress to be written by itself
        with refusals(ctx, "stopped"):
            await ctx.step("stopped", stopping_effect, "stopped", stop_at)
        _stop(ctx, "message", stop_at)
        with refusals(ctx, "message"):
            await ctx.session.add("user", f"attempt {ctx.attempt}")
        _stop(ctx, "failure", stop_at)
        if stop_at == "failure" and ctx.attempt == 1:
            raise RuntimeError("a failure that nobody may hear of")
        _stop(ctx, "completion", stop_at)
        return "done"


@tasks.task
def plain_zombie(ctx: TaskContext, key: str, stop_at: str) -> str:
    """Stops its process from its thread, before the step that is named."""
    with body(ctx):
        ctx.sync(taken(ctx, "first", 0.0))
        if ctx.attempt > 1:
            ctx.sync(_wait(ctx, key))
        _stop(ctx, "plain", stop_at)
        with refusals(ctx, "stopped"):
            ctx.sync(ctx.step("stopped", effect, "stopped", 0.0))
        return "done"
