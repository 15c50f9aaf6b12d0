"""`TaskRunner(lifespan=…)`: entered by who works on tasks, once, around all of it; its value is `ctx.resources`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from taskrunner import InvalidInput, TaskContext, TaskFailed, TaskRunner, TaskRunnerError
from tests.integration import lifespan_app as app
from tests.integration.commands import Folder
from tests.integration.machine import FAST, quick, until

Lifespan = Callable[[TaskRunner], AbstractAsyncContextManager[Any]]


def noting(order: list[str]) -> Lifespan:
    """A lifespan that notes when it begins and ends."""

    @asynccontextmanager
    async def lifespan(runner: TaskRunner) -> AsyncIterator[str]:
        order.append(f"enter {runner.is_open}")
        await anyio.lowlevel.checkpoint()
        yield "a pool"
        await anyio.lowlevel.checkpoint()
        order.append("leave")

    return lifespan


async def test_it_lies_around_all_attempts(db: Path) -> None:
    """Entered before the first claim and left after the last attempt; clients do not enter it."""
    order: list[str] = []
    runner = quick(db, lifespan=noting(order))
    runner.on("task.started", lambda _event: order.append("start"))
    runner.on("task.completed", lambda _event: order.append("end"))

    @runner.task
    async def use(ctx: TaskContext) -> str:
        await anyio.sleep(0.02)
        return str(ctx.resources)

    async with runner:
        handles = await runner.enqueue_many([use.bind(), use.bind()])
        assert order == []
        assert await runner.drain() == 2
        assert [await handle.result() for handle in handles] == ["a pool", "a pool"]
    assert order == ["enter True", "start", "start", "end", "end", "leave"]


async def test_it_outlives_a_body_that_is_handed_back(db: Path) -> None:
    """At a stop it is left when the last body has unwound, not before."""
    order: list[str] = []
    runner = quick(db, lifespan=noting(order), grace=0.1)

    @runner.task
    async def slow(ctx: TaskContext) -> None:
        order.append("start")
        try:
            await anyio.sleep(60)
        finally:
            order.append(f"unwound with {ctx.resources}")

    async with runner.working():
        await slow.enqueue()
        await until(lambda: "start" in order)
    assert order == ["enter True", "start", "unwound with a pool", "leave"]


async def test_without_one_there_are_no_resources(db: Path) -> None:
    """Who asks for them is told in one sentence what is missing."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def use(ctx: TaskContext) -> None:
        ctx.resources.get("x")

    async with runner.working():
        handle = await use.enqueue()
        with pytest.raises(TaskFailed, match=r"ctx\.resources: this runner has no lifespan"):
            await handle.result(timeout=5)


@asynccontextmanager
async def fails_to_begin(_runner: TaskRunner) -> AsyncIterator[None]:
    """A lifespan whose service does not answer."""
    raise ConnectionError("nobody answers")
    yield


@asynccontextmanager
async def fails_to_end(_runner: TaskRunner) -> AsyncIterator[None]:
    """A lifespan that cannot be left."""
    yield
    raise ConnectionError("nobody answers")


async def no_manager(_runner: TaskRunner) -> AsyncIterator[None]:
    """A lifespan whose decorator was forgotten."""
    yield


