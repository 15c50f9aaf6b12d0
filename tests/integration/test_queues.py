"""Queues: exact order, pauses that last, limits over all supervisors, and why a task waits."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from taskrunner import InvalidInput, NotOpen, TaskContext, TaskRunner
from tests.integration.commands import Folder
from tests.integration.machine import EffectLog, program, quick, sql, until


async def test_equal_priority_is_exact_enqueue_order(db: Path) -> None:
    """B06: a thousand tasks of one call, on one slot, run in the order of the call."""
    runner = quick(db, durability="normal")
    ran: list[int] = []

    @runner.task
    async def note(number: int) -> None:
        ran.append(number)

    async with runner:
        await runner.enqueue_many([note.bind(number) for number in range(1_000)])
        async with runner.working(concurrency=1):
            await until(lambda: len(ran) == 1_000, within=15)
    assert ran == list(range(1_000))


async def test_priority_is_strict(db: Path) -> None:
    """B06: while a lower number is in line, a higher one does not run, however long it has waited: "strict"."""
    runner = quick(db)
    ran: list[int] = []

    @runner.task
    async def note(ctx: TaskContext) -> None:
        ran.append(ctx.task.priority)
        if len(ran) < 50:  # the urgent ones never run out meanwhile
            await note.options(priority=0).enqueue()

    async with runner:
        await note.options(priority=9).enqueue()
        await note.options(priority=0).enqueue()
        async with runner.working(concurrency=1):
            await until(lambda: len(ran) == 51)
    assert ran == [0] * 50 + [9]


async def test_a_pause_lasts(db: Path) -> None:
    """A paused queue stands still for every supervisor, one that starts later too; what runs goes on to its end."""
    runner = quick(db)
    go_on, started = anyio.Event(), anyio.Event()

    @runner.task(queue="mail")
    async def send(number: int) -> int:
        if number == 0:
            started.set()
            await go_on.wait()
        return number

    async with runner:
        handles = [await send.enqueue(number) for number in range(3)]
        async with runner.working(concurrency=1):
            await started.wait()
            await runner.pause("mail")
            go_on.set()
            assert await handles[0].result(timeout=5) == 0
            await anyio.sleep(0.3)
        assert [await handle.status() for handle in handles] == ["completed", "pending", "pending"]
        assert await runner.drain() == 0
        async with runner.working():
            await runner.resume("mail")
            assert [await handle.result(timeout=5) for handle in handles] == [0, 1, 2]


async def test_a_limit_holds_over_two_supervisors(db: Path) -> None:
    """Ten slots each, a limit of two: no more than two run at any moment, all run, and the other queues are free."""
    runners = [quick(db), quick(db)]
    running: list[int] = []
    most: list[int] = []
    free: list[int] = []

    async def use(number: int) -> None:
        running.append(number)
        most.append(len(running))
        await anyio.sleep(0.01)
        running.remove(number)

    async def other(number: int) -> None:
        free.append(number)

    for runner in runners:
        runner.limit(queue="gpu", concurrency=2)
        runner.task(queue="gpu")(use)
        runner.task(other)
    first, second = runners
    async with first.working(), second.working():
        await first.enqueue_many([first.definitions["use"].bind(number) for number in range(60)])
        await first.enqueue_many([first.definitions["other"].bind(number) for number in range(20)])
        await until(lambda: len(free) == 20)
        await until(lambda: len(most) == 60 and not running, within=15)
    assert max(most) == 2


async def test_a_place_that_was_made_is_taken_at_once(db: Path) -> None:
    """The end of a task in one supervisor makes room in its queue, and another hears of it: it waits for no sweep."""
    ending, waiting = quick(db), quick(db, sweep=30, lease=90, heartbeat=10)
    go_on, stop = anyio.Event(), anyio.Event()
    started: list[int] = []

    async def use(number: int) -> None:
        started.append(number)
        if number == 0:
            await go_on.wait()

    for runner in (ending, waiting):
        runner.limit(queue="default", concurrency=1)
        runner.task(use)

    async def work() -> None:
        async with ending.working():
            await stop.wait()

    async with waiting, anyio.create_task_group() as group:
        group.start_soon(work)
        await waiting.enqueue_many([waiting.definitions["use"].bind(number) for number in range(2)])
        await until(lambda: started == [0])
        async with waiting.working():
            stop.set()  # it claims no more, and its task goes on
            await anyio.sleep(0.3)
            assert started == [0]
            go_on.set()
            await until(lambda: started == [0, 1], within=1)


async def test_a_limit_is_lifted_by_none(db: Path) -> None:
    """A limit stays in the store when its code is gone; a version that says None lifts it."""
    counts: list[int] = []
    for limited in (True, False):
        runner = quick(db)
        runner.limit(queue="default", concurrency=1 if limited else None)
        running: list[int] = []

        @runner.task(name="use")
        async def use() -> None:
            running.append(1)  # noqa: B023 - used in its own round
            counts.append(len(running))  # noqa: B023
            await anyio.sleep(0.02)
            running.pop()  # noqa: B023

        async with runner:
            await runner.enqueue_many([use.bind() for _ in range(4)])
            await runner.drain()
    assert counts[:4] == [1, 1, 1, 1]
    assert max(counts[4:]) == 4


@pytest.mark.parametrize("queue", ["", "x" * 201, "a\nb", 7, None])
async def test_what_is_no_queue_is_refused(db: Path, queue: str) -> None:
    """An odd name gets one sentence, before anything is written."""
    async with quick(db) as runner:
        for verb in (runner.pause, runner.resume):
            with pytest.raises(InvalidInput, match=r"^queue"):
                await verb(queue)
        with pytest.raises(InvalidInput, match=r"^queue"):
            runner.limit(queue=queue, concurrency=1)
        assert await runner.store.queues.all() == {}


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "2", 10**7])
def test_what_is_no_limit_is_refused(concurrency: int) -> None:
    """A limit is a whole number from 1 on: a queue that must stand still is paused."""
    with pytest.raises(InvalidInput, match=r"^concurrency: must be an integer from 1 to 1,000,000"):
        TaskRunner().limit(queue="gpu", concurrency=concurrency)


async def test_a_pause_needs_an_open_store(db: Path) -> None:
    """It is a write like others."""
    with pytest.raises(NotOpen):
        await quick(db).pause("mail")


def test_every_view_names_the_true_reason(tmp_path: Path) -> None:
    """B06: `list`, `show` and `doctor` say that a queue is paused, that a task is due later, that nobody works."""
    folder = Folder.make(tmp_path)
    task_id = folder.ok("enqueue", "greet", "--queue", "mail", "name=x").strip()
    later = folder.ok("enqueue", "greet", "--delay", "1h", "name=x").strip()
    assert "no supervisor works" in folder.ok("show", task_id)
    assert "it is not due before 20" in folder.ok("show", later)
    runner = TaskRunner(folder.db)
    runner.sync(runner.pause("mail"))
    listed = {line.split("\t")[0]: line.split("\t")[1] for line in folder.ok("list").splitlines()}
    assert listed[task_id] == "pending (waiting: queue mail is paused)"
    assert listed[later].startswith("pending (waiting: until 20")
    assert "the queue 'mail' is paused since 20" in folder.ok("show", task_id)
    found = folder.run("doctor")
    assert "paused since" in found.stdout
    assert (found.returncode, found.stderr) == (0, "")


SUPERVISOR = """
runner.limit(queue="default", concurrency=2)

