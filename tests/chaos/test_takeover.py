"""Two supervisors on one file: a killed one's tasks start again at once, and a stopped one comes back as nobody."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from typing import Any

import anyio
import pytest

from taskrunner import TaskHandle, TaskRunner
from taskrunner.chaos.kills.gates import plain_waiting, plain_zombie, waiting, zombie
from taskrunner.chaos.kills.look import look, value
from taskrunner.chaos.kills.verdict import damage
from taskrunner.chaos.kills.world import Process, World
from tests.chaos.scene import line, supervisor

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child")
"""A process whose pid means nothing here: what is left to tell its death is its lock. It dies with the command."""


# ── killed ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def seconds_to_replace(world: World, handle: TaskHandle[Any], attempt: int, victim: Process) -> float:
    """Kill the process that runs this attempt; how long it takes until the next attempt is under way."""
    killed = world.strike(victim)
    again = await line(world, "ack", task=handle.id, attempt=attempt + 1, step="first")
    return (again.ns - killed) / 1e9


async def test_a_killed_one_is_replaced_at_once(world: World, client: TaskRunner) -> None:
    """A3: ten times, with a lease of ten minutes, a killed supervisor's task runs in the other one within a second."""
    alive = {process.pid: process for process in [await supervisor(world, "--lease", "600") for _ in range(2)]}
    handle = await waiting.enqueue("gate")
    times = []
    for attempt in range(1, 11):
        began = await line(world, "gate", task=handle.id, attempt=attempt)
        times.append(await seconds_to_replace(world, handle, attempt, alive.pop(began.pid)))
        another = await supervisor(world, "--lease", "600")
        alive[another.pid] = another
    world.open_gate("gate")
    await handle.result(timeout=10)
    print(f"seconds from the kill to the next attempt: {sorted(times)}")  # noqa: T201 - a figure
    assert max(times) < 1
    assert [line.attempt for line in world.tail.lines if (line.kind, line.step) == ("effect", "first")] == [1]
    assert value(world.db, "SELECT count(*) FROM attempts WHERE outcome = 'lost'") == 10
    assert list(damage(world.db)) == []


async def test_a_newcomer_is_watched_from_the_start(world: World, client: TaskRunner) -> None:
    """A3: five times, a supervisor that was killed a moment after its start; the other one had hardly heard of it."""
    old = await supervisor(world, "--lease", "600", "--concurrency", "1")
    busy = await waiting.enqueue("0")
    await line(world, "gate", task=busy.id)
    times = []
    for key in "12345":
        newcomer = await supervisor(world, "--lease", "600", "--concurrency", "1")
        handle = await waiting.enqueue(key)
        assert (await line(world, "gate", task=handle.id)).pid == newcomer.pid
        world.open_gate(str(int(key) - 1))
        await busy.result(timeout=10)
        times.append(await seconds_to_replace(world, handle, 1, newcomer))
        busy = handle
    world.open_gate("5")
    await busy.result(timeout=10)
    assert old.lives
    print(f"seconds from the kill to the next attempt: {times}")  # noqa: T201 - a figure
    assert max(times) < 0.8


@pytest.mark.skipif(shutil.which("unshare") is None, reason="this machine has no unshare")
async def test_a_killed_container_is_replaced_within_a_second(world: World, client: TaskRunner) -> None:
    """A3, B08: of a supervisor in another pid namespace only the lock can be seen; that is enough."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us unshare a pid namespace")
    handle = await plain_waiting.enqueue("gate")
    times = []
    for attempt in (1, 3, 5):
        contained = await supervisor(world, "--lease", "600", command=CONTAINER)
        await line(world, "gate", task=handle.id, attempt=attempt)
        other = await supervisor(world, "--lease", "600")
        times.append(await seconds_to_replace(world, handle, attempt, contained))
        await line(world, "gate", task=handle.id, attempt=attempt + 1)
        world.strike(other)
    world.open_gate("gate")
    world.supervisor("--until-idle")
    await handle.result(timeout=10)
    print(f"seconds from the kill to the next attempt: {times}")  # noqa: T201 - a figure
    assert max(times) < 1


# ── stopped ───────────────────────────────────────────────────────────────────────────────────────────────────────────

DIGEST = (
    "SELECT * FROM tasks WHERE id = '{task}'",
    "SELECT * FROM steps WHERE task_id = '{task}' ORDER BY seq",
    "SELECT * FROM attempts WHERE task_id = '{task}' ORDER BY seq",
    "SELECT * FROM messages ORDER BY seq",
    "SELECT id, token_usage, status, updated_at FROM sessions ORDER BY id",
)


def digest(world: World, task: str) -> str:
    """All that the store says of a task."""
    return json.dumps(look(world.db, *(statement.format(task=task) for statement in DIGEST)))


PLACES = ("step", "progress", "message", "failure", "completion", "plain")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("plant", ["", "deaf"])
async def test_a_stopped_one_writes_nothing_any_more(world: World, client: TaskRunner, plant: str) -> None:
    """A3, I12: six zombies, each stopped before another kind of write, and six writes refused.

    Stopped for longer than its lease, a supervisor loses its tasks to the other one. When it goes on, nothing of what
    its bodies still write is kept; it says that it lost its lease, registers anew, and runs tasks again. Mostly it
    knows before its bodies have written; a deaf one hears of it late, so that every write is on its way.
    """
    world.plant = plant
    started = [await supervisor(world, "--lease", "1", "--sweep", "0.1") for _ in range(2)]
    alive = {process.pid: process for process in started}
    session = await client.sessions.create(title="zombies")
    pid = 0
    for place in PLACES:
        kind = plain_zombie if place == "plain" else zombie
        handle = await kind.options(session_id=session.id).enqueue(place, place)
        pid = (await line(world, "stop", task=handle.id)).pid
        await come_back(world, alive[pid], handle, place)
    refused = [line.step for line in world.tail.lines if line.kind == "refused"]
    assert refused == ["stopped", "message", "stopped"] or not plant
    await goes_on_working(world, pid, alive)
    assert value(world.db, "SELECT count(*) FROM attempts WHERE outcome NOT IN ('completed', 'lost')") == 0
    assert value(world.db, "SELECT count(*) FROM messages") == len(PLACES) - 1
    assert list(damage(world.db)) == []


async def come_back(world: World, undead: Process, handle: TaskHandle[str], place: str) -> None:
    """Let a zombie go on when its task waits in another process, which then completes it."""
    await line(world, "gate", task=handle.id, attempt=2)
    await anyio.sleep(0.1)
    before = digest(world, handle.id)
    since = time.monotonic_ns()
    undead.send(signal.SIGCONT)
    await line(world, "lost", after=since, pid=undead.pid)
    await line(world, "fenced", task=handle.id)
    await anyio.sleep(0.2)
    assert digest(world, handle.id) == before, f"the zombie has written: {place}"
    world.open_gate(place)
    assert await handle.result(timeout=10) == "done"
    assert (await handle.task()).attempt == 2


async def goes_on_working(world: World, pid: int, alive: dict[int, Process]) -> None:
    """The supervisor that came back runs tasks when the other one is gone."""
    for other in set(alive) - {pid}:
        world.strike(alive[other])
    world.open_gate("after")
    handle = await waiting.enqueue("after")
    await handle.result(timeout=10)
    assert (await line(world, "enter", task=handle.id)).pid == pid
