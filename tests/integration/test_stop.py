"""Stopping inside one program: what becomes of running tasks, and what is left behind (nothing)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskContext
from tests.integration.machine import Heard, quick, sql, until


async def test_running_tasks_have_the_grace_to_end(db: Path) -> None:
    """Leaving `working()` claims nothing more, waits for what runs, and costs the rest nothing."""
    runner = quick(db, grace=5)
    heard = Heard(runner)
    started: list[int] = []

    @runner.task
    async def brief(number: int) -> int:
        started.append(number)
        await anyio.sleep(0.3)
        return number

    async with runner:
        async with runner.working(concurrency=3):
            handles = [await brief.enqueue(number) for number in range(10)]
            await until(lambda: len(started) == 3)
        statuses = [await handle.status() for handle in handles]
    assert statuses == ["completed"] * 3 + ["pending"] * 7
    assert started == [0, 1, 2]
    assert sql(db, "SELECT sum(attempt), sum(retry_count), sum(losses) FROM tasks") == [[3, 0, 0]]
    assert heard.names()[-1] == "supervisor.stopped"


async def test_what_outlives_the_grace_is_handed_back(db: Path) -> None:
    """No retry, no loss, even with `max_retries=0`: it goes on at its last recorded step, at once."""
    runner = quick(db, grace=0.2)
    heard = Heard(runner)
    ran: list[str] = []
    resume = anyio.Event()

    @runner.task(max_retries=0)
    async def long(ctx: TaskContext) -> str:
        for number in range(100):
            await ctx.step("part", ran.append, f"part {number}")
            if resume.is_set() and number == 5:
                return "done"
            if number == 3 and not resume.is_set():
                await anyio.sleep(60)
        return "never"

    @runner.task(max_retries=0)
    def plain(ctx: TaskContext) -> int:
        ran.append("plain")
        ctx.sync(ctx.step("a", str.upper, "x"))
        if ctx.attempt == 1:
            ctx.sync(anyio.sleep(60))
        return ctx.attempt

    async with runner:
        async with runner.working():
            handles = [await long.enqueue(), await plain.enqueue()]
            await until(lambda: "part 3" in ran and "plain" in ran)
            await anyio.sleep(0.1)
            began = time.monotonic()
        assert 0.15 < time.monotonic() - began < 1.5
        for handle in handles:
            info = await handle.info()
            assert (info.task.status, info.task.retry_count, info.task.losses) == ("pending", 0, 0)
            assert [attempt.outcome for attempt in info.attempts] == ["released"]
            assert info.task.error_message is None
        assert len(heard.of("task.released")) == 2
        resume.set()
        async with runner.working():
            assert [await handle.result(timeout=3) for handle in handles] == ["done", 2]
    assert [word for word in ran if word != "plain"] == [f"part {number}" for number in range(6)]


async def test_a_body_that_ignores_the_stop_is_left_behind(db: Path) -> None:
    """A computing thread and a body that swallows everything hold up the stop for a second, and are reported."""
    runner = quick(db, grace=0.1)
    heard = Heard(runner)
    release = threading.Event()
    started: list[str] = []
    late: list[str] = []

    @runner.task(max_retries=0)
    def plain() -> str:
        started.append("plain")
        release.wait(10)
        late.append("plain")
        return "late"

    @runner.task(max_retries=0)
    async def stubborn() -> str:
        started.append("stubborn")
        while not release.is_set():
            try:
                await anyio.sleep(0.02)
            except BaseException:  # noqa: BLE001, S112 - that is the point
                continue
        late.append("stubborn")
        return "late"

    async with runner:
        async with runner.working():
            handles = [await plain.enqueue(), await stubborn.enqueue()]
            await until(lambda: len(started) == 2)
            began = time.monotonic()
        assert time.monotonic() - began < 2
        assert [await handle.status() for handle in handles] == ["pending", "pending"]
        release.set()
        await until(lambda: len(late) == 2)
        await anyio.sleep(0.05)
        assert [await handle.status() for handle in handles] == ["pending", "pending"]
    assert sorted(event["task_type"] for event in heard.of("task.leaked")) == ["plain", "stubborn"]
    assert sql(db, "SELECT sum(attempt), sum(retry_count), sum(losses) FROM tasks") == [[2, 0, 0]]


@pytest.mark.parametrize("how", ["scope", "task", "error", "deadline"])
async def test_a_block_that_is_ended_from_outside_burns_nothing(db: Path, how: str) -> None:
    """A cancelled scope, a cancelled asyncio task, a deadline: handed back at once; after an error, with grace."""
    runner = quick(db, grace=0.3 if how == "error" else 30)
    started = anyio.Event()

    @runner.task(max_retries=0)
    async def long(ctx: TaskContext) -> None:
        await ctx.step("first", str.upper, "x")
        started.set()
        await anyio.sleep(60)

    async def block() -> None:
        async with runner.working():
            await long.enqueue()
            await started.wait()
            if how == "error":
                raise ValueError("in the block")
            await anyio.sleep(60)

    began = time.monotonic()
    if how == "scope":
        async with anyio.create_task_group() as group:
            group.start_soon(block)
            await started.wait()
            group.cancel_scope.cancel()
    elif how == "task":
        task = asyncio.create_task(block())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif how == "error":
        with pytest.raises(ValueError, match="in the block"):
            await block()
    else:
        with anyio.move_on_after(0.5):
            await block()
    assert time.monotonic() - began < 3
    assert not runner.is_open
    rows = sql(db, "SELECT status, attempt, retry_count, losses, outcome FROM tasks")
    assert rows == [["pending", 1, 0, 0, "released"]]
    assert sql(db, "SELECT count(*) FROM supervisors WHERE ended_at IS NULL") == [[0]]


ENDS = """
import asyncio, sys
from taskrunner import TaskRunner
runner = TaskRunner(sys.argv[1])
begun = asyncio.Event()

