"""The supervisor in a process of its own: `python -m benchmarks.other DB DURABILITY`. It prints what its bodies see."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from benchmarks.measure import Durability
from taskrunner import TaskContext, TaskRunner, Tasks

UNFINISHED = 50
"""Tasks that a killed supervisor leaves running."""

tasks = Tasks()


@tasks.task
async def arrive(sent: float) -> None:
    """Say how long the way from the call of enqueue to here was, in seconds: the clock is one for all processes."""
    say("arrived", time.perf_counter() - sent)


@tasks.task
async def wait() -> None:
    """Run until it is cancelled, and say when that was."""
    say("waiting")
    try:
        await anyio.sleep_forever()
    finally:
        say("cancelled", time.perf_counter())


@tasks.task
async def talk(ctx: TaskContext) -> None:
    """Come back to a conversation: the recorded steps, the messages, and then a step that never ends."""
    for number in range(3):
        await ctx.step("part", int, number)
    messages = await ctx.session.recent(100)
    say("resumed" if ctx.attempt > 1 else "running", len(messages))
    await ctx.step("long", anyio.sleep_forever)


def say(*words: object) -> None:
    """Print a line at once."""
    print(*words, flush=True)


class Other:
    """A supervisor in another process, and what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def hear(self, word: str) -> float:
        """Wait for a line that begins with this word; the number behind it."""
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).split()
        if not line or line[0].decode() != word:
            message = f"{word!r} was expected of the other process, and it said {line!r}"
            raise RuntimeError(message)
        return float(line[1]) if line[1:] else 0.0

    def cpu(self) -> float:
        """Seconds of the processors that it has used, all its threads together, to the nanosecond."""
        return time.clock_gettime(~self.process.pid << 3 | 2)  # clock_getcpuclockid(3), as Linux numbers them


@asynccontextmanager
async def other_process(db: Path, durability: Durability) -> AsyncIterator[Other]:
    """Start the supervisor, and kill it in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.other", str(db), durability, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Other(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def main(db: str, durability: str) -> None:
    """Be the supervisor."""
    runner = TaskRunner(db, durability="full" if durability == "full" else "normal")
    runner.include(tasks)
    runner.on("supervisor.started", lambda _fields: say("started"))
    await runner.run(concurrency=UNFINISHED)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
