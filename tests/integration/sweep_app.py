"""Tasks that are killed at every commit of theirs; some of them have a fault of their own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from pathlib import Path

import anyio

from taskrunner import Fail, Retry, TaskContext, TaskRunner, Tasks

runner = TaskRunner("production.db", max_losses=3)
elsewhere = Tasks("elsewhere.")


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def append(file: str, text: str) -> int:
    """Write a line, and count them."""
    with Path(file).open("a", encoding="utf-8") as opened:
        opened.write(f"{text}\n")
    return len(Path(file).read_text(encoding="utf-8").splitlines())


@runner.task
async def adds(ctx: TaskContext, n: int) -> int:
    """Take steps, two of them side by side."""
    one = await ctx.step("one", add, n, 1)
    left, right = await asyncio.gather(ctx.step("left", add, one, 1), ctx.step("right", add, one, 2))
    await ctx.progress(0.5, "half")
    ctx.log.info("half")
    return await ctx.step("sum", add, left, right)


@runner.task
def plain(ctx: TaskContext, n: int) -> int:
    """Take steps in a thread."""
    return ctx.sync(ctx.step("twice", add, n, n))


@runner.task
async def chat(ctx: TaskContext, text: str) -> list[str]:
    """Add messages, one in a step and one beside them."""
    await ctx.session.add("user", text)
    await ctx.step("answer", _answer, text)
    return [message.content for message in await ctx.session.recent(10)]


async def _answer(text: str) -> str:
    await TaskContext.current().session.add("assistant", text.upper())
    return text.upper()


@runner.task(max_retries=3)
async def comes_back(ctx: TaskContext, file: str) -> str:
    """Succeed two hours later."""
    await ctx.step("once", append, file, "once")
    if ctx.task.retry_count < 2:
        raise Retry(after="1h")
    return f"{ctx.task.retry_count} retries"


@runner.task
async def parent(ctx: TaskContext, file: str) -> str:
    """Leave a task to others."""
    return await ctx.step("enqueue", _enqueue, file)


async def _enqueue(file: str) -> str:
    key = TaskContext.current().idempotency_key
    await child.options(idempotency_key=key).enqueue(file)
    return "done"


@runner.task
async def child(ctx: TaskContext, file: str) -> None:
    """Write a line, by a step that can be repeated."""
    await ctx.step("write", Path(file).write_text, "child\n")


@runner.task
async def refuses(ctx: TaskContext) -> None:
    """Fail for good, after a step."""
    await ctx.step("try", add, 1, 1)
    raise Fail("no money")


@runner.task
async def leaks(ctx: TaskContext, file: str) -> int:
    """Write a line outside of any step: a mistake."""
    count = append(file, "again")
    await ctx.step("rest", add, 1, 1)
    return count


@runner.task
async def gambles(ctx: TaskContext) -> int:
    """Name a step by chance: a mistake."""
    return await ctx.step(f"step {random.random()}", add, 1, 1)


@runner.task
async def gambles_aside(ctx: TaskContext) -> int:
    """Name a step by chance where nobody counts the turns: a mistake that only its repetition tells of."""
    await asyncio.gather(_charge(ctx))
    return await ctx.step("rest", add, 1, 2)


async def _charge(ctx: TaskContext) -> None:
    await ctx.options(key=str(random.random())).step("charge", add, 1, 1)


@runner.task
async def never_ends() -> None:
    """Wait for what never comes."""
    print("still here", flush=True)  # noqa: T201 - it is to be seen in the error
    await anyio.sleep_forever()


@runner.task
async def kills_itself() -> None:
    """Take its process along."""
    os.kill(os.getpid(), signal.SIGKILL)


@runner.task
async def dies_once(ctx: TaskContext) -> int:
    """Take its process along, the first time."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return await ctx.step("one", add, 1, 1)


@elsewhere.task
async def far(ctx: TaskContext) -> int:
    """Take a step, in a runner of several."""
    return await ctx.step("one", add, 1, 1)


runner.include(elsewhere)


def with_thread() -> None:
    """Start what no fork takes along."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