@runner.task(max_retries=0)
async def long():
    begun.set()
    await asyncio.sleep(60)

async def main():
    runs = asyncio.create_task(runner.run())
    async with TaskRunner(sys.argv[1]) as client:
        await client.enqueue(long.bind())
    await begun.wait()
    if sys.argv[2] == "cancels":
        for task in asyncio.all_tasks():
            task.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["returns", "cancels"])
def test_a_program_that_ends_beside_its_runner_burns_nothing(db: Path, how: str) -> None:
    """Its event loop cancels all that runs there, bodies too, or the program does: they are handed back unharmed."""
    done = subprocess.run([sys.executable, "-c", ENDS, str(db), how], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if how == "returns" else 1), done.stderr
    rows = sql(db, "SELECT status, attempt, retry_count, losses, outcome, error_message FROM tasks")
    assert rows == [["pending", 1, 0, 0, "released", None]]
    assert sql(db, "SELECT count(*) FROM supervisors WHERE ended_at IS NULL") == [[0]]


async def test_the_file_stands_alone_after_the_stop(db: Path) -> None:
    """One file: no WAL, no lock files, no folder; and in the program no async task of ours."""
    runner = quick(db)
    before = asyncio.all_tasks()

    @runner.task
    async def one() -> int:
        return 1

    async with runner.working():
        assert await (await one.enqueue()).result(timeout=5) == 1
    assert [path.name for path in db.parent.iterdir()] == [db.name]
    assert asyncio.all_tasks() == before


async def test_openings_nest(db: Path) -> None:
    """`async with runner` inside `working()` inside `async with runner`: the last closing closes."""
    runner = quick(db)

    @runner.task
    async def one() -> int:
        return 1

    async with runner, runner.working():
        async with runner:
            handle = await one.enqueue()
        assert await handle.result(timeout=5) == 1
        assert runner.is_open
    assert not runner.is_open


async def test_two_openings_at_once(db: Path) -> None:
    """Two async tasks of one program that open the runner at the same moment share one store."""
    runner = quick(db)

    @runner.task
    async def one(number: int) -> int:
        return number

    async def client(number: int) -> int:
        async with runner:
            handle = await one.enqueue(number)
            await runner.drain()
            return await handle.result(timeout=5)

    assert await asyncio.gather(*(client(number) for number in range(5))) == [0, 1, 2, 3, 4]
    assert not runner.is_open


