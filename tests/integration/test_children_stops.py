"""Supervisors with child processes that are stopped, and several of them on one file."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from taskrunner import BoundTask, TaskHandle, TaskRunner
from taskrunner.authoring.enqueueing import bound_by_name
from tests.integration.children_programs import children_of, events, hears, supervise, write
from tests.integration.machine import EffectLog, alive, sql, until

DEPLOY = """
@runner.task(max_retries=0)
async def brief():
    effect("brief begins")
    await anyio.sleep(0.5)
    effect("brief ends")

@runner.task(max_retries=0)
async def long(ctx: TaskContext) -> str:
    for number in range(3):
        await ctx.step("part", effect, "part", number)
    if ctx.attempt == 1:
        await anyio.sleep(60)
    await ctx.step("last", effect, "last part")
    return "done"

@runner.task(max_retries=0)
def plain(ctx: TaskContext) -> str:
    ctx.sync(ctx.step("first", effect, "first of plain"))
    if ctx.attempt == 1:
        time.sleep(60)
    return "done"

@runner.task(max_retries=0)
async def queued():
    effect("queued")
"""


@pytest.mark.timeout(40)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_deploy_loses_and_burns_nothing(db: Path, tmp_path: Path, number: signal.Signals) -> None:
    """B20: the signal goes to the supervisor and to its children, as a service manager sends it to all of them.

    What ends in the grace is done; the rest is handed back and goes on at its last step; exit 0 within grace and 2 s.
    """
    write(tmp_path, DEPLOY)
    log = EffectLog(tmp_path / "effects")
    async with TaskRunner(db) as client:
        first = supervise(tmp_path, "--processes", "2", "--concurrency", "3")
        try:
            running: list[TaskHandle[Any]] = [await client.enqueue(name) for name in ("brief", "long", "plain")]
            waiting = [await client.enqueue("queued", priority=9) for _ in range(20)]
            await until(lambda: len(log.lines()) == 5, within=15)
            await until(lambda: all(hears(pid, number) for pid in children_of(first.pid)))
            began = time.monotonic()
            for pid in [*children_of(first.pid), first.pid]:
                os.kill(pid, number)
            _out, error = first.communicate(timeout=10)
            assert time.monotonic() - began < 1 + 2
        finally:
            first.kill()
        assert (first.returncode, log.lines()[5:]) == (0, ["brief ends"])
        assert {event["event"] for event in events(error)}.isdisjoint({"child.lost", "task.leaked", "task.recovered"})
        tasks = [await handle.task() for handle in [*running, *waiting]]
        assert [task.status for task in tasks] == ["completed"] + ["pending"] * 22
        assert {(task.retry_count, task.losses, task.error_message) for task in tasks} == {(0, 0, None)}
        second = supervise(tmp_path, "--processes", "2", "--until-idle")
        assert [await handle.result(timeout=15) for handle in running] == [None, "done", "done"]
        second.communicate(timeout=15)
        assert second.returncode == 0
    assert sorted(set(log.lines())) == sorted(
        ["brief begins", "brief ends", "part 0", "part 1", "part 2", "last part", "first of plain", "queued"]
    )
    assert len(log.lines()) == 7 + 20


STORM = """
@runner.task(max_retries=0)
async def job(number: int) -> int:
    effect("begin", number)
    await anyio.sleep(0.02 + number % 7 * 0.01)
    effect("end", number)
    return number

@runner.task(max_retries=0)
def plain(number: int) -> int:
    effect("begin", number)
    time.sleep(0.02 + number % 7 * 0.01)
    effect("end", number)
    return number