@pytest.mark.parametrize(
    ("lifespan", "sentence"),
    [
        (fails_to_begin, "the lifespan failed before the first claim: ConnectionError: nobody answers"),
        (fails_to_end, "the lifespan failed after the last attempt: ConnectionError: nobody answers"),
        (no_manager, "the lifespan failed before the first claim: TypeError: .*asynchronous context manager"),
        (lambda _runner: None, "the lifespan failed before the first claim: TypeError: .*asynchronous context manager"),
        (lambda: None, "the lifespan failed before the first claim: TypeError: .*takes 0 positional"),
    ],
)
async def test_one_that_fails_is_told_in_one_sentence(db: Path, lifespan: Lifespan, sentence: str) -> None:
    """Whoever wanted to work hears of it, with the error itself as the cause; no task was touched before."""
    runner = quick(db, lifespan=lifespan)

    @runner.task
    async def one() -> int:
        return 1

    async with runner:
        handle = await one.enqueue()
        for working in (runner.drain(), runner.run(until_idle=True)):
            with pytest.raises(TaskRunnerError, match=f"^{sentence}") as failed:
                await working
            assert failed.value.__cause__ is not None
        with pytest.raises(TaskRunnerError, match=f"^{sentence}"):
            async with runner.working():
                pass
        assert await handle.status() == ("completed" if "after" in sentence else "pending")


async def test_the_blocks_own_error_passes_through(db: Path) -> None:
    """What the block of `working` raises is no fault of the lifespan's."""
    order: list[str] = []
    runner = quick(db, lifespan=noting(order))
    with pytest.raises(LookupError, match="mine"):
        async with runner.working():
            raise LookupError("mine")


def test_what_is_no_lifespan_is_refused() -> None:
    """At once, where it is given."""
    with pytest.raises(InvalidInput, match=r"^lifespan=3: a function"):
        TaskRunner(lifespan=3)  # type: ignore[arg-type]


APP = """
from contextlib import asynccontextmanager
from taskrunner import TaskContext, TaskRunner

@asynccontextmanager
async def lifespan(runner):
    if FAILS:
        raise ConnectionError("nobody answers")
    print("open", flush=True)
    yield {"factor": 3}
    print("closed", flush=True)

runner = TaskRunner(lifespan=lifespan)

@runner.task
async def times(ctx: TaskContext, number: int) -> int:
    return ctx.resources["factor"] * number
"""


def test_the_command_enters_it(tmp_path: Path) -> None:
    """`taskrunner run` enters it, `enqueue` does not; one that fails is one sentence and exit code 1."""
    folder = Folder.make(tmp_path)
    (tmp_path / "good.py").write_text(APP.replace("FAILS", "False"), encoding="utf-8")
    (tmp_path / "bad.py").write_text(APP.replace("FAILS", "True"), encoding="utf-8")
    task_id = folder.ok("enqueue", "times", "number=4").strip()
    done = folder.run("run", "bad:runner", "--until-idle")
    assert done.returncode == 1
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .endswith("the lifespan failed before the first claim: ConnectionError: nobody answers")
    )
    assert "Traceback" not in done.stderr
    assert folder.ok("run", "good:runner", "--until-idle") == "open\nclosed\n"
    assert folder.json("show", task_id)["task"]["output"] == 12


async def test_each_child_enters_it(db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `processes=2` it is each child that enters it, not their supervisor: the bodies run there."""
    log = tmp_path / "log"
    monkeypatch.setenv(app.LOG, str(log))
    with app.runner.override(db=db, **FAST):
        async with app.runner.working(processes=2):
            handles = [await app.where.enqueue() for _ in range(8)]
            found = [await handle.result(timeout=10) for handle in handles]
            await until(lambda: log.read_text(encoding="utf-8").count("enter") == 2)
    assert all(given == here != os.getpid() for given, here in found)
    lines = [line.split()[:2] for line in log.read_text(encoding="utf-8").splitlines()]
    assert sorted(what for what, _pid in lines) == ["enter", "enter", "leave", "leave"]
    assert str(os.getpid()) not in {pid for _what, pid in lines}


async def test_one_that_fails_in_the_children_is_told_in_one_sentence(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No child can begin: the supervisor says why, and does not start them again and again."""
    monkeypatch.setenv(app.FAILS, "yes")
    sentence = "the lifespan failed before the first claim: ConnectionError: nobody answers"
    with app.runner.override(db=db, **FAST), pytest.raises(InvalidInput, match=sentence):
        async with app.runner.working(processes=1):
            pass
