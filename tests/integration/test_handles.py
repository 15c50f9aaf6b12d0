"""Handles: the way back to a task, from its runner, from its task, from another process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest

from taskrunner import (
    DuplicateTask,
    InvalidInput,
    InvalidResult,
    NotOpen,
    TaskCancelled,
    TaskFailed,
    TaskNotFound,
    Tasks,
    UnknownTask,
)
from tests.integration.machine import EffectLog, program, quick, sql, until


@dataclass
class Report:
    """A result."""

    title: str
    pages: int


async def test_a_result_comes_back_by_its_type(db: Path) -> None:
    """From the handle of an enqueue and from `task.handle(id)`; `runner.handle(id)` knows no type and gives JSON."""
    runner = quick(db)

    @runner.task
    async def write(title: str) -> Report:
        return Report(title, 3)

    async with runner.working():
        handle = await write.enqueue("a")
        assert await handle.result(timeout=5) == Report("a", 3)
        assert await write.handle(handle.id).result() == Report("a", 3)
        assert await runner.handle(handle.id).result() == {"title": "a", "pages": 3}
        assert await handle.status() == "completed"
        assert await handle.progress() == 1.0
        task = await handle.task()
        assert (task.input, task.output) == ({"title": "a"}, {"title": "a", "pages": 3})
        assert await runner.tasks.get(handle.id) == task
        assert (await handle.info()).task == task


async def test_a_failure_says_what_happened(db: Path) -> None:
    """`TaskFailed` with the task, the error's type and its text."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def broken() -> None:
        raise ConnectionError("no route")

    async with runner.working():
        handle = await broken.enqueue()
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=5)
    error = failed.value
    assert (error.task_id, error.error_type) == (handle.id, "ConnectionError")
    assert "no route" in error.details
    assert handle.id in str(error)


async def test_a_wait_ends_and_the_task_goes_on(db: Path) -> None:
    """`TimeoutError` after the timeout, at once with 0; a finished task's result comes even with 0."""
    runner = quick(db)

    @runner.task
    async def slow() -> int:
        await anyio.sleep(0.3)
        return 1

    async with runner.working():
        handle = await slow.enqueue()
        for timeout in (0, 0.05, "50ms", timedelta(seconds=0.05)):
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="goes on"):
                await handle.result(timeout=timeout)
            assert time.monotonic() - began < 0.25
        assert await handle.result(timeout="1m") == 1
        assert await handle.result(timeout=0) == 1
        with pytest.raises(InvalidInput):
            await handle.result(timeout=-1)
        with pytest.raises(TaskNotFound):
            await runner.handle("nobody").result(timeout=1)


async def test_many_wait_for_one(db: Path) -> None:
    """Every waiter is woken at once; one that is cancelled harms no other."""
    runner = quick(db)

    @runner.task
    async def slow() -> int:
        await anyio.sleep(0.3)
        return 1

    async with runner.working():
        handle = await slow.enqueue()
        waiters = [asyncio.create_task(runner.handle(handle.id).result(timeout=5)) for _ in range(50)]
        await anyio.sleep(0.05)
        waiters.pop().cancel()
        assert await asyncio.gather(*waiters) == [1] * 49


async def test_a_result_that_fits_its_annotation_no_more(db: Path) -> None:
    """The type of the code that asks has changed since: `InvalidResult` names the place."""
    old, new = quick(db), quick(db)

    @old.task(name="write")
    async def write() -> dict[str, str]:
        return {"title": "a"}

    @new.task(name="write")
    async def write_now() -> Report:
        return Report("a", 1)

    async with old.working():
        handle = await write.enqueue()
        await handle.result(timeout=5)
    async with new:
        with pytest.raises(InvalidResult, match="pages"):
            await write_now.handle(handle.id).result()


WORKER = """
@runner.task
async def slow(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "from elsewhere"

anyio.run(runner.run)
"""


async def test_a_result_from_another_process(db: Path, tmp_path: Path) -> None:
    """It wakes the waiter within a fraction of a second."""
    runner = quick(db)
    async with runner:
        with program(db, EffectLog(tmp_path / "effects"), WORKER) as worker:
            handle = await runner.enqueue("slow", {"seconds": 0.3})
            assert await handle.result(timeout=10) == "from elsewhere"
            completed = (await handle.task()).completed_at
            assert completed is not None
            assert datetime.now(UTC) - completed < timedelta(seconds=0.5)
            worker.kill(15)
            assert worker.wait()[0] == 0


