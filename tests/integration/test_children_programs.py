"""Programs with child processes: how children find the app, what is refused before a claim, and who ends whom."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskrunner import BoundTask, TaskHandle, TaskRunner
from taskrunner.authoring.enqueueing import bound_by_name
from tests.integration.machine import ROOT, EffectLog, alive, quick, sql, until

APP = """
import os, signal, subprocess, sys, time
from pathlib import Path
import anyio
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner("agent.db", lease=3, heartbeat=0.5, sweep=0.1, grace=1)

def effect(*words):
    with open("effects", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

@runner.task
async def pid() -> int:
    return os.getpid()

TASKS

MAIN
"""

MAIN = """
async def main():
    async with runner.working(processes=1):
        print(await (await pid.enqueue()).result(timeout=20) != os.getpid(), flush=True)

if __name__ == "__main__":
    anyio.run(main)
"""


def write(folder: Path, tasks: str = "", main: str = "", name: str = "app.py") -> Path:
    """Put a program into a folder."""
    file = folder / name
    file.write_text(APP.replace("TASKS", tasks).replace("MAIN", main), encoding="utf-8")
    return file


def run(folder: Path, *arguments: str, within: float = 10.0) -> tuple[int, str, str]:
    """Run Python on it to its end: the exit code, what it printed, and its errors."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - began < within
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["app.py"], ["-m", "app"], ["/proc/self/cwd/app.py"]], ids=" ".join)
def test_the_runner_of_a_program_is_imported_again(tmp_path: Path, arguments: list[str]) -> None:
    """A program that is started as a file, or as a module, is imported by its children, and begins but once."""
    write(tmp_path, main=MAIN)
    assert run(tmp_path, *arguments) == (0, "True\n", "")


