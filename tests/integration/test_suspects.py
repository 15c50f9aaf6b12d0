"""Suspects: one guilty task costs an innocent neighbour at most two losses, and holds up nobody for long."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from taskrunner import Task, TaskContext, TaskRunner
from tests.integration import children_app as app
from tests.integration.machine import PREAMBLE, ROOT, EffectLog, Heard, quick, sql, until

PILL = """
@runner.task
async def pill(ctx: TaskContext) -> None:
    effect("pill", ctx.attempt)
    await anyio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)

@runner.task
async def good(ctx: TaskContext, number: int) -> int:
    effect("good", number, ctx.attempt)
    await anyio.sleep(0.15)
    return number

import signal
anyio.run(partial(runner.run, until_idle=True))
"""


@pytest.mark.parametrize("max_losses", [3, 5])
def test_a_pill_among_good_ones(db: Path, tmp_path: Path, max_losses: int) -> None:
    """B09: a task that kills its process each time is failed after exactly `max_losses`; its 20 neighbours complete."""
    runner = TaskRunner(db, max_losses=max_losses)
    with runner.sync as wait:
        for number in range(10):
            wait(runner.enqueue("good", {"number": number}))
        pill = wait(runner.enqueue("pill", {}, max_retries=0))
        for number in range(10, 20):
            wait(runner.enqueue("good", {"number": number}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PREAMBLE + PILL, str(db), str(tmp_path / "effects")]
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        assert len(codes) <= max_losses, codes
        codes.append(subprocess.run(command, env=environment, check=False, timeout=15).returncode)
    assert codes == [-signal.SIGKILL] * max_losses + [0]
    with runner.sync as wait:
        info = wait(runner.handle(pill.id).info())
    assert (info.task.status, info.task.losses, info.task.error_type) == ("failed", max_losses, "taskrunner.WorkerLost")
    assert f"lost {max_losses} times in a row" in str(info.task.error_message)
    assert [attempt.outcome for attempt in info.attempts] == ["lost"] * max_losses
    assert sql(db, "SELECT status, count(*) FROM tasks WHERE type = 'good' GROUP BY status") == [["completed", 20]]
    lost = (
        "SELECT max(n) FROM (SELECT count(*) n FROM attempts WHERE outcome = 'lost' AND task_id <> ? GROUP BY task_id)"
    )
    assert sql(db, lost, pill.id) == [[2]]


def suspects(db: Path, *ids: str) -> None:
    """Have these pending tasks look as if they had lost their process twice."""
    marks = ", ".join("?" for _ in ids)
    sql(db, f"UPDATE tasks SET losses = 2, hold = 4 WHERE id IN ({marks})", *ids)  # noqa: S608 - marks only


async def test_nothing_joins_a_suspect_until_it_has_a_step(db: Path) -> None:
    """In its process nothing is claimed beside a suspect; after its first step, others run beside it."""
    runner = quick(db)
    heard = Heard(runner, "task.started")
    step, end = anyio.Event(), anyio.Event()

    @runner.task
    async def doubtful(ctx: TaskContext) -> None:
        await step.wait()
        await ctx.step("first", int, 1)
        await end.wait()

    @runner.task
    async def other() -> str:
        return "ran"

    def started() -> list[str]:
        return [event["task_type"] for event in heard.events]

    async with runner:
        suspect = await doubtful.enqueue()
        suspects(db, suspect.id)
        async with runner.working(concurrency=5):
            await until(lambda: started() == ["doubtful"])
            handle = await other.enqueue()
            await anyio.sleep(0.4)
            assert await handle.status() == "pending"
            step.set()
            assert await handle.result(timeout=5) == "ran"
            assert await suspect.status() == "running"
            end.set()
            await suspect.result(timeout=5)


async def test_suspects_and_others_take_turns(db: Path) -> None:
    """Neither starves: with a backlog of both, suspects run one at a time, and between two of them others get in."""
    runner = quick(db)
    order: list[str] = []
    running: set[str] = set()
    beside: list[set[str]] = []

    @runner.task
    async def work(ctx: TaskContext, kind: str) -> None:
        order.append(kind)
        running.add(ctx.task.id)
        if kind == "suspect":
            beside.append({each for each in running if each in doubtful})
        await anyio.sleep(0.005)
        running.discard(ctx.task.id)

    async with runner:
        handles = await runner.enqueue_many([work.bind("suspect") for _ in range(8)])
        doubtful = {handle.id for handle in handles}
        await runner.enqueue_many([work.bind("other") for _ in range(200)])
        suspects(db, *doubtful)
        assert await runner.drain() == 208
    assert all(len(together) == 1 for together in beside), beside
    places = [place for place, kind in enumerate(order) if kind == "suspect"]
    assert places[0] == 0  # it harms nobody while nobody else is there
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(places)), places
    assert places[-1] < 150, places


async def test_with_children_one_at_a_time_and_others_beside(db: Path, tmp_path: Path) -> None:
    """Each suspect has a child of its own, one after the other; the other children run what else there is."""
    log = EffectLog(tmp_path / "log")
    async with quick(db) as client:
        given = {"log": str(log.path), "seconds": 0.3}
        doubtful = [(await client.enqueue("nap", given)).id for _ in range(3)]
        others = [(await client.enqueue("nap", {**given, "seconds": 0.05})).id for _ in range(12)]
        suspects(db, *doubtful)
    async with app.at_work(db, processes=2, concurrency=4):
        await until(lambda: len(log.lines()) == 30, within=15)
    lines = [line.split() for line in log.lines()]
    theirs = [(what, task_id) for what, task_id, _pid in lines if task_id in doubtful]
    assert theirs == [(what, task_id) for task_id in doubtful for what in ("begins", "ends")]
    assert {pid for _what, task_id, pid in lines if task_id in doubtful}.isdisjoint(
        pid for _what, task_id, pid in lines if task_id in others
    )
    ids = [task_id for _what, task_id, _pid in lines]
    assert max(map(ids.index, others)) < ids.index(doubtful[-1]), "they have waited for the suspects"


async def test_a_suspect_is_left_to_who_has_room(db: Path) -> None:
    """A suspect in a paused queue neither runs nor keeps a supervisor awake or from ending."""
    runner = quick(db)

    @runner.task(queue="mail")
    async def send() -> str:
        return "sent"

    async with runner:
        handle = await send.enqueue()
        suspects(db, handle.id)
        await runner.pause("mail")
        began = time.process_time()
        async with runner.working():
            await anyio.sleep(1)
        assert time.process_time() - began < 0.5
        assert await runner.drain() == 0
        task: Task = await handle.task()
        assert task.is_suspect
        await runner.resume("mail")
        assert await runner.drain() == 1
