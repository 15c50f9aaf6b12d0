"""SIGTERM and SIGINT to a supervisor: nothing is lost, nothing is burned, and it ends in time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskRunner
from tests.integration.machine import ROOT, EffectLog, program, quick, sql, until

DEPLOY = """
runner = TaskRunner(db, lease=3, heartbeat=0.5, sweep=0.1, grace=1.5)

@runner.task(max_retries=0)
async def brief():
    effect("brief begins")
    await anyio.sleep(1)
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

RUN
print("ended")
"""

RUN = "anyio.run(runner.run)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_deploy_loses_and_burns_nothing(db: Path, tmp_path: Path, number: signal.Signals) -> None:
    """B20: nothing is claimed after the signal; what ends in the grace is done; the rest goes on at its last step.

    It exits with 0 within grace and 2 s, and even `max_retries=0` has nothing to say about it.
    """
    log = EffectLog(tmp_path / "effects")
    client = quick(db)
    async with client:
        with program(db, log, DEPLOY.replace("RUN", "anyio.run(partial(runner.run, concurrency=3))")) as first:
            running = [await client.enqueue(name) for name in ("brief", "long", "plain")]
            waiting = [await client.enqueue("queued", priority=9) for _ in range(50)]
            lines = log.wait_for(5)
            assert sorted(lines) == ["brief begins", "first of plain", "part 0", "part 1", "part 2"]
            began = time.monotonic()
            first.kill(number)
            assert first.hear() == "ended"
            code, error = first.wait()
            assert code == 0
            assert error.count("\n") == 1  # one line, for the thread that could not be stopped
            assert "task.leaked" in error
            assert time.monotonic() - began < 1.5 + 2
        assert log.lines()[5:] == ["brief ends"]
        tasks = [await handle.task() for handle in [*running, *waiting]]
        assert [task.status for task in tasks] == ["completed"] + ["pending"] * 52
        assert {(task.retry_count, task.losses, task.error_message) for task in tasks} == {(0, 0, None)}
        with program(db, log, DEPLOY.replace("RUN", RUN)) as second:
            assert [await handle.result(timeout=5) for handle in running] == [None, "done", "done"]
            for handle in waiting:
                await handle.result(timeout=5)
            second.kill(signal.SIGTERM)
            assert second.wait()[0] == 0
    counts = Counter(log.lines())
    assert counts.pop("queued") == 50
    assert set(counts.values()) == {1}


async def test_a_second_signal_waits_for_nobody(db: Path, tmp_path: Path) -> None:
    """The grace is 30 s: after a second signal what runs is handed back at once, unharmed."""
    log = EffectLog(tmp_path / "effects")
    code = DEPLOY.replace("grace=1.5", "grace=30").replace("RUN", RUN)
    client = quick(db)
    async with client:
        with program(db, log, code) as supervisor:
            handles = [await client.enqueue(name) for name in ("long", "plain")]
            log.wait_for(4)
            supervisor.kill(signal.SIGTERM)
            time.sleep(0.3)
            assert [await handle.status() for handle in handles] == ["running", "running"]
            began = time.monotonic()
            supervisor.kill(signal.SIGTERM)
            assert supervisor.wait()[0] == 0
            assert time.monotonic() - began < 2.5
        tasks = [await handle.task() for handle in handles]
    assert {(task.status, task.retry_count, task.losses) for task in tasks} == {("pending", 0, 0)}


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

print("ready")
RUN
"""


@pytest.mark.parametrize("seed", range(4))
async def test_a_signal_at_any_moment(db: Path, tmp_path: Path, seed: int) -> None:
    """B21: five rounds of a stop at a random moment, every other time twice: no row stays claimed, none fails.

    A body that returned is done; at most one of each slot is run once more in a round.
    """
    log = EffectLog(tmp_path / "effects")
    chance = random.Random(seed)
    client = TaskRunner(db)
    async with client:
        for number in range(60):
            await client.enqueue("plain" if number % 5 == 0 else "job", {"number": number})
    for round_ in range(5):
        with program(db, log, STORM.replace("RUN", RUN)) as supervisor:
            assert supervisor.hear() == "ready"
            time.sleep(chance.uniform(0.0, 0.5))
            supervisor.kill(signal.SIGTERM)
            if round_ % 2:
                time.sleep(chance.uniform(0.0, 0.1))
                supervisor.kill(signal.SIGTERM)
            code, error = supervisor.wait()
            assert (code, error) in {(0, ""), (-signal.SIGTERM, "")}, error
        states = sql(db, "SELECT status, count(*), sum(retry_count), sum(losses) FROM tasks GROUP BY status")
        assert {state[0] for state in states} <= {"pending", "completed"}, states
        assert sum(state[2] + state[3] for state in states) == 0, states
    with program(db, log, STORM.replace("RUN", "anyio.run(partial(runner.run, until_idle=True))")) as last:
        assert last.wait()[0] == 0
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", 60]]
    ends = Counter(line for line in log.lines() if line.startswith("end"))
    begins = Counter(line for line in log.lines() if line.startswith("begin"))
    assert len(ends) == 60
    assert sum(begins.values()) - 60 <= 10 * 5
    assert max(ends.values()) <= 2


