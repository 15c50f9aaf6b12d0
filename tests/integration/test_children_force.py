"""Bodies in children that ignore whatever they are asked: ended by force, in time, and at nobody else's cost."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import TaskHandle, TaskRunner
from tests.integration import children_app as app
from tests.integration.machine import FAST, EffectLog, alive, sql, until

STUBBORN = {"stubborn": app.stubborn, "deaf": app.deaf}


@pytest.mark.parametrize("name", STUBBORN)
@pytest.mark.parametrize("by", ["cancel", "timeout"])
async def test_a_body_that_ignores_its_end_is_ended_by_force(db: Path, tmp_path: Path, name: str, by: str) -> None:
    """B34, G6: the end stands within the grace and 2 s, its tree is gone, and nothing that it does later counts.

    A body beside it in the same child is handed back without any charge, and goes on at its last step.
    """
    log, parts = EffectLog(tmp_path / "log"), EffectLog(tmp_path / "parts")
    limit: dict[str, Any] = {"timeout": 1.0} if by == "timeout" else {}
    async with app.at_work(db, processes=1) as heard:
        innocent = await app.steps.enqueue(str(parts.path))
        await until(lambda: len(parts.lines()) == 3)
        handle: TaskHandle[None] = await STUBBORN[name].options(**limit).enqueue(str(log.path))
        await until(lambda: any(line.startswith("begins") for line in log.lines()))
        pids = [int(pid) for pid in log.lines()[0].split()[2:]]
        asked = time.monotonic()
        if by == "cancel":
            assert await handle.cancel() == "cancelling"
        ended = "cancelled" if by == "cancel" else "failed"

        async def has_ended() -> bool:
            return await handle.status() == ended

        await until(has_ended, within=5)
        assert time.monotonic() - asked < (1.0 if by == "timeout" else 0.0) + 0.5 + 2
        await until(lambda: not any(alive(pid) for pid in pids), within=2)
        count = len(log.lines())
        assert await innocent.result(timeout=10) == "done"
        task, info = await handle.task(), await innocent.info()
        assert len(log.lines()) == count
    assert (task.attempt, task.losses) == (1, 0)
    assert task.error_type == (None if by == "cancel" else "TimeoutError")
    assert [attempt.outcome for attempt in info.attempts] == ["released", "completed"]
    assert (info.task.losses, info.task.retry_count) == (0, 0)
    assert parts.lines() == ["part 0", "part 1", "part 2", "last"]
    assert heard.of("task.leaked") == []
    assert heard.of("child.lost") == []


@pytest.mark.timeout(60)
async def test_who_is_handed_back_again_and_again_gets_a_child_alone(db: Path, tmp_path: Path) -> None:
    """The only child is killed for others every second: a body of two seconds without a step has its end all the same.

    After it was handed back for others twice it runs in a child that nobody else is given.
    """
    log, naps = EffectLog(tmp_path / "log"), EffectLog(tmp_path / "naps")

    async def feed() -> None:
        while True:
            handle = await app.stubborn.options(timeout=0.3).enqueue(str(log.path))
            await until(partial(_is_failed, handle), within=20)

    async with app.at_work(db, processes=1), anyio.create_task_group() as group:
        group.start_soon(feed)
        await until(log.lines, within=10)
        innocent = await app.nap.enqueue(str(naps.path), 2.0)
        await innocent.result(timeout=30)
        attempts = (await innocent.info()).attempts
        group.cancel_scope.cancel()
    assert [attempt.outcome for attempt in attempts] == ["released", "released", "completed"]
    assert len({line.split()[2] for line in naps.lines()}) == 3


async def _is_failed(handle: TaskHandle[None]) -> bool:
    return await handle.status() == "failed"


@pytest.mark.timeout(30)
async def test_a_blocked_loop_is_named_once_and_nobody_is_taken_for_dead(db: Path, tmp_path: Path) -> None:
    """B16, B17: a body blocks its child for longer than the lease: no second start, one warning with its name.

    The other child's work goes on meanwhile, and an idle second supervisor takes nothing.
    """
    log, naps = EffectLog(tmp_path / "log"), EffectLog(tmp_path / "naps")
    idle = TaskRunner(db, **FAST)
    async with idle.working(queues=["another"]), app.at_work(db, processes=2, lease=1.5, heartbeat=0.3) as heard:
        handle = await app.block.enqueue(str(log.path), 4.0)
        await until(lambda: heard.of("loop.blocked"))
        others = [await app.nap.enqueue(str(naps.path), 0.1) for _ in range(4)]
        for other in others:
            await other.result(timeout=2)
        assert await handle.status() == "running"
        await handle.result(timeout=10)
    assert len(log.lines()) == 1
    assert len(naps.lines()) == 8
    assert sql(db, "SELECT max(attempt), max(losses) FROM tasks") == [[1, 0]]
    assert [(event["task_id"], event["task_type"]) for event in heard.of("loop.blocked")] == [(handle.id, "block")]
    assert heard.of("lease.lost") == []


@pytest.mark.timeout(30)
async def test_what_blocked_children_cannot_start_is_left_for_others(db: Path, tmp_path: Path) -> None:
    """The only child is blocked: its supervisor claims nothing that another could run, and works on when it answers."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=1, lease=1.5, heartbeat=0.3) as heard:
        blocking = await app.block.enqueue(str(log.path), 4.0)
        await until(lambda: heard.of("loop.blocked"))
        waiting = await app.who.enqueue()
        await anyio.sleep(0.5)
        assert await waiting.status() == "pending"
        await blocking.result(timeout=10)
        assert await waiting.result(timeout=1) == int(log.lines()[0].split()[2])


