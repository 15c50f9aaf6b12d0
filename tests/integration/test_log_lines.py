"""What a task logs is kept in the store, as it was emitted and within bounds, for who follows it from elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
import structlog.testing

from taskrunner import LeaseLost, Retry, TaskContext
from taskrunner.authoring.log_lines import MOST_LINES, MOST_TEXT
from tests.integration import children_app as app
from tests.integration.machine import ROOT, EffectLog, ended, program, quick, sql, until

READ = "SELECT attempt, level, event, fields FROM logs ORDER BY seq"


@pytest.fixture(autouse=True)
def structlog_as_it_was() -> Iterator[None]:
    """No test's configuration is left to the next one."""
    before = structlog.get_config() if structlog.is_configured() else None
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


class Unprintable:
    """A value that nobody can print or encode."""

    def __repr__(self) -> str:
        return "Unprintable()"

    def __str__(self) -> str:
        raise RuntimeError


def lines(db: Path) -> list[Any]:
    """The lines of a file, in their order, with their fields."""
    return [[*rest, json.loads(fields)] for *rest, fields in sql(db, READ)]


async def test_what_is_logged_is_kept_with_its_fields(db: Path) -> None:
    """Whatever it is, by the plain and by the awaited calls, from threads, and with the attempt's number."""
    runner = quick(db)
    endless: list[Any] = []
    endless.append(endless)

    @runner.task
    async def talks(ctx: TaskContext) -> None:
        ctx.log.info("one", number=1, odd={"unprintable": Unprintable()}, nested=[{"a": None}])
        await ctx.log.awarning("two %s", "words", huge=10**30, text="\ud800\x00")
        await anyio.to_thread.run_sync(lambda: ctx.log.bind(more=2).error("three", endless=endless))
        try:
            ctx.task.input["here"]
        except KeyError:
            ctx.log.exception("four")
        if ctx.attempt == 1:
            raise Retry(after=0)

    task = await ended(runner, talks.bind())
    assert task.status == "completed", task.error_message
    odd = {"number": 1, "odd": {"unprintable": "a value of type Unprintable"}, "nested": [{"a": None}]}
    for attempt in (1, 2):
        first, second, third, fourth = (line[1:] for line in lines(db) if line[0] == attempt)
        assert first == ["info", "one", odd]
        assert second == ["warning", "two words", {"huge": 10**30, "text": "\\ud800\\x00"}]
        assert third == ["error", "three", {"more": 2, "endless": "[[...]]"}]
        assert fourth[:2] == ["error", "four"]
        assert fourth[2] == {"exception": "KeyError: 'here'"}


