"""The helpers that users test their own tasks with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from taskrunner import InvalidInput, NotOpen, TaskContext, TaskFailed, TaskRunner, Tasks
from taskrunner.testing import START, harness, temp_runner

if TYPE_CHECKING:
    from pathlib import Path

runner = TaskRunner("production.db")


@runner.task
async def remind(who: str) -> str:
    """Say hello."""
    return f"reminded {who}"


@runner.task(max_retries=2, wait="1m")
async def flaky(ctx: TaskContext) -> int:
    """Succeed at the third attempt."""
    if ctx.attempt < 3:
        message = "not yet"
        raise ValueError(message)
    return ctx.attempt


@runner.task(max_retries=0)
async def fails() -> None:
    """Fail."""
    message = "no such reminder"
    raise ValueError(message)


@runner.task
async def time_of_day(ctx: TaskContext) -> str:
    """Tell the task's own time."""
    return ctx.now().isoformat()


async def test_time_stands_still_until_it_is_told_to_move() -> None:
    """A reminder for in three days runs when the harness's clock gets there, in no time at all."""
    async with harness(runner) as lab:
        handle = await remind.options(delay="3d").enqueue("ada")
        assert await lab.drain() == 0
        await lab.advance(timedelta(days=3, seconds=-1))
        assert await handle.status() == "pending"
        await lab.advance("1s")
        assert await handle.result() == "reminded ada"
        assert lab.now == START + timedelta(days=3)


async def test_retries_wait_for_the_clock() -> None:
    """A retry waits in the store: moving the clock makes it due, and the number of retries can be read."""
    async with harness(runner) as lab:
        handle = await flaky.enqueue()
        await lab.drain()
        await lab.advance("59s")
        assert (await handle.task()).retry_count == 1
        await lab.advance("1s")
        assert (await handle.task()).retry_count == 2
        await lab.advance("1m")
        assert await handle.result() == 3


async def test_a_harness_starts_where_it_is_told() -> None:
    """Rows and bodies see the harness's own time, and nothing of the machine's."""
    moment = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    async with harness(runner, now=moment) as lab:
        handle = await time_of_day.enqueue()
        await lab.drain()
        assert await handle.result() == moment.isoformat()
        task = await handle.task()
        assert {task.created_at, task.run_at, task.started_at, task.completed_at} == {moment}


async def test_a_harness_leaves_the_program_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner's own store is neither opened nor made, and its clock is the machine's again afterwards."""
    monkeypatch.chdir(tmp_path)
    async with harness(runner) as lab:
        await remind.enqueue("ada")
        assert await lab.drain() == 1
    assert list(tmp_path.iterdir()) == []
    assert not runner.is_open
    async with temp_runner() as other, other:
        assert abs((await other.sessions.create()).created_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_harness_refuses_what_makes_no_sense(db: Path) -> None:
    """A naive start, a step back in time, and a runner that is open already get one sentence each."""
    with pytest.raises(InvalidInput, match="now=2031-01-01T00:00:00: a datetime needs a time zone"):
        async with harness(runner, now=datetime(2031, 1, 1)):  # noqa: DTZ001
            pass
    async with harness(runner) as lab:
        with pytest.raises(InvalidInput, match="duration=-1"):
            await lab.advance(-1)
    async with TaskRunner(db) as opened:
        with pytest.raises(NotOpen, match="open already"):
            async with harness(opened):
                pass


async def test_a_task_is_called_as_if_it_were_a_function() -> None:
    """`call` enqueues, works and gives the result; errors come out, and what cannot end yet is said to wait."""
    async with harness(runner) as lab:
        assert await lab.call(remind.bind("ada")) == "reminded ada"
        with pytest.raises(TimeoutError, match=r"task flaky has not ended, .* it waits for until 2026-01-01 12:01:00"):
            await lab.call(flaky.bind())
        await lab.advance("2m")
        with pytest.raises(TaskFailed, match="no such reminder"):
            await lab.call(fails.bind())
        await runner.pause("default")
        with pytest.raises(TimeoutError, match="it waits for queue default is paused"):
            await lab.call(remind.bind("bob"))


async def test_what_was_enqueued_can_be_asked_for() -> None:
    """`enqueued` gives the typed handles of one type, all of them, in the order of their enqueue."""
    async with harness(runner) as lab:
        assert await lab.enqueued(remind) == []
        handles = await runner.enqueue_many([remind.bind(str(number)) for number in range(1_200)])
        await flaky.enqueue()
        assert [handle.id for handle in await lab.enqueued(remind)] == [handle.id for handle in handles]
        assert len(await lab.enqueued(flaky)) == 1
        await lab.call(remind.options(priority=0).bind("last"))
        assert await (await lab.enqueued(remind))[-1].result() == "reminded last"


async def test_a_temporary_runner_works_by_itself() -> None:
    """`temp_runner` has a supervisor: what is enqueued on it runs, and its file is gone in the end."""
    tasks = Tasks("math.")

    @tasks.task
    def double(n: int) -> int:
        return 2 * n

    async with temp_runner(tasks, max_retries=0) as temporary:
        handle = await double.enqueue(4)
        assert await handle.result(timeout=10) == 8
        path = temporary.store.path
        assert path.exists()
    assert not path.parent.exists()
