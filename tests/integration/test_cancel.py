"""Cancelling: pending at once, running with grace, and never completed once it was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import Retry, TaskCancelled, TaskContext, TaskNotFound, TaskRunner
from tests.integration.machine import EffectLog, Heard, program, quick, sql, until


async def test_a_pending_task_is_cancelled_at_once(db: Path) -> None:
    """B35: any client can, without a worker anywhere; also one that waits for its moment."""
    runner = quick(db)

    @runner.task
    async def one() -> None: ...

    async with runner:
        for options in (one.options(), one.options(delay="1h")):
            handle = await options.enqueue()
            assert await handle.cancel("not needed") == "cancelled"
            with pytest.raises(TaskCancelled) as cancelled:
                await handle.result(timeout=1)
            assert cancelled.value.task_id == handle.id
            task = await handle.task()
            assert (task.status, task.error_message, task.attempt) == ("cancelled", "not needed", 0)
            assert await handle.cancel() == "too_late"
        assert await runner.drain() == 0
        with pytest.raises(TaskNotFound):
            await runner.handle("nobody").cancel()


class Cancelling:
    """A task that is cancelled once it says that it is running."""

    def __init__(self, runner: TaskRunner) -> None:
        self.runner = runner
        self.running = anyio.Event()
        self.heard = Heard(runner)
        self.caught: list[BaseException] = []

    async def cancelled(self, bound: Any, *, within: float = 2) -> Any:  # noqa: ANN401 - a bound task, and its row
        """Run it, cancel it, and return its row; it must have ended in time."""
        async with self.runner.working():
            handle = await self.runner.enqueue(bound)
            await self.running.wait()
            began = time.monotonic()
            assert await handle.cancel("enough") == "cancelling"
            assert await handle.cancel("again") == "cancelling"
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=within)
            assert time.monotonic() - began < within
            assert await handle.cancel() == "too_late"
            info = await handle.info()
        assert (info.task.status, info.task.error_message) == ("cancelled", "enough")
        assert [attempt.outcome for attempt in info.attempts] == ["cancelled"]
        assert self.heard.names().count("task.cancelled") == 1
        return info


async def test_a_running_body_is_interrupted(db: Path) -> None:
    """It is woken where it waits, long before its grace is over."""
    scene = Cancelling(quick(db, grace=30))

    @scene.runner.task
    async def waiting() -> None:
        scene.running.set()
        await anyio.sleep(60)

    await scene.cancelled(waiting.bind())


async def test_a_step_is_interrupted_and_not_recorded(db: Path) -> None:
    """The function of a running step is woken too; what it has not returned is not on record."""
    scene = Cancelling(quick(db, grace=30))

    async def long() -> None:
        scene.running.set()
        await anyio.sleep(60)

    @scene.runner.task
    async def one(ctx: TaskContext) -> None:
        await ctx.step("first", str.upper, "x")
        await ctx.options(max_retries=5, wait=0.01).step("long", long)

    info = await scene.cancelled(one.bind())
    assert [step.name for step in info.steps] == ["first"]


async def test_a_plain_body_is_ended_at_its_next_step(db: Path) -> None:
    """A thread cannot be interrupted where it computes: its next wait through `ctx.sync` ends it."""
    scene = Cancelling(quick(db, grace=30))

    @scene.runner.task
    def plain(ctx: TaskContext) -> None:
        scene.running.set()
        while True:
            try:
                ctx.sync(ctx.step("work", time.sleep, 0.02))
            except Exception as error:  # noqa: BLE001 - that is the point
                scene.caught.append(error)

    await scene.cancelled(plain.bind())
    assert scene.caught == []


async def test_a_plain_body_that_computes_is_left_behind(db: Path) -> None:
    """After the grace the row is cancelled; the thread goes on until its next write, and it is reported as leaked."""
    scene = Cancelling(quick(db, grace=0.2))
    wrote: list[BaseException] = []
    done = anyio.Event()

    @scene.runner.task
    def plain(ctx: TaskContext) -> str:
        scene.running.set()
        time.sleep(1)
        try:
            ctx.sync(ctx.step("late", str.upper, "x"))
        except BaseException as error:
            wrote.append(error)
            raise
        finally:
            done.set()
        return "late"

    info = await scene.cancelled(plain.bind(), within=0.8)
    await until(lambda: wrote)
    assert info.steps == []
    assert not isinstance(wrote[0], Exception)
    (leak,) = scene.heard.of("task.leaked")
    assert leak["task_id"] == info.task.id


async def test_clean_up_may_write_and_take_no_steps(db: Path) -> None:
    """A shielded clean-up still writes progress and messages; a new step raises, past every `except Exception`."""
    scene = Cancelling(quick(db))
    async with scene.runner:
        session = await scene.runner.sessions.create(title="talk")

    @scene.runner.task
    async def careful(ctx: TaskContext) -> None:
        try:
            scene.running.set()
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await ctx.session.add("assistant", "I was interrupted")
                await ctx.progress(0.7, "cleaned up")
                try:
                    await ctx.step("new", str.upper, "x")
                except Exception as error:  # noqa: BLE001 - that is the point
                    scene.caught.append(error)

    info = await scene.cancelled(careful.options(session_id=session.id).bind())
    assert scene.caught == []
    assert (info.task.progress, info.task.progress_message) == (0.7, "cleaned up")
    async with scene.runner:
        assert [message.content for message in await session.recent(9)] == ["I was interrupted"]


async def test_recorded_steps_are_replayed_in_clean_up(db: Path) -> None:
    """A body that is asked to end can still read what is recorded: only what is new raises."""
    scene = Cancelling(quick(db))
    seen: list[str] = []

    @scene.runner.task
    async def one(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            await ctx.step("book", str.upper, "x")
            raise Retry(after=0)
        try:
            scene.running.set()
            await anyio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                seen.append(await ctx.step("book", str.upper, "x"))

    async with scene.runner.working():
        handle = await one.enqueue()
        await scene.running.wait()
        assert await handle.cancel() == "cancelling"
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=2)
    assert seen == ["X"]


@pytest.mark.parametrize("how", ["except Exception", "except BaseException", "return", "raise"])
async def test_a_body_that_swallows_its_cancellation_is_not_completed(db: Path, how: str) -> None:
    """B34: whatever it makes of the interruption, the task is cancelled, within the grace; a late result is refused."""
    scene = Cancelling(quick(db, grace=0.3))
    stop = anyio.Event()

    async def swallow() -> str:
        while not stop.is_set():
            try:
                await anyio.sleep(0.05)
            except BaseException as error:
                if how == "raise":
                    raise ValueError("clean-up failed") from error
                if how == "return":
                    return "finished all the same"
                if how == "except Exception":
                    try:
                        raise
                    except Exception as seen:  # noqa: BLE001 - that is the point
                        scene.caught.append(seen)
        return "late"

    @scene.runner.task
    async def stubborn() -> str:
        scene.running.set()
        return await swallow()

    info = await scene.cancelled(stubborn.bind(), within=1.5)
    stop.set()
    await anyio.sleep(0.1)
    assert info.task.output is None
    assert scene.caught == []
    assert len(scene.heard.of("task.leaked")) == (1 if how == "except BaseException" else 0)


async def test_steps_in_a_loop_that_catches_everything_leave_the_loop_free(db: Path) -> None:
    """B34: a body that asks for steps for ever, catching all, neither holds up the event loop nor is completed."""
    scene = Cancelling(quick(db, grace=0.3))
    stop = anyio.Event()

    @scene.runner.task
    async def stubborn(ctx: TaskContext) -> str:
        scene.running.set()
        while not stop.is_set():
            try:
                await ctx.step("again", str.upper, "x")
            except BaseException:  # noqa: BLE001, S112 - that is the point
                continue
        return "late"

    await scene.cancelled(stubborn.bind(), within=1.5)
    assert scene.heard.of("loop.blocked") == []
    stop.set()
    await anyio.sleep(0.05)


async def test_a_body_that_is_left_behind_costs_nothing(db: Path) -> None:
    """B34: once it is fenced and reported nobody interrupts it any more, for each time would be a turn of the loop."""
    scene = Cancelling(quick(db, grace=0.1))
    stop = anyio.Event()
    turns: list[int] = []

    @scene.runner.task
    async def stubborn() -> str:
        scene.running.set()
        while not stop.is_set():
            turns.append(1)
            with contextlib.suppress(BaseException):
                await anyio.sleep(0.05)
        return "late"

    async with scene.runner.working():
        handle = await stubborn.enqueue()
        await scene.running.wait()
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=2)
        await anyio.sleep(0.1)
        before = time.process_time()
        turns.clear()
        await anyio.sleep(1)
        spent = time.process_time() - before
        stop.set()
        await anyio.sleep(0.1)
    assert spent < 0.4
    assert 10 < len(turns) < 30


async def test_a_retry_that_waits_is_cancelled(db: Path) -> None:
    """A cancelled task is not tried again."""
    runner = quick(db)
    ran: list[int] = []

    @runner.task(wait=0.3)
    async def broken(ctx: TaskContext) -> None:
        ran.append(ctx.attempt)
        raise ConnectionError

    async with runner.working():
        handle = await broken.enqueue()
        await until(lambda: ran)
        await anyio.sleep(0.05)
        assert await handle.cancel() == "cancelled"
        await anyio.sleep(0.5)
        assert (await handle.task()).status == "cancelled"
    assert ran == [1]


async def test_an_acknowledged_cancel_wins_every_race(db: Path) -> None:
    """B35: 1,000 tasks of 10 ms, cancelled after 0 to 20 ms: one ending each, and it is the one that `cancel` told."""
    runner = quick(db)
    heard = Heard(runner)
    ran: set[int] = set()
    chance = random.Random(35)

    @runner.task
    async def brief(number: int) -> int:
        ran.add(number)
        await anyio.sleep(0.01)
        return number

    async def race(number: int) -> tuple[str, str, Any]:
        await anyio.sleep(0.005 * number)
        handle = await brief.enqueue(number)
        await anyio.sleep(chance.uniform(0, 0.02))
        answer = await handle.cancel()
        try:
            return answer, "completed", await handle.result(timeout=5)
        except TaskCancelled:
            return answer, "cancelled", (await handle.task()).attempt

    async with runner.working(concurrency=2):
        races = await asyncio.gather(*(race(number) for number in range(1_000)))
    answers = {answer for answer, _, _ in races}
    assert answers == {"cancelled", "cancelling", "too_late"}
    for number, (answer, status, value) in enumerate(races):
        if answer == "too_late":
            assert (status, value) == ("completed", number)
        else:
            assert status == "cancelled"
        if answer == "cancelled":
            assert value == 0
            assert number not in ran
    endings = [event["task_id"] for event in heard.events if event["event"] in {"task.completed", "task.cancelled"}]
    assert len(endings) == len(set(endings)) == sum(value != 0 or status == "completed" for _, status, value in races)
    assert sql(db, "SELECT count(*) FROM tasks WHERE status IN ('pending', 'running')") == [[0]]


SUPERVISOR = """
@runner.task
async def long():
    effect("running")
    await anyio.sleep(60)

anyio.run(runner.run)
"""


async def test_another_process_is_reached(db: Path, tmp_path: Path) -> None:
    """A client cancels a task that runs in another process: it ends within about a sweep."""
    log = EffectLog(tmp_path / "effects")
    runner = quick(db)
    with program(db, log, SUPERVISOR) as supervisor:
        async with runner:
            handle = await runner.enqueue("long")
            await anyio.to_thread.run_sync(log.wait_for, 1)
            began = time.monotonic()
            assert await handle.cancel("from outside") == "cancelling"
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=3)
            assert time.monotonic() - began < 1
        supervisor.kill(15)
        assert supervisor.wait()[0] == 0