async def test_it_is_kept_as_the_program_emits_it(db: Path) -> None:
    """What the level filters out or a processor drops is not kept, and what one hides stays hidden."""
    runner = quick(db)
    written: list[str] = []

    def hide(_logger: object, _name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if event["event"] == "drop me":
            raise structlog.DropEvent
        return {**event, "password": "***"}

    structlog.configure(
        processors=[hide, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        logger_factory=lambda *_names: structlog.testing.CapturingLogger(),
        cache_logger_on_first_use=True,
    )

    @runner.task
    async def talks(ctx: TaskContext) -> None:
        ctx.log.debug("too little")
        ctx.log.info("drop me")
        ctx.log.info("kept", password="secret")  # noqa: S106 - which is the point
        written.extend(str(call.args[0]) for call in ctx.log._logger.calls)  # type: ignore[attr-defined]

    task = await ended(runner, talks.bind())
    assert task.status == "completed", task.error_message
    assert lines(db) == [[1, "info", "kept", {"password": "***"}]]
    known = {"task_id": task.id, "task_type": "talks", "attempt": 1}
    assert [json.loads(text) for text in written] == [{**known, "event": "kept", "password": "***"}]


async def test_structlogs_own_capture_for_tests_works_as_ever(db: Path) -> None:
    """`capture_logs` hears what a task logs, also of a logger that was there before; what it takes is not emitted."""
    runner = quick(db)
    captured: list[Any] = []

    @runner.task
    async def talks(ctx: TaskContext) -> None:
        ctx.log.info("before")
        with structlog.testing.capture_logs() as entries:
            ctx.log.info("captured", x=1)
        captured.extend(entries)
        ctx.log.info("after")

    task = await ended(runner, talks.bind())
    known = {"task_id": task.id, "task_type": "talks", "attempt": 1}
    assert captured == [{**known, "event": "captured", "x": 1, "log_level": "info"}]
    assert [line[2] for line in lines(db)] == ["before", "after"]


async def test_what_is_kept_is_bounded(db: Path) -> None:
    """Of 5,000 lines a thousand are kept, and one that says so; texts and fields are cut; few commits carry them."""
    runner = quick(db)
    structlog.configure(processors=[lambda *_given: ""], logger_factory=structlog.testing.ReturnLoggerFactory())

    @runner.task
    async def talks(ctx: TaskContext) -> None:
        ctx.log.info("x" * 100_000, a="y" * 100_000, b=["z"] * 100_000, c=1)
        threads = [threading.Thread(target=lambda: [ctx.log.info("again") for _ in range(1_000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(1_000):
            ctx.log.info("again")
            await ctx.progress(0.5)
        for thread in threads:
            thread.join()

    async with runner.working():
        handle = await talks.enqueue()
        ((before,),) = sql(db, "SELECT token FROM writers")
        await handle.result(timeout=10)
        ((after,),) = sql(db, "SELECT token FROM writers")
    assert after - before < 30
    found = lines(db)
    assert len(found) == MOST_LINES + 1
    assert [line[1:] for line in found if line[2] not in {"again", found[0][2]}] == [
        ["warning", "this attempt has logged 1,000 lines: those that follow are not kept here", {}]
    ]
    assert found[0][2] == "x" * MOST_TEXT + "… (100,000 characters in all)"
    assert found[0][3] == {"a": "y" * MOST_TEXT + "… (100,000 characters in all)", "…": "2 more"}


async def test_a_zombie_writes_no_lines(db: Path) -> None:
    """What a body logs that has lost its task, without knowing it, is refused like its steps."""
    runner = quick(db, sweep=5, heartbeat=1)
    told: list[str] = []
    taken = anyio.Event()

    @runner.task
    async def talks(ctx: TaskContext) -> None:
        if ctx.attempt > 1:
            return
        ctx.log.info("mine")
        await ctx.step("first", int)
        await anyio.to_thread.run_sync(
            sql, db, "UPDATE tasks SET status = 'pending', lease_owner = NULL, outcome = 'lost'"
        )
        ctx.log.info("of a zombie")
        try:
            await ctx.step("second", int)
        except LeaseLost:
            told.append("refused")
            raise
        finally:
            taken.set()

    async with runner.working():
        handle = await talks.enqueue()
        await taken.wait()
        await handle.result(timeout=10)
    assert told == ["refused"]
    assert [line[:3] for line in lines(db)] == [[1, "info", "mine"]]


@contextmanager
def tail(db: Path, task_id: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What another process tells of a task, line by line."""
    command = [sys.executable, "-m", "taskrunner", "--db", str(db), "tail", task_id, "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as run:
        assert run.stdout is not None
        yield map(json.loads, run.stdout)
        run.kill()


async def test_another_process_follows_the_log_of_a_child(db: Path, tmp_path: Path) -> None:
    """A body in a child process logs, and `tail` shows it before the body ends; kill -9 takes nothing of that back."""
    gate = tmp_path / "gate"
    async with app.at_work(db, processes=1):
        handle = await app.talks.enqueue(str(gate))
        with tail(db, handle.id) as told:

            def events() -> list[tuple[int, str]]:
                """The lines from where we are until one that says that the body waits."""
                found = []
                for line in told:
                    if line["kind"] == "log":
                        found.append((line["attempt"], line["event"]))
                        if line["event"] == "waiting":
                            break
                return found

            with anyio.fail_after(15):
                assert await anyio.to_thread.run_sync(events) == [(1, "begun"), (1, "waiting")]
            os.kill(int(await anyio.to_thread.run_sync(child_of, db, handle.id)), signal.SIGKILL)
            with anyio.fail_after(15):
                assert await anyio.to_thread.run_sync(events) == [(2, "begun"), (2, "waiting")]
            gate.touch()
            rest = await anyio.to_thread.run_sync(list, told)
        await handle.result(timeout=10)
    assert [line["event"] for line in rest if line["kind"] == "log"] == ["last words"]
    assert [line["kind"] for line in rest][-1] == "status"
    assert [line[2] for line in lines(db)] == ["begun", "waiting", "begun", "waiting", "last words"]


def child_of(db: Path, task_id: str) -> str:
    """The process that the task says that it runs in."""
    ((fields,),) = sql(db, "SELECT fields FROM logs WHERE task_id = ? ORDER BY seq LIMIT 1", task_id)
    return str(json.loads(fields)["pid"])


TALKS_AND_DIES = """
@runner.task
async def talks(ctx: TaskContext) -> None:
    ctx.log.info("flushed")
    await anyio.sleep(1)
    effect("flushed")
    await anyio.sleep(60)

async def main():
    async with runner.working():
        await talks.enqueue()
        await anyio.sleep(60)

asyncio.run(main())
"""


async def test_a_killed_supervisor_leaves_what_was_flushed(db: Path, tmp_path: Path) -> None:
    """By kill -9: what was logged a second ago is in the store, under the number of the attempt that died."""
    log = EffectLog(tmp_path / "log")
    with program(db, log, TALKS_AND_DIES) as running:
        await anyio.to_thread.run_sync(log.wait_for, 1)
        running.process.kill()
        running.process.wait()
    assert lines(db) == [[1, "info", "flushed", {}]]


async def test_a_log_goes_with_its_task(db: Path) -> None:
    """`keep_finished` removes the lines as well, a thousand and more of them at once."""
    runner = quick(db, keep_finished="1s")
    structlog.configure(processors=[lambda *_given: ""], logger_factory=structlog.testing.ReturnLoggerFactory())

    @runner.task
    async def talks(ctx: TaskContext) -> None:
        for _ in range(1_500):
            ctx.log.info("again")

    async with runner.working():
        await (await talks.enqueue()).result(timeout=5)
        assert len(lines(db)) == MOST_LINES + 1
        await until(lambda: sql(db, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM logs)") == [[0, 0]])