async def test_a_body_that_swallows_everything_does_not_keep_the_process(db: Path, tmp_path: Path) -> None:
    """The command `taskrunner run` ends although a body catches every cancellation for ever, the loop's own too."""
    log = EffectLog(tmp_path / "effects")
    (tmp_path / "stubborn_app.py").write_text(
        f"""
import anyio
from taskrunner import TaskRunner
runner = TaskRunner({str(db)!r}, lease=3, heartbeat=0.5, sweep=0.1, grace=0.3)

@runner.task(max_retries=0)
async def stubborn():
    with open({str(log.path)!r}, "a") as file:
        file.write("begins\\n")
    while True:
        try:
            await anyio.sleep(0.05)
        except BaseException:
            continue
""",
        encoding="utf-8",
    )
    client = quick(db)
    code = f"""
import os
os.chdir({str(tmp_path)!r})
sys.argv = ["taskrunner", "run", "stubborn_app:runner"]
from taskrunner.cli import main
main()
"""
    async with client:
        handle = await client.enqueue("stubborn")
        with program(db, log, code) as supervisor:
            log.wait_for(1)
            began = time.monotonic()
            supervisor.kill(signal.SIGTERM)
            assert supervisor.wait(timeout=8)[0] == 0
            assert time.monotonic() - began < 3
        task = await handle.task()
        assert (task.status, task.retry_count, task.losses) == ("pending", 0, 0)


BLOCKED = """
import os, time, anyio
from taskrunner import TaskRunner
runner = TaskRunner({db!r}, lease=3, heartbeat=0.5, sweep=0.1, grace=30)

def effect(word):
    with open({log!r}, "a") as file:
        file.write(word + "\\n")

@runner.task(max_retries=0)
async def blocks(seconds: float) -> None:
    effect("blocks")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(end - time.monotonic())

@runner.task(max_retries=0)
async def beside() -> None:
    effect("beside")
    await anyio.sleep(60)

if __name__ == "__main__":
    anyio.run(runner.run)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["command", "program"])
async def test_a_second_signal_is_heard_although_the_loop_is_blocked(
    db: Path, tmp_path: Path, how: str, number: signal.Signals
) -> None:
    """A body blocks the event loop for a minute: a second signal hands all back, what was not begun too, unharmed.

    `taskrunner run` ends with it. A program of one's own goes on until the body lets go, or a third signal comes.
    """
    log = EffectLog(tmp_path / "effects")
    (tmp_path / "blocked_app.py").write_text(BLOCKED.format(db=str(db), log=str(log.path)), encoding="utf-8")
    words = ["-m", "taskrunner", "run", "blocked_app:runner"] if how == "command" else ["blocked_app.py"]
    async with quick(db) as client:
        handles = [await client.enqueue("beside") for _ in range(2)]
        handles += [await client.enqueue("blocks", {"seconds": 60})]
        handles += [await client.enqueue("beside") for _ in range(3)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as run:
            try:
                assert log.wait_for(3) == ["beside", "beside", "blocks"]
                run.send_signal(number)
                time.sleep(0.5)
                assert {await handle.status() for handle in handles} == {"running"}
                run.send_signal(number)
                await until(lambda: sql(db, "SELECT count(*) FROM tasks WHERE status = 'pending'") == [[6]], within=8)
                if how == "program":
                    await anyio.sleep(0.5)
                    assert run.poll() is None
                    run.send_signal(number)
                error = run.communicate(timeout=8)[1].decode()
            finally:
                run.kill()
        tasks = [await handle.task() for handle in handles]
        assert {(task.attempt, task.retry_count, task.losses) for task in tasks} == {(1, 0, 0)}
    assert run.returncode == {"command": 0, "program": -signal.SIGTERM if number == signal.SIGTERM else 0}[how]
    assert error.count("supervisor.abandoned") == 1


async def test_a_first_signal_counts_when_the_loop_turns(db: Path, tmp_path: Path) -> None:
    """It came while a body blocked the event loop: nothing is claimed after that, and the body's end counts."""
    log = EffectLog(tmp_path / "effects")
    (tmp_path / "blocked_app.py").write_text(BLOCKED.format(db=str(db), log=str(log.path)), encoding="utf-8")
    words = [sys.executable, "-m", "taskrunner", "run", "blocked_app:runner", "--concurrency", "1"]
    async with quick(db) as client:
        first = await client.enqueue("blocks", {"seconds": 1.5})
        second = await client.enqueue("blocks", {"seconds": 0})
        with subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}) as run:
            try:
                log.wait_for(1)
                run.send_signal(signal.SIGTERM)
                assert run.wait(8) == 0
            finally:
                run.kill()
        assert (await first.status(), await second.status()) == ("completed", "pending")


TWO = """
other = TaskRunner(db + ".other", lease=3, heartbeat=0.5, sweep=0.1, grace=2)
third = TaskRunner(db + ".third", sweep=0.1)

async def brief():
    effect("begins")
    await anyio.sleep(0.5)
    effect("ends")

for each in (runner, other):
    each.task(brief)

async def main():
    for each in (runner, other):
        async with each:
            await each.enqueue("brief")
    await asyncio.gather(runner.run(), other.run(), third.run(until_idle=True))

anyio.run(main)
print("ended")
"""


def test_one_signal_reaches_every_supervisor(db: Path, tmp_path: Path) -> None:
    """Two supervisors in one program, and a third that has ended already: one SIGTERM drains both."""
    log = EffectLog(tmp_path / "effects")
    with program(db, log, TWO) as both:
        log.wait_for(2)
        time.sleep(0.2)
        both.kill(signal.SIGTERM)
        assert both.hear() == "ended"
        assert both.wait() == (0, "")
    assert log.lines() == ["begins", "begins", "ends", "ends"]