"""


@pytest.mark.timeout(60)
def test_a_signal_at_any_moment(db: Path, tmp_path: Path) -> None:
    """B21: a stop at a random moment, every other time twice: no row stays claimed, none fails, none is charged.

    A body that returned is done; at most one of each slot is run once more in a round.
    """
    write(tmp_path, STORM)
    log, chance = EffectLog(tmp_path / "effects"), random.Random(1)
    client = TaskRunner(db)
    with client.sync as wait:
        for number in range(120):
            wait(client.enqueue("plain" if number % 5 == 0 else "job", {"number": number}))
    for round_ in range(4):
        supervisor = supervise(tmp_path, "--processes", "2", "--concurrency", "4")
        before = len(log.lines())
        while len(log.lines()) == before and supervisor.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.3))
        supervisor.send_signal(signal.SIGTERM)
        if round_ % 2:
            time.sleep(chance.uniform(0.0, 0.1))
            supervisor.send_signal(signal.SIGTERM)
        _out, error = supervisor.communicate(timeout=15)
        assert supervisor.returncode == 0, error
        states = sql(db, "SELECT status, count(*), sum(retry_count), sum(losses) FROM tasks GROUP BY status")
        assert {state[0] for state in states} <= {"pending", "completed"}, states
        assert sum(state[2] + state[3] for state in states) == 0, states
    last = supervise(tmp_path, "--processes", "2", "--until-idle")
    last.communicate(timeout=20)
    assert last.returncode == 0
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", 120]]
    counts = Counter(log.lines())
    assert {line for line in counts if line.startswith("end")} == {f"end {number}" for number in range(120)}
    assert sum(count for line, count in counts.items() if line.startswith("begin")) - 120 <= 4 * 4
    assert max(counts.values()) <= 2


TASKS = int(os.environ.get("TASKRUNNER_TEST_TASKS", "1000"))


@pytest.mark.timeout(300)
def test_two_supervisors_with_children_share_one_file(db: Path, tmp_path: Path) -> None:
    """A2: two supervisors, each with two children, drain 1,000 tasks (TASKRUNNER_TEST_TASKS): each runs once."""
    write(tmp_path, STORM.replace("0.02 + number % 7 * 0.01", "0"))
    log = EffectLog(tmp_path / "effects")
    client = TaskRunner(db)
    with client.sync as wait:
        for _ in range(0, TASKS, 500):
            wait(client.enqueue_many([client_task(number) for number in range(500)]))
    processes = os.environ.get("TASKRUNNER_TEST_PROCESSES", "2")
    both = [supervise(tmp_path, "--processes", processes, "--until-idle", "--concurrency", "64") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:  # a log that nobody reads would hold its supervisor up
        errors = list(pool.map(lambda process: str(process.communicate(timeout=240)[1]), both))
    assert [process.returncode for process in both] == [0, 0]
    assert {event["event"] for error in errors for event in events(error)}.isdisjoint({"child.lost", "task.recovered"})
    assert sql(db, "SELECT status, count(*), max(attempt) FROM tasks GROUP BY status") == [["completed", TASKS, 1]]
    assert Counter(log.lines()).total() == 2 * TASKS
    started = [{e["task_id"] for e in events(error) if e["event"] == "task.started"} for error in errors]
    assert min(map(len, started)) > TASKS / 10
    assert not started[0] & started[1]


def client_task(number: int) -> BoundTask[Any]:
    """A task by its name."""
    return bound_by_name("job", {"number": number}, {})


@pytest.mark.timeout(40)
async def test_a_supervisor_that_lost_its_lease_ends_its_children(db: Path, tmp_path: Path) -> None:
    """G3: it was stopped for longer than its lease: another goes on with its task; when it wakes, its old body is gone.

    It begins again as another, with new children, and works on.
    """
    write(tmp_path, DEPLOY)
    log = EffectLog(tmp_path / "effects")
    async with TaskRunner(db) as client:
        first = supervise(tmp_path, "--processes", "1", "--lease", "2", "--heartbeat", "0.4")
        second = None
        try:
            handle = await client.enqueue("long")
            await until(lambda: len(log.lines()) == 3, within=15)
            [child] = children_of(first.pid)
            first.send_signal(signal.SIGSTOP)
            second = supervise(tmp_path, "--processes", "1")
            assert await handle.result(timeout=15) == "done"
            first.send_signal(signal.SIGCONT)
            await until(lambda: not alive(child))
            second.send_signal(signal.SIGTERM)
            second.communicate(timeout=15)
            await (await client.enqueue("queued")).result(timeout=15)
            [another] = children_of(first.pid)
        finally:
            first.send_signal(signal.SIGTERM)
            _out, error = first.communicate(timeout=15)
            if second is not None:
                second.kill()
    assert another != child
    assert log.lines() == ["part 0", "part 1", "part 2", "last part", "queued"]
    assert (first.returncode, [event["event"] for event in events(error)].count("lease.lost")) == (0, 1)
    assert sql(db, "SELECT outcome FROM attempts WHERE task_id = ? ORDER BY attempt", handle.id) == [
        ["lost"],
        ["completed"],
    ]