async def test_a_unique_key_has_one_unfinished_task(db: Path) -> None:
    """`reuse` gives its handle, `replace` rewrites it before it has started, `reject` raises with its handle."""
    runner = quick(db)
    started = anyio.Event()

    @runner.task
    async def sync_user(name: str) -> str:
        started.set()
        await anyio.sleep(0.2)
        return name

    def options(how: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - an enqueuer
        return sync_user.options(unique_key="u1", on_conflict=how, priority=3)  # type: ignore[arg-type]

    async with runner:
        first = await options("reuse").enqueue("a")
        assert (await options("reuse").enqueue("b")).id == first.id
        with pytest.raises(DuplicateTask) as duplicate:
            await options("reject").enqueue("c")
        assert duplicate.value.handle.id == first.id
        assert (await first.task()).input == {"name": "a"}
        assert (await options("replace").enqueue("d")).id == first.id
        assert (await first.task()).input == {"name": "d"}
        async with runner.working():
            await started.wait()
            with pytest.raises(DuplicateTask):
                await options("replace").enqueue("e")
            assert await duplicate.value.handle.result(timeout=5) == "d"
            second = await options("reject").enqueue("f")
            assert second.id != first.id
            assert await second.result(timeout=5) == "f"


async def test_an_idempotency_key_is_for_good(db: Path) -> None:
    """A second enqueue gets the first one's handle whatever its input, also after it has ended; per type."""
    runner = quick(db)

    @runner.task
    async def pay(amount: int) -> int:
        return amount

    @runner.task
    async def refund(amount: int) -> int:
        return amount

    async with runner.working():
        keyed = pay.options(idempotency_key="order-7")
        handles = await asyncio.gather(*(keyed.enqueue(amount) for amount in range(5)))
        assert len({handle.id for handle in handles}) == 1
        amount = await handles[0].result(timeout=5)
        assert (await keyed.enqueue(99)).id == handles[0].id
        assert await (await keyed.enqueue(99)).result(timeout=5) == amount
        other = await refund.options(idempotency_key="order-7").enqueue(1)
        assert other.id != handles[0].id


async def test_tasks_run_in_their_order(db: Path) -> None:
    """Lower priority first, then as enqueued; a delayed one takes its place when it is due."""
    runner = quick(db)
    ran: list[str] = []

    @runner.task
    async def note(name: str) -> None:
        ran.append(name)

    async with runner:
        await note.options(delay=0.1).enqueue("due later, enqueued first")
        for name, priority in (("b", 5), ("c", 9), ("d", 5), ("a", 0)):
            await note.options(priority=priority).enqueue(name)
        await note.options(run_at=datetime.now(UTC) + timedelta(hours=1)).enqueue("never")
        await anyio.sleep(0.15)
        async with runner.working(concurrency=1):
            await until(lambda: len(ran) == 5)
    assert ran == ["a", "due later, enqueued first", "b", "d", "c"]


async def test_a_batch_is_one_commit(db: Path) -> None:
    """`enqueue_many`: all or none, in order, of several types."""
    runner = quick(db)

    @runner.task
    async def double(n: int) -> int:
        return 2 * n

    @runner.task
    async def shout(text: str) -> str:
        return text.upper()

    async with runner.working():
        handles = await runner.enqueue_many([double.bind(n) for n in range(20)])
        assert [await handle.result(timeout=5) for handle in handles] == [2 * n for n in range(20)]
        mixed = await runner.enqueue_many([double.bind(1), shout.bind("a")])
        assert [await handle.result(timeout=5) for handle in mixed] == [2, "A"]
        taken = await double.options(unique_key="k", delay="1h").enqueue(1)
        bound = [double.bind(70), double.options(unique_key="k", on_conflict="reject").bind(80)]
        with pytest.raises(DuplicateTask) as duplicate:
            await runner.enqueue_many(bound)
        assert duplicate.value.handle.id == taken.id
        assert await runner.enqueue_many([]) == []
    assert sql(db, "SELECT count(*) FROM tasks WHERE json_extract(input, '$.n') IN (70, 80)") == [[0]]


async def test_which_runner_is_meant(db: Path) -> None:
    """Tasks in no runner, in a closed one, in several: a sentence each; `runner.enqueue(task.bind(…))` always works."""
    tasks = Tasks("mail.")

    @tasks.task
    async def send(to: str) -> str:
        return to

    assert send.name == "mail.send"
    with pytest.raises(UnknownTask, match="include"):
        await send.enqueue("a")
    first, second = quick(db), quick(db)
    first.include(tasks)
    with pytest.raises(NotOpen):
        await send.enqueue("a")
    async with first:
        await send.enqueue("a")
        second.include(tasks)
        await send.enqueue("b")  # the only open one
        async with second:
            with pytest.raises(NotOpen, match=r"runner\.enqueue"):
                await send.enqueue("c")
            handle = await second.enqueue(send.bind("d"))
            async with second.working():
                assert await handle.result(timeout=5) == "d"
    with pytest.raises(NotOpen):
        await handle.status()


async def test_a_cancelled_wait_is_told_apart(db: Path) -> None:
    """`TaskCancelled` for the task's end; Python's own cancellation for the waiter's."""
    runner = quick(db)

    @runner.task
    async def one() -> None: ...

    async with runner:
        handle = await one.enqueue()
        with anyio.move_on_after(0.05) as scope:
            await handle.result()
        assert scope.cancelled_caught
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result()
