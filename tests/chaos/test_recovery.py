"""Recovery takes the tasks of the dead, whatever their timeouts, and of nobody else, however slow they are."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskHandle, TaskRunner
from taskrunner.chaos.kills import witness
from taskrunner.chaos.kills.gates import guilty, plain_waiting, waiting
from taskrunner.chaos.kills.jobs import job
from taskrunner.chaos.kills.look import answers, asked, value
from taskrunner.chaos.kills.verdict import damage
from taskrunner.chaos.kills.world import ROOT, Process, World
from tests.chaos.scene import line, supervisor

LEASE, SWEEP = 3.0, 1.0
OPTIONS = ("--lease", str(LEASE), "--sweep", str(SWEEP))


async def ten_at_the_gate(world: World, process: Process, shortest: float) -> list[TaskHandle[str]]:
    """Ten tasks of both kinds, with timeouts up to an hour, that have recorded a step and wait at the gate."""
    handles = []
    for number in range(10):
        kind = plain_waiting if number % 2 else waiting
        timeout = shortest * (3600 / shortest) ** (number / 9)
        handles.append(await kind.options(timeout=timeout).enqueue("gate"))
    for handle in handles:
        assert (await line(world, "gate", task=handle.id)).pid == process.pid
    return handles


def effects(world: World) -> Counter[tuple[str, str]]:
    """How often each step of each task was run."""
    world.tail.read()
    return Counter((line.task, line.step) for line in world.tail.lines if line.kind == "effect")


async def test_all_tasks_of_a_killed_supervisor_run_after_its_restart(world: World, client: TaskRunner) -> None:
    """B07 (b): ten tasks run again within lease + sweep of the restart, whatever their own timeouts.

    No retry is charged, what was recorded is not run again, and the history says that the worker was lost.
    """
    killed = await supervisor(world, *OPTIONS)
    handles = await ten_at_the_gate(world, killed, shortest=3)
    world.strike(killed)
    restarted = time.monotonic_ns()
    world.supervisor(*OPTIONS)
    again = [await line(world, "enter", after=restarted, task=handle.id) for handle in handles]
    assert max(line.ns for line in again) - restarted < (LEASE + SWEEP) * 1e9
    world.open_gate("gate")
    for handle in handles:
        await handle.result(timeout=10)
        info = await handle.info()
        assert (info.task.attempt, info.task.retry_count) == (2, 0)
        assert [attempt.outcome for attempt in info.attempts] == ["lost", "completed"]
        assert f"worker lost: process {killed.pid} " in (said := str(info.attempts[0].error_message))
        assert said.count(str(killed.pid)) == 1
    assert set(effects(world).values()) == {1}
    assert list(damage(world.db)) == []


@pytest.mark.parametrize("how", ["kill", "exit"])
async def test_a_task_that_ends_its_process_is_quarantined(world: World, client: TaskRunner, how: str) -> None:
    """B09: after max_losses (3) deaths in a row it fails with the evidence; the ten tasks beside it are done."""
    bad = await guilty.enqueue(how)
    session = await client.sessions.create()
    good = [await job.options(session_id=session.id).enqueue(f"k{number}", 0.001) for number in range(10)]
    pids = []
    for _ in range(3):
        process = world.supervisor("--until-idle")
        assert await anyio.to_thread.run_sync(process.wait, 10)
        pids.append(process.pid)
    last = world.supervisor("--until-idle")
    assert await anyio.to_thread.run_sync(last.wait, 10)
    info = await bad.info()
    assert (info.task.status, info.task.attempt, info.task.losses) == ("failed", 3, 3)
    assert [attempt.outcome for attempt in info.attempts] == ["lost"] * 3
    evidence = str(info.task.error_message)
    assert evidence.startswith("quarantined: ")
    assert f"process {pids[-1]} " in evidence
    assert [await handle.status() for handle in good] == ["completed"] * 10
    assert world.complaints()
    assert list(damage(world.db)) == []


async def test_a_second_process_takes_nothing_from_a_living_one(world: World, client: TaskRunner) -> None:
    """B15: a second supervisor, a client, and the commands that look at the store leave ten running tasks alone."""
    first = await supervisor(world, *OPTIONS)
    handles = await ten_at_the_gate(world, first, shortest=60)
    second = await supervisor(world, *OPTIONS)
    other = await waiting.enqueue("other")
    assert (await line(world, "gate", task=other.id)).pid == second.pid
    looked = time.monotonic()
    assert len(await client.tasks.list(status="running")) == 11
    for command in (["doctor"], ["list"], ["show", handles[0].id]):
        words = [sys.executable, "-m", "taskrunner", *command, "--db", str(world.db), "--json"]
        done = await anyio.run_process(words, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)
    await anyio.sleep(looked + 1.5 * LEASE - time.monotonic())
    world.open_gate("gate")
    world.open_gate("other")
    for handle in [*handles, other]:
        await handle.result(timeout=10)
    assert value(world.db, "SELECT max(attempt) FROM tasks") == 1
    assert set(effects(world).values()) == {1}
    assert world.complaints() == []


@pytest.mark.parametrize("door", ["library", "command"])
async def test_a_task_may_take_longer_than_the_lease(
    world: World, client: TaskRunner, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """B16: four tasks run for more than two leases, beside two idle supervisors: each is begun once.

    The lease is renewed all the time: its end moves forward at least every half of it.
    """
    monkeypatch.setenv(witness.VARIABLE, str(world.witness))
    async with AsyncExitStack() as stack:
        if door == "command":
            worker = (await supervisor(world, *OPTIONS)).pid
        else:
            worker = 0
            stack.enter_context(client.override(lease=LEASE, sweep=SWEEP))
            await stack.enter_async_context(client.working())
        handles = [await kind.enqueue("gate") for kind in (waiting, plain_waiting) * 2]
        for handle in handles:
            began = await line(world, "gate", task=handle.id)
            assert worker in (0, began.pid)
        for _ in range(2):
            await supervisor(world, *OPTIONS)
        ends = await ends_of_leases(world.db, seconds=2.3 * LEASE)
        world.open_gate("gate")
        for handle in handles:
            await handle.result(timeout=10)
    assert set(effects(world).values()) == {1}
    assert value(world.db, "SELECT max(attempt) FROM tasks") == 1
    assert longest_standstill(ends) <= LEASE / 2


async def ends_of_leases(db: Path, *, seconds: float, every: float = 0.1) -> list[int]:
    """When the lease of the running tasks ends, in the words of the store, looked at again and again."""
    sql = "SELECT DISTINCT expires_at FROM leases"
    process: subprocess.Popen[str] = asked(db, sql, every=every, times=int(seconds / every))
    looks = await anyio.to_thread.run_sync(answers, process)
    assert {len(rows) for rows in looks} == {1}
    return [rows[0][0] for rows in looks]


def longest_standstill(ends: list[int], every: float = 0.1) -> float:
    """Seconds for which the end of the lease did not move."""
    longest = run = 0
    for before, now in pairwise(ends):
        run = run + 1 if now == before else 0
        longest = max(longest, run)
    return longest * every
