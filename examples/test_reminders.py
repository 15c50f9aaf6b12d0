"""Tests of tasks: on a real store in a temporary file, three days in a moment, and every crash. Run it with `pytest`.

It prints:

    5 passed
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from taskrunner import Retry, TaskContext, TaskFailed, TaskRunner, Tasks
from taskrunner.testing import crash_sweep, harness, temp_runner

# The program: it would stand in a module of its own.
mail = Tasks("mail.")
sent: list[str] = []


async def send(name: str) -> None:
    sent.append(name)


@mail.task(max_retries=2, wait="1h")
async def remind(ctx: TaskContext, name: str, *, patience: int = 0) -> str:
    await ctx.step("send", send, name)
    if ctx.attempt <= patience:
        raise Retry("the mailbox is full")
    return f"reminded {name} at {ctx.now():%d %B %H:%M}"


runner = TaskRunner("mail.db")
runner.include(mail)


# Its tests.
@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


def test_a_reminder_waits_for_its_day() -> None:
    """Nothing happens before its time, and no test waits for it."""

    async def story() -> None:
        async with harness(runner, now=datetime(2030, 5, 1, 9, tzinfo=UTC)) as lab:
            handle = await remind.options(delay="3d").enqueue("Ada")
            assert await lab.drain() == 0
            await lab.advance("3d")
            assert await handle.result() == "reminded Ada at 04 May 09:00"

    asyncio.run(story())


def test_a_retried_reminder_is_sent_once() -> None:
    """The step is recorded: a second attempt does not send the mail again."""

    async def story() -> None:
        async with harness(runner) as lab:
            handle = await remind.enqueue("Ada", patience=1)
            await lab.drain()
            assert await handle.status() == "pending"
            await lab.advance("1h")
            assert await handle.status() == "completed"
            assert sent == ["Ada"]

    asyncio.run(story())


def test_patience_ends() -> None:
    """After two retries the task is failed."""

    async def story() -> None:
        async with harness(runner) as lab:
            handle = await remind.enqueue("Ada", patience=9)
            for _ in range(3):
                await lab.advance("1h")
            with pytest.raises(TaskFailed, match="mailbox is full"):
                await handle.result()

    asyncio.run(story())


def test_one_reminder_for_one_name() -> None:
    """With a unique key the second enqueue finds the first one's task; here by the machine's own clock."""

    async def story() -> None:
        async with temp_runner(mail) as working:
            options = remind.options(unique_key="Ada", delay="200ms")
            first = await working.enqueue(options.bind("Ada"))
            second = await working.enqueue(options.bind("Ada"))
            assert first.id == second.id
            await first.result(timeout="10s")
            assert sent == ["Ada"]

    asyncio.run(story())


def test_a_reminder_survives_every_crash() -> None:
    """Wherever its process is killed, the next one ends it, and sends no recorded mail again."""
    sweep = asyncio.run(crash_sweep(remind.bind("Ada")))
    assert all(str(result).startswith("reminded Ada at ") for result in sweep.results)
    assert sweep.repeated_steps == []
    assert sweep.kills == len(sweep.results) - 2
