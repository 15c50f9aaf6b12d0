"""`handle.retry()`: a task that has ended goes on from its recorded steps, with code that was mended meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrunner import DuplicateTask, InvalidInput, TaskContext, TaskFailed, TaskNotFound
from tests.integration.machine import quick
from tests.stores import sql


async def test_mended_code_goes_on(db: Path) -> None:
    """What failed for good is run again when its code is mended: the recorded steps are not, and results are kept."""
    ran: list[str] = []
    broken = quick(db)

    def step(name: str) -> str:
        ran.append(name)
        return name

    @broken.task(max_retries=0, name="trip")
    async def trip(ctx: TaskContext) -> str:
        await ctx.step("fly", step, "fly")
        raise ValueError("no hotel")

    async with broken.working():
        handle = await trip.enqueue()
        with pytest.raises(TaskFailed, match="no hotel"):
            await handle.result(timeout=5)
    mended = quick(db)

    @mended.task(max_retries=0, name="trip")
    async def trip_again(ctx: TaskContext) -> str:
        return f"{await ctx.step('fly', step, 'fly')} and {await ctx.step('sleep', step, 'sleep')}"

    async with mended.working():
        again = trip_again.handle(handle.id)
        await again.retry()
        assert await again.result(timeout=5) == "fly and sleep"
        info = await again.info()
    assert ran == ["fly", "sleep"]
    assert [(attempt.attempt, attempt.outcome) for attempt in info.attempts] == [(1, "failed"), (2, "completed")]
    assert (info.task.series, info.task.attempt) == (1, 2)


async def test_a_body_that_had_left_its_steps_goes_on(db: Path) -> None:
    """After NonDeterministicStep a body that takes the recorded steps again completes, and runs none of them twice."""
    ran: list[int] = []
    names = iter(["one", "other", "one"])
    runner = quick(db)

    def note(number: int) -> int:
        ran.append(number)
        return number

    @runner.task(max_retries=1, wait=0.01)
    async def wanders(ctx: TaskContext) -> int:
        value = await ctx.step(next(names), note, 1)
        if ctx.attempt == 1:
            raise ConnectionError
        return value + await ctx.step("two", note, 2)

    async with runner.working():
        handle = await wanders.enqueue()
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=5)
        assert failed.value.error_type == "taskrunner.NonDeterministicStep"
        await handle.retry()
        assert await handle.result(timeout=5) == 3
    assert ran == [1, 2]


async def test_what_cannot_be_retried_says_why(db: Path) -> None:
    """A completed and an unfinished task, one whose key is taken, and none at all: each is one sentence."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def job(fails: bool) -> None:
        if fails:
            raise ValueError

    async with runner:
        done, failed = await job.enqueue(fails=False), await job.options(unique_key="k").enqueue(fails=True)
        await runner.drain()
        holder = await job.options(unique_key="k").enqueue(fails=False)
        with pytest.raises(InvalidInput, match=f"task {done.id} is completed: only a failed or cancelled"):
            await done.retry()
        with pytest.raises(InvalidInput, match="is pending"):
            await holder.retry()
        with pytest.raises(DuplicateTask, match="unique_key='k'") as taken:
            await failed.retry()
        assert taken.value.handle.id == holder.id
        with pytest.raises(TaskNotFound):
            await runner.handle("nobody").retry()


async def test_one_odd_row_spoils_no_page(db: Path) -> None:
    """B74: `runner.tasks.list` leaves out a row that nobody can read, and its pages go on behind it."""
    runner = quick(db)
    async with runner:
        ids = [(await runner.enqueue("job", {"n": number})).id for number in range(10)]
        good = [task_id for number, task_id in enumerate(ids) if number % 3]
        odd = "', '".join(set(ids) - set(good))
        sql(db, f"UPDATE tasks SET input = '{{no json' WHERE id IN ('{odd}')")  # noqa: S608 - our own ids
        assert [task.id for task in await runner.tasks.list()] == good[::-1]
        found: list[str] = []
        while page := await runner.tasks.list(limit=2, after=found[-1] if found else None):
            found += [task.id for task in page]
        assert found == good[::-1]
        with pytest.raises(TaskNotFound, match="no task has the id 'nobody'"):
            await runner.tasks.list(after="nobody")