async def test_a_runner_runs_again_and_again(db: Path) -> None:
    """Each opening is a new supervisor on the same tasks."""
    runner = quick(db)
    heard = Heard(runner)

    @runner.task
    async def one(number: int) -> int:
        return number

    for number in range(5):
        async with runner.working():
            assert await (await one.enqueue(number)).result(timeout=5) == number
    ids = [event["supervisor_id"] for event in heard.of("supervisor.started")]
    assert len(set(ids)) == 5
    assert [event["supervisor_id"] for event in heard.of("supervisor.stopped")] == ids


async def test_two_runners_in_one_program(db: Path) -> None:
    """Two supervisors of one process on one file share its tasks: each is run once; the end of one harms no other."""
    ran: list[tuple[str, int]] = []
    runners = {}
    for name in ("first", "second"):
        runner = quick(db)

        async def one(number: int, name: str = name) -> int:
            ran.append((name, number))
            await anyio.sleep(0.02)
            return number

        runner.task(name="one")(one)
        runners[name] = runner
    first, second = runners["first"], runners["second"]
    async with first.working(concurrency=3):
        async with second.working(concurrency=3):
            handles = [await first.enqueue("one", {"number": number}) for number in range(40)]
            assert [await handle.result(timeout=10) for handle in handles] == list(range(40))
        assert await (await first.enqueue("one", {"number": 40})).result(timeout=5) == 40
    assert sorted(number for _, number in ran) == list(range(41))
    assert {name for name, _ in ran} == {"first", "second"}
    assert sql(db, "SELECT max(attempt), sum(losses) FROM tasks") == [[1, 0]]


async def test_drain_runs_what_is_due(db: Path) -> None:
    """It returns how many tasks ended: enqueued before or meanwhile, but not those whose moment is yet to come."""
    runner = quick(db)

    @runner.task
    async def parent(ctx: TaskContext, depth: int) -> None:
        if depth:
            await parent.enqueue(depth - 1)

    async with runner:
        await parent.enqueue(3)
        await parent.options(delay="1h").enqueue(0)
        await parent.options(queue="elsewhere").enqueue(0)
        assert await runner.drain(queues=["default"]) == 4
        assert await runner.drain() == 1
        assert await runner.drain() == 0


async def test_nothing_of_a_finished_body_goes_on_as_the_task(db: Path) -> None:
    """An async task that a body has left running takes no steps when the body has ended: their functions do not run."""
    runner = quick(db)
    effects: list[str] = []
    errors: list[BaseException] = []

    async def left(ctx: TaskContext) -> None:
        await anyio.sleep(0.2)
        try:
            await ctx.step("late", effects.append, "late")
        except BaseException as error:  # noqa: BLE001 - that is the point
            errors.append(error)

    kept = []

    @runner.task
    async def one(ctx: TaskContext) -> str:
        kept.append(asyncio.create_task(left(ctx)))
        return "done"

    async with runner.working():
        handle = await one.enqueue()
        assert await handle.result(timeout=5) == "done"
        await until(lambda: errors)
        assert (await handle.info()).steps == []
    assert effects == []
    assert not isinstance(errors[0], Exception)


def test_a_thread_that_outlives_its_program(db: Path) -> None:
    """A plain body that goes on after the event loop has ended: its next call is no `Exception` that it might catch."""
    runner = quick(db, grace=0.1)
    release, started = threading.Event(), threading.Event()
    caught: list[BaseException] = []

    @runner.task(max_retries=0)
    def plain(ctx: TaskContext) -> None:
        started.set()
        release.wait(10)
        try:
            ctx.sync(ctx.step("late", str.upper, "x"))
        except BaseException as error:
            caught.append(error)
            raise

    async def main() -> None:
        async with runner.working():
            await plain.enqueue()
            await until(started.is_set)

    anyio.run(main)
    release.set()
    deadline = time.monotonic() + 5
    while not caught and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not isinstance(caught[0], Exception)
