"""Progress: it never falls, it costs little, and the last word counts."""

from __future__ import annotations

from pathlib import Path

import anyio
import structlog
import structlog.testing

from taskrunner import Retry, TaskContext, TaskHandle
from tests.integration.machine import ended, quick, sql, until


async def at_least(handle: TaskHandle[None], fraction: float) -> bool:
    """Whether a task has come that far."""
    return await handle.progress() >= fraction


async def test_it_is_shown_while_the_body_works(db: Path) -> None:
    """Within about a quarter of a second, without any step."""
    runner = quick(db)
    go_on = anyio.Event()

    @runner.task
    async def one(ctx: TaskContext) -> None:
        await ctx.progress(0.25, "a quarter")
        await go_on.wait()

    async with runner.working():
        handle = await one.enqueue()
        await until(lambda: at_least(handle, 0.25), within=1.5)
        task = await handle.task()
        assert (task.progress, task.progress_message) == (0.25, "a quarter")
        go_on.set()
        await handle.result(timeout=5)
        assert await handle.progress() == 1.0


async def test_it_never_falls(db: Path) -> None:
    """Not within an attempt, and not when a replay begins from the start again."""
    runner = quick(db)
    shown: list[float] = []

    @runner.task
    async def one(ctx: TaskContext) -> None:
        handle = runner.handle(ctx.task.id)
        for fraction in (0.1, 0.6, 0.3):
            await ctx.progress(fraction, f"attempt {ctx.attempt}")
            await ctx.step("work", str.upper, "x")
            if ctx.attempt == 2:
                await anyio.sleep(0.3)
            shown.append(await handle.progress())
        if ctx.attempt == 1:
            raise Retry(after=0)

    task = await ended(runner, one.bind())
    assert task.status == "completed", task.error_message
    assert shown == [0.1, 0.6, 0.6, 0.6, 0.6, 0.6]


async def test_a_thousand_words_are_a_few_writes(db: Path) -> None:
    """It is coalesced: a loop may say how far it is as often as it likes."""
    runner = quick(db)

    @runner.task
    async def chatty(ctx: TaskContext) -> None:
        for number in range(5_000):
            await ctx.progress(number / 5_000, f"item {number}")

    async with runner.working():
        handle = await chatty.enqueue()
        version = "SELECT token FROM writers"
        ((before,),) = sql(db, version)
        await handle.result(timeout=5)
        ((after,),) = sql(db, version)
    assert after - before < 30


async def test_the_last_word_before_an_error_is_kept(db: Path) -> None:
    """A failed task shows how far it came."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def one(ctx: TaskContext) -> None:
        await ctx.progress(0.4, "before the error\ud800\x00")
        raise ValueError

    task = await ended(runner, one.bind())
    assert (task.progress, task.progress_message) == (0.4, "before the error\\ud800\\x00")


async def test_the_log_knows_the_task(db: Path) -> None:
    """`ctx.log` is a structlog logger that carries id, type and attempt."""
    runner = quick(db)

    @runner.task
    async def one(ctx: TaskContext) -> None:
        ctx.log.info("working", item=3)

    with structlog.testing.capture_logs() as logs:
        task = await ended(runner, one.bind())
    assert {
        "event": "working",
        "item": 3,
        "log_level": "info",
        "task_id": task.id,
        "task_type": "one",
        "attempt": 1,
    } in logs