@runner.task(max_losses=100)
async def work(number: int) -> None:
    effect("begins", number)
    await anyio.sleep(0.05)
    effect("ends", number)

anyio.run(partial(runner.run, concurrency=8))
"""


async def test_a_kill_leaves_nothing_of_a_limit_behind(db: Path, tmp_path: Path) -> None:
    """Two supervisors, killed again and again: never more than the limit run, and its places come back at once."""
    log = EffectLog(tmp_path / "effects")
    async with quick(db) as client:
        for number in range(40):
            await client.enqueue("work", {"number": number})
        with ExitStack() as stack:
            supervisors = [stack.enter_context(program(db, log, SUPERVISOR)) for _ in range(2)]
            for kill in range(4):
                log.wait_for(6 * (kill + 1))
                supervisors[kill % 2].kill(signal.SIGKILL)
                supervisors[kill % 2] = stack.enter_context(program(db, log, SUPERVISOR))
                assert sql(db, "SELECT count(*) FROM tasks WHERE status = 'running'")[0][0] <= 2
            await until(lambda: len({line for line in log.lines() if line.startswith("ends")}) == 40, within=15)
            await until(lambda: sql(db, "SELECT DISTINCT status FROM tasks") == [["completed"]], within=5)
    running = most = 0
    for line in log.lines():
        running += 1 if line.startswith("begins") else -1
        most = max(most, running)
    assert most <= 2 + 4 * 2  # those that were killed have begun, and never ended
