"""Plain code: the bridge into the event loop, outside of tasks and inside of plain `def` tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from taskrunner import NotOpen, TaskContext, TaskFailed, TaskHandle
from tests.integration.machine import EffectLog, ended, program, quick

WORKER = """
@runner.task
def double(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return 2 * n

anyio.run(runner.run)
"""


def test_a_plain_script(db: Path, tmp_path: Path) -> None:
    """`with runner.sync as wait`: enqueue, look, wait for results, talk; errors come out as themselves."""
    runner = quick(db)
    with program(db, EffectLog(tmp_path / "effects"), WORKER) as worker:
        with runner.sync as wait:
            handles = [wait(runner.enqueue("double", {"n": n}, max_retries=0)) for n in (1, 2, -1)]
            assert [wait(handle.result(timeout=10)) for handle in handles[:2]] == [2, 4]
            with pytest.raises(TaskFailed, match="negative"):
                wait(handles[2].result(timeout=10))
            session = wait(runner.sessions.create(title="batch"))
            assert wait(session.add("user", "hi")).content == "hi"
            with pytest.raises(TimeoutError):
                wait(wait(runner.enqueue("unknown")).result(timeout=0.05))
        worker.kill(15)
        assert worker.wait()[0] == 0
    assert not runner.is_open


def test_single_calls(db: Path) -> None:
    """Without `with`, each call opens the store and closes it again."""
    runner = quick(db)

    @runner.task
    async def one(n: int) -> int:
        return n

    handle: TaskHandle[int] = runner.sync(one.enqueue(7))
    assert runner.sync(handle.status()) == "pending"
    assert runner.sync(runner.drain()) == 1
    assert runner.sync(handle.result()) == 7
    assert not runner.is_open
    assert [path.name for path in db.parent.iterdir()] == [db.name]


def test_an_asynchronous_iterator(db: Path) -> None:
    """`iterate` gives its items one by one."""
    runner = quick(db)

    async def items() -> AsyncIterator[int]:
        for number in range(3):
            await anyio.lowlevel.checkpoint()
            yield number

    with runner.sync as wait:
        assert list(wait.iterate(items())) == [0, 1, 2]


async def test_on_the_event_loop_it_says_await(db: Path) -> None:
    """It would block the loop that it waits for: one sentence, and no forgotten coroutine."""
    runner = quick(db)

    @runner.task
    async def one() -> None: ...

    with pytest.raises(NotOpen, match="write await here"):
        runner.sync(one.enqueue())
    async with runner:
        with pytest.raises(NotOpen, match="write await here"):
            runner.sync(one.enqueue())
        with pytest.raises(NotOpen, match="await"), runner.sync as wait:
            wait(one.enqueue())


async def test_a_thread_beside_an_open_runner(db: Path) -> None:
    """A web framework's plain `def` endpoint: the bridge awaits in the loop that has the runner open."""
    runner = quick(db)

    @runner.task
    async def one(n: int) -> int:
        return n

    def endpoint(n: int) -> int:
        handle = runner.sync(one.enqueue(n))
        with runner.sync as wait:
            return wait(handle.result(timeout=5))

    async with runner.working():
        results = await asyncio.gather(*(anyio.to_thread.run_sync(endpoint, n) for n in range(8)))
    assert results == list(range(8))


async def test_another_event_loop_is_told(db: Path) -> None:
    """An open runner belongs to its loop: opened from another one at the same time, it says so."""
    runner = quick(db)
    told: list[str] = []

    async def elsewhere() -> None:
        try:
            async with runner:
                pass
        except NotOpen as error:
            told.append(str(error))

    async with runner:
        await anyio.to_thread.run_sync(lambda: asyncio.run(elsewhere()))
    assert "another event loop" in told[0]
    await anyio.to_thread.run_sync(lambda: asyncio.run(elsewhere()))
    assert len(told) == 1


async def test_a_plain_task_uses_its_context(db: Path) -> None:
    """`ctx.sync` awaits steps and progress from the task's thread, and steps are numbered as in async code."""
    runner = quick(db)
    ran: list[str] = []
    threads: set[str] = set()

    def part(name: str) -> str:
        ran.append(name)
        return name

    async def part_async(name: str) -> str:
        await anyio.lowlevel.checkpoint()
        return part(name)

    @runner.task(wait=0.01)
    def plain(ctx: TaskContext) -> list[str]:
        threads.add(threading.current_thread().name)
        assert TaskContext.current() is ctx
        got = [ctx.sync(ctx.step("part", part, "0")), ctx.sync(ctx.step("part", part_async, "1"))]
        got.append(ctx.sync(ctx.step("part", part, "2")))
        ctx.sync(ctx.progress(0.5, "half"))
        got.append(ctx.now().isoformat())
        got.append(ctx.uuid())
        got.append(ctx.sync(ctx.step("last", part, got[-1])))
        if ctx.attempt < 3:
            raise ConnectionError
        return got

    task = await ended(runner, plain.bind())
    assert task.status == "completed", task.error_message
    assert ran[:3] == ["0", "1", "2"]
    assert len(ran) == 4
    assert task.output[-1] == task.output[-2]
    assert "MainThread" not in threads


async def test_a_step_of_a_plain_task_uses_the_bridge_too(db: Path) -> None:
    """Inside a plain step function `ctx.sync` reaches the session, and what it adds joins the step."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()

    def note(ctx: TaskContext) -> str:
        ctx.sync(ctx.session.add("system", "from a thread"))
        return ctx.idempotency_key

    @runner.task(max_retries=0)
    def plain(ctx: TaskContext) -> str:
        return ctx.sync(ctx.step("note", note, ctx))

    task = await ended(runner, plain.options(session_id=session.id).bind())
    assert len(task.output) == 32, task.error_message
    async with runner:
        assert [message.content for message in await session.recent(9)] == ["from a thread"]


async def test_an_async_task_is_told_to_await(db: Path) -> None:
    """`ctx.sync` on the loop would block every task of the supervisor."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def wrong(ctx: TaskContext) -> None:
        ctx.sync(ctx.step("a", str.upper, "x"))

    task = await ended(runner, wrong.bind())
    assert task.error_type == "taskrunner.NotOpen"
    assert "write await here" in str(task.error_message)


async def test_a_plain_task_enqueues(db: Path) -> None:
    """From its thread by `ctx.sync`, and by the runner's own bridge."""
    runner = quick(db)

    @runner.task
    def child(n: int) -> int:
        return n

    @runner.task
    def parent(ctx: TaskContext) -> list[int]:
        first = ctx.sync(child.enqueue(1))
        second = runner.sync(child.enqueue(2))
        return [ctx.sync(first.result(timeout=5)), runner.sync(second.result(timeout=5))]

    assert (await ended(runner, parent.bind())).output == [1, 2]
