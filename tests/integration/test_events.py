"""`runner.on`: what is told, with which fields, and that a listener's fault is its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import Retry, TaskContext
from tests.integration.machine import Heard, quick, until


async def test_the_life_of_tasks_is_told(db: Path) -> None:
    """Each event with the task's id, type and attempt; errors with their text."""
    runner = quick(db, grace=0.1)
    heard = Heard(runner)
    running = anyio.Event()

    @runner.task(wait=0.01, max_retries=1)
    async def flaky(ctx: TaskContext) -> None:
        raise ConnectionError("no route") if ctx.attempt == 1 else ValueError("bad")

    @runner.task
    async def fine() -> None: ...

    @runner.task
    async def long() -> None:
        running.set()
        await anyio.sleep(60)

    async with runner:
        async with runner.working():
            for task in (flaky, fine):
                handle = await task.enqueue()
                with anyio.move_on_after(5):
                    await until(lambda: len(heard.of("task.failed")) + len(heard.of("task.completed")) >= 1)
            await until(lambda: heard.of("task.failed") and heard.of("task.completed"))
            handle = await long.enqueue()
            await running.wait()
        await handle.cancel()
    names = [(event["event"], event.get("task_type"), event.get("attempt")) for event in heard.events]
    expected: list[tuple[str, str, int]] = [
        ("task.started", "flaky", 1),
        ("task.retried", "flaky", 1),
        ("task.started", "flaky", 2),
        ("task.failed", "flaky", 2),
        ("task.started", "fine", 1),
        ("task.completed", "fine", 1),
        ("task.started", "long", 1),
        ("task.released", "long", 1),
    ]
    assert [name for name in names if name[0].startswith("task.")] == sorted(expected, key=names.index)
    assert names[0][0] == "supervisor.started"
    assert names[-1][0] == "supervisor.stopped"
    (retried,), (failed,) = heard.of("task.retried"), heard.of("task.failed")
    assert (retried["error"], failed["error"]) == ("ConnectionError: no route", "ValueError: bad")
    assert all(event["task_id"] for event in heard.events if event["event"].startswith("task."))


async def test_a_listener_that_raises_harms_nobody(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the task and the other listeners go on."""
    runner = quick(db)
    heard: list[str] = []

    def broken(event: Mapping[str, Any]) -> None:
        raise RuntimeError("a listener's fault")

    runner.on("task.completed", broken)
    runner.on("task.completed", lambda event: heard.append(event["task_type"]))

    @runner.task
    async def one() -> int:
        return 1

    with caplog.at_level(logging.ERROR, logger="taskrunner"):
        async with runner.working():
            assert await (await one.enqueue()).result(timeout=5) == 1
    assert heard == ["one"]
    assert "a listener's fault" in caplog.text


async def test_a_listener_may_enqueue(db: Path) -> None:
    """It is called on the event loop: a callback may start what follows."""
    runner = quick(db)
    follow: list[str] = []

    @runner.task
    async def first() -> None: ...

    @runner.task
    async def second() -> None:
        follow.append("ran")

    async with runner.working(), anyio.create_task_group() as group:
        runner.on("task.completed", lambda event: event["task_type"] == "first" and group.start_soon(second.enqueue))
        await first.enqueue()
        await until(lambda: follow)


async def test_quiet_without_listeners(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The library only emits: ordinary lives are not logged, trouble is, once."""
    runner = quick(db)

    @runner.task
    async def one(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            raise Retry(after=0)
        return 1

    with caplog.at_level(logging.DEBUG, logger="taskrunner"):
        async with runner.working():
            assert await (await one.enqueue()).result(timeout=5) == 1
    assert caplog.records == []
