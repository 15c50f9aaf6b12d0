"""Recovery: a supervisor was killed amid 50 tasks of a conversation of 100 messages. How long until all go on?"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import anyio

from benchmarks.measure import Result
from benchmarks.other import UNFINISHED, other_process, talk, tasks
from benchmarks.sizes import Sizes
from taskrunner import TaskContext, TaskRunner

MESSAGES = 100


async def measure(sizes: Sizes, folder: Path) -> list[Result]:
    """In this process, from the opening of the store; and in a new one, from before Python's start."""
    here = [await _here(folder / f"here {number}.db") for number in range(sizes.recoveries)]
    anew = [await _anew(folder / f"anew {number}.db") for number in range(sizes.recoveries)]
    name = f"recovery, {MESSAGES} messages, {UNFINISHED} tasks"
    return [
        Result(f"{name}, in process", "ms", median(here) * 1_000, durability="full"),
        Result(f"{name}, with Python's start", "ms", median(anew) * 1_000, durability="full"),
    ]


async def _kill_amid(db: Path) -> None:
    """Leave a store whose supervisor was killed while every task was in its fourth step."""
    runner = TaskRunner(db)
    runner.include(tasks)
    async with runner:
        session = await runner.sessions.create(title="long")
        for number in range(MESSAGES):
            await session.add("user" if number % 2 else "assistant", f"message {number}: " + "x" * 200)
        async with other_process(db, "full") as other:
            await other.hear("started")
            bound = talk.options(session_id=session.id)
            for _ in range(UNFINISHED):
                await bound.enqueue()
            for _ in range(UNFINISHED):
                await other.hear("running")


async def _here(db: Path) -> float:
    await _kill_amid(db)
    resumed: list[int] = []
    all_resumed = anyio.Event()
    runner = TaskRunner(db, grace=0)

    @runner.task(name=talk.name)
    async def again(ctx: TaskContext) -> None:
        for number in range(3):
            await ctx.step("part", int, number)
        resumed.append(len(await ctx.session.recent(MESSAGES)))
        if len(resumed) == UNFINISHED:
            all_resumed.set()
        await anyio.sleep_forever()

    began = time.perf_counter()
    async with runner.working(concurrency=UNFINISHED):
        await all_resumed.wait()
        took = time.perf_counter() - began
    assert resumed == [MESSAGES] * UNFINISHED
    return took


async def _anew(db: Path) -> float:
    await _kill_amid(db)
    began = time.perf_counter()
    async with other_process(db, "full") as other:
        await other.hear("started")
        messages = [await other.hear("resumed") for _ in range(UNFINISHED)]
        took = time.perf_counter() - began
    assert messages == [MESSAGES] * UNFINISHED
    return took