REFUSED = {
    "no guard": ("app.py", "", MAIN.partition("\nif")[0] + "\nanyio.run(main)\n", "under if __name__ == '__main__':"),
    "under the guard": (
        "app.py",
        "if __name__ == '__main__':\n    @runner.task\n    async def hidden() -> None: ...\n",
        MAIN,
        "task 'hidden' is not there when a child process imports",
    ),
    "a closure": (
        "app.py",
        "",
        MAIN.replace("    async with", "    runner.task(name='inner')(lambda: 1)\n    async with"),
        "task 'inner' is not there when a child process imports",
    ),
    "a local runner": (
        "app.py",
        "",
        (
            "async def main():\n    await TaskRunner('agent.db').run(processes=1)\n"
            "if __name__ == '__main__':\n    anyio.run(main)\n"
        ),
        "this one has none in any module",
    ),
    "a prompt": ("-c", "", MAIN, "this one is in no file"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_import_brings_back_is_refused(tmp_path: Path, what: str) -> None:
    """One sentence says why, before the first claim: the task that waits has not been touched."""
    how, tasks, main, sentence = REFUSED[what]
    file = write(tmp_path, tasks, main)
    with_runner(tmp_path)
    code, output, error = run(tmp_path, *(["-c", file.read_text()] if how == "-c" else [str(file)]))
    assert (code, output) == (1, "")
    assert sentence in error.splitlines()[-1], error
    assert sql(tmp_path / "agent.db", "SELECT max(attempt) FROM tasks") == [[0]]


def with_runner(folder: Path) -> None:
    """Make the store, with a task that waits."""
    runner = TaskRunner(folder / "agent.db")
    runner.sync(runner.enqueue("pid"))


BROKEN = {
    "ImportError": ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' (", "app.py:"),
    "SyntaxError": ("exec(compile('a b', 'late.py', 'exec'))", "SyntaxError: invalid syntax (late.py", "late.py:1"),
    "exit": ("sys.exit(7)", "SystemExit: 7", "app.py:"),
    "death": ("os._exit(5)", "it ended with exit code 5", ""),
    "endless": ("time.sleep(1000)", "has not come to an end within 8 s", ""),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_app_that_no_child_can_import_ends_the_supervisor(tmp_path: Path, what: str) -> None:
    """B78: an error that is there at the start: exit code 2 in less than 10 s, and one sentence that names it."""
    line, text, place = BROKEN[what]
    write(tmp_path, f"if os.environ.get('TASKRUNNER_TEST_CHILD', str(os.getpid())) != str(os.getpid()):\n    {line}\n")
    (tmp_path / "start.py").write_text(
        "import os, sys\nos.environ['TASKRUNNER_TEST_CHILD'] = str(os.getpid())\n"
        "from taskrunner.cli import main\nsys.exit(main(sys.argv[1:]))\n",
        encoding="utf-8",
    )
    with_runner(tmp_path)
    code, _output, error = run(tmp_path, "start.py", "run", "app:runner", "--processes", "2")
    *log, last = error.splitlines()
    assert code == 2
    assert last.startswith("taskrunner: processes=2: a child process cannot begin: ")
    assert text in last
    assert place in last
    assert all(line.startswith('{"') for line in log)
    assert sql(tmp_path / "agent.db", "SELECT max(attempt) FROM tasks") == [[0]]


def supervise(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start `taskrunner run app:runner` with child processes, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "taskrunner", "run", "app:runner", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def events(error: str) -> list[dict[str, Any]]:
    """The log of a supervisor."""
    return [json.loads(line) for line in error.splitlines()]


@pytest.mark.timeout(40)
async def test_an_app_that_breaks_later_is_tried_less_and_less_often(db: Path, tmp_path: Path) -> None:
    """B78: a file is edited under a running supervisor: its children come back further and further apart.

    It says so once; what is queued keeps its attempts, and goes on when the file is mended.
    """
    file = write(tmp_path)
    good = file.read_text(encoding="utf-8")
    supervisor = supervise(tmp_path, "--processes", "2")
    try:
        async with TaskRunner(db) as client:
            first = await (await client.enqueue("pid")).result(timeout=15)
            file.write_text("import no_such_module\n" + good, encoding="utf-8")
            for pid in children_of(supervisor.pid):
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not alive(first), within=5)
            broke = time.monotonic()
            handle = await client.enqueue("pid")
            await until(lambda: time.monotonic() > broke + 5, within=10)
            task = await handle.task()
            assert (task.status, task.attempt) == ("pending", 0)
            file.write_text(good, encoding="utf-8")
            assert await handle.result(timeout=15) != first
    finally:
        supervisor.send_signal(signal.SIGTERM)
        _out, error = supervisor.communicate(timeout=15)
    told = events(error)
    lost = [event for event in told if event["event"] == "child.lost" and "no_such_module" in event["how"]]
    assert 4 <= len(lost) <= 8
    assert len([event for event in told if event["event"] == "children.degraded"]) == 1
    assert supervisor.returncode == 0


def children_of(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def hears(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


BUSY = """
@runner.task
async def sleepy(ctx: TaskContext) -> None:
    tree()
    await anyio.sleep(60)

@runner.task
async def spin(ctx: TaskContext) -> None:
    tree()
    sum(range(10 ** 12))  # it never lets go of the interpreter

def tree():
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    effect(os.getpid(), child.pid, child.stdout.readline().strip())
"""


@pytest.mark.timeout(30)
async def test_children_die_with_their_supervisor(db: Path, tmp_path: Path) -> None:
    """B25 (a): it is killed with SIGKILL: within a second nothing of it is left, also of a body that holds the GIL."""
    write(tmp_path, BUSY)
    log = EffectLog(tmp_path / "effects")
    async with TaskRunner(db) as client:
        supervisor = supervise(tmp_path, "--processes", "2")
        try:
            handles = [await client.enqueue(name) for name in ("sleepy", "spin")]
            await until(lambda: len(log.lines()) == 2, within=15)
            pids = [int(pid) for line in log.lines() for pid in line.split()]
            assert all(alive(pid) for pid in pids)
        finally:
            supervisor.kill()
            supervisor.communicate()
        await until(lambda: not any(alive(pid) for pid in pids), within=1)
        runner = quick(db)
        async with runner.working(queues=["another"]):
            await until(lambda: sql(db, "SELECT sum(losses) FROM tasks") == [[2]])
        assert [(await handle.task()).status for handle in handles] == ["pending", "pending"]


@pytest.mark.timeout(30)
async def test_the_next_supervisor_kills_what_a_dead_one_has_left(db: Path, tmp_path: Path) -> None:
    """B08, G6: by pid and start time, with its group; a stranger that has come to have such a pid is left alone."""
    write(tmp_path)
    async with TaskRunner(db) as client:
        dead = supervise(tmp_path, "--processes", "1")
        try:
            await (await client.enqueue("pid")).result(timeout=15)
        finally:
            dead.kill()
            dead.communicate()
    left = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & wait"], start_new_session=True)
    stranger = subprocess.Popen(["/bin/sleep", "300"], start_new_session=True)
    try:
        known = [[left.pid, start_time(left.pid)], [stranger.pid, start_time(stranger.pid) - 1]]
        sql(db, "UPDATE supervisors SET children = ?", json.dumps(known))
        runner = quick(db)
        async with runner.working():
            await until(lambda: left.poll() == -signal.SIGKILL)
            await until(lambda: sql(db, "SELECT children FROM supervisors WHERE ended_at IS NOT NULL") == [["[]"]])
        assert stranger.poll() is None
    finally:
        for process in (left, stranger):
            process.kill()
            process.wait()


def start_time(pid: int) -> int:
    """When a process has started, in ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])


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
    errors = [process.communicate(timeout=240)[1] for process in both]
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
