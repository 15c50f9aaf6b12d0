"""Children that die: their tasks go on at once, the evidence is kept, the others work on, and nobody spins."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from taskrunner import TaskRunner
from tests.integration import children_app as app
from tests.integration.machine import FAST, EffectLog, alive, sql, until


async def test_one_child_dies_and_nothing_else_does(db: Path, tmp_path: Path) -> None:
    """B07 (a), B15, B25 (b): its task goes on at its last step in a moment, the neighbours are not run again.

    A second supervisor finds nothing to recover, a replacement is started, and the history says what killed the child.
    """
    log, naps = EffectLog(tmp_path / "log"), EffectLog(tmp_path / "naps")
    idle = TaskRunner(db, **FAST)
    async with (
        app.at_work(db, processes=4, concurrency=8, lease=600, heartbeat=1) as heard,
        idle.working(queues=["another"]),
    ):
        handle = await app.steps.enqueue(str(log.path))
        await until(lambda: len(log.lines()) == 3)
        [started] = [event for event in heard.of("task.started") if event["task_id"] == handle.id]
        others = [await app.nap.enqueue(str(naps.path), 2.0) for _ in range(3)]
        await until(lambda: len(naps.lines()) == 3)
        beside = {int(line.split()[2]) for line in naps.lines()}
        [victim] = {event["pid"] for event in heard.of("child.started")} - beside
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        assert await handle.result(timeout=5) == "done"
        assert time.monotonic() - killed < 1.5
        assert {await other.result(timeout=10) for other in others} == beside
        await until(lambda: len(heard.of("child.started")) == 5)
        info = await handle.info()
    assert started["attempt"] == 1
    assert log.lines() == ["part 0", "part 1", "part 2", "last"]
    assert len(naps.lines()) == 6
    assert [attempt.outcome for attempt in info.attempts] == ["lost", "completed"]
    lost = info.attempts[0]
    assert lost.error_type == "taskrunner.WorkerLost"
    assert f"child process {victim} of supervisor process {os.getpid()}" in (lost.error_message or "")
    assert "it was killed by SIGKILL (signal 9)" in (lost.error_message or "")
    assert [event["tasks"] for event in heard.of("child.lost")] == [1]


@pytest.mark.timeout(40)
async def test_a_pill_is_quarantined_and_its_neighbours_complete(db: Path, tmp_path: Path) -> None:
    """B09: parked after exactly `max_losses` deaths with the reason, 20 done, and the deaths further apart."""
    log, naps = EffectLog(tmp_path / "log"), EffectLog(tmp_path / "naps")
    async with app.at_work(db, processes=2) as heard:
        pill = await app.pill.options(priority=0).enqueue("kill", str(log.path))
        good = [await app.nap.enqueue(str(naps.path), 0.05) for _ in range(20)]
        for handle in good:
            await handle.result(timeout=25)
        await until(lambda: heard.of("task.quarantined"), within=25)
        task = await pill.task()
    assert (task.status, task.attempt, task.losses, task.retry_count) == ("failed", 3, 3, 0)
    assert "quarantined: its worker was lost 3 times in a row" in (task.error_message or "")
    assert "it was killed by SIGKILL (signal 9)" in (task.error_message or "")
    assert [line.split()[:2] for line in log.lines()] == [["pill", "1"], ["pill", "2"], ["pill", "3"]]
    first, second, third = (float(line.split()[2]) for line in log.lines())
    assert third - second > max(0.2, second - first)
    assert sql(db, "SELECT count(*), max(losses) <= 2 FROM tasks WHERE status = 'completed'") == [[20, 1]]


HOW = {
    "kill": "it was killed by SIGKILL (signal 9)",
    "abort": "it was killed by SIGABRT (signal 6)",
    "segfault": "it was killed by SIGSEGV (signal 11)",
    "exit": "it ended with exit code 3",
    "hog": "it was killed by SIGKILL (signal 9)",
    "hang up": "it closed its connection to the supervisor",
    "babble": "what it said cannot be read",
}


@pytest.mark.timeout(60)
async def test_many_pills_at_once(db: Path, tmp_path: Path) -> None:
    """B09: one of each kind beside 20 good ones: each ends alone in its own child, and with its own reason."""
    log, naps = EffectLog(tmp_path / "log"), EffectLog(tmp_path / "naps")
    async with app.at_work(db, processes=2) as heard:
        pills = {how: await app.pill.enqueue(how, str(log.path)) for how in HOW}
        good = [await app.nap.enqueue(str(naps.path), 0.05) for _ in range(20)]
        for handle in good:
            await handle.result(timeout=50)
        await until(lambda: len(heard.of("task.quarantined")) == len(HOW), within=50)
        tasks = {how: await pill.task() for how, pill in pills.items()}
    for how, task in tasks.items():
        assert (task.status, task.attempt, task.losses) == ("failed", 3, 3)
        assert HOW[how] in (task.error_message or "")
    assert sql(db, "SELECT count(*), max(losses) <= 2 FROM tasks WHERE status = 'completed'") == [[20, 1]]
    assert heard.of("task.failed") == []


async def test_what_a_body_has_started_dies_with_its_child(db: Path, tmp_path: Path) -> None:
    """G6: a child that dies leaves no grandchildren behind."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=1) as heard:
        await app.deaf.enqueue(str(log.path))
        await until(lambda: len(log.lines()) == 1)
        _begins, _task, *pids = log.lines()[0].split()
        os.kill(int(pids[0]), signal.SIGKILL)
        await until(lambda: heard.of("child.lost"))
        await until(lambda: not any(alive(int(pid)) for pid in pids), within=2)


async def test_a_death_is_seen_where_no_more_files_may_be_opened(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses a pidfd (EMFILE): the child's death is waited for in a thread, and the task goes on."""

    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=1) as heard:
        handle = await app.steps.enqueue(str(log.path))
        await until(lambda: sql(db, "SELECT count(*) FROM steps") == [[3]])
        os.kill(heard.of("child.started")[0]["pid"], signal.SIGKILL)
        assert await handle.result(timeout=10) == "done"
    assert log.lines() == ["part 0", "part 1", "part 2", "last"]
    assert len(heard.of("child.lost")) == 1