async def test_the_timeout_of_a_body_that_blocks_its_child_kills_it(db: Path, tmp_path: Path) -> None:
    """G4: the timeout is enforced from outside: the task is failed, and a new child is there."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=1) as heard:
        handle = await app.block.options(timeout=0.5).enqueue(str(log.path), 60)
        await until(lambda: heard.of("task.failed"), within=5)
        task = await handle.task()
        pid = await (await app.who.enqueue()).result(timeout=10)
    assert (task.status, task.error_type) == ("failed", "TimeoutError")
    assert pid != int(log.lines()[0].split()[2])


@pytest.mark.timeout(60)
async def test_a_cancel_races_with_everything(db: Path, tmp_path: Path) -> None:
    """B35: 300 jobs of 10 ms, each cancelled after 0 to 20 ms: what was acknowledged holds, and each ends once."""
    log = EffectLog(tmp_path / "log")
    chance = random.Random(1)
    async with app.at_work(db, processes=2) as heard:

        async def one(_number: int) -> tuple[str, str]:
            handle = await app.nap.enqueue(str(log.path), 0.01)
            await anyio.sleep(chance.uniform(0, 0.02))
            answer = await handle.cancel()
            began = any(handle.id in line for line in log.lines())
            with anyio.fail_after(10):
                while (status := await handle.status()) in {"pending", "running"}:  # noqa: ASYNC110 - as others look
                    await anyio.sleep(0.01)
            if answer == "cancelled":
                assert not began
            return answer, status

        found = [await one(number) for number in range(300)]
        assert await handle_of_a_finished_one(log)
    assert set(found) <= {("cancelled", "cancelled"), ("cancelling", "cancelled"), ("too_late", "completed")}
    assert len(set(found)) >= 2
    ends = [event["task_id"] for event in heard.events if event["event"] in {"task.completed", "task.cancelled"}]
    assert len(ends) == len(set(ends))
    assert sql(db, "SELECT max(attempt) <= 1, max(losses), max(retry_count) FROM tasks") == [[1, 0, 0]]


async def handle_of_a_finished_one(log: EffectLog) -> bool:
    """A job that has run to its end answers "too late", and stays as it is."""
    handle = await app.nap.enqueue(str(log.path))
    await handle.result(timeout=10)
    return await handle.cancel() == "too_late" and await handle.status() == "completed"


async def test_a_step_that_another_attempt_may_have_taken_is_refused(db: Path, tmp_path: Path) -> None:
    """G3: a child whose task was taken from it writes nothing more: its body ends, fenced."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=1, sweep=60):
        handle = await app.stubborn.enqueue(str(log.path))
        await until(lambda: len(log.lines()) >= 3)
        [[attempt]] = sql(db, "SELECT attempt FROM tasks")
        sql(
            db,
            "UPDATE tasks SET status = 'failed', lease_owner = NULL, outcome = 'failed', completed_at = updated_at "
            "WHERE id = ? AND attempt = ?",
            handle.id,
            attempt,
        )
        [[recorded]] = sql(db, "SELECT count(*) FROM steps")
        await anyio.sleep(0.4)
        assert sql(db, "SELECT count(*) FROM steps") == [[recorded]]


@pytest.mark.timeout(30)
async def test_a_child_that_was_stopped_is_told_of_and_gets_no_tasks(db: Path, tmp_path: Path) -> None:
    """A child under SIGSTOP cannot say anything: after three seconds one warning says so, others take its place."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=2) as heard:
        handle = await app.nap.enqueue(str(log.path), 0.5)
        await until(lambda: len(log.lines()) == 1)
        pid = int(log.lines()[0].split()[2])
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: heard.of("loop.blocked"), within=8)
        others = {await (await app.who.enqueue()).result(timeout=5) for _ in range(4)}
        os.kill(pid, signal.SIGCONT)
        assert await handle.result(timeout=5) == pid
    assert pid not in others
    assert [(event["task_id"], event["place"]) for event in heard.of("loop.blocked")] == [
        (handle.id, f"child process {pid}")
    ]
