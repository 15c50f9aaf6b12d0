"""Programs with child processes: how children find the app, what is refused before a claim, and who ends whom."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskRunner
from tests.integration.children_programs import MAIN, children_of, events, run, supervise, with_runner, write
from tests.integration.machine import EffectLog, alive, quick, sql, until


@pytest.mark.parametrize("arguments", [["app.py"], ["-m", "app"], ["/proc/self/cwd/app.py"]], ids=" ".join)
def test_the_runner_of_a_program_is_imported_again(tmp_path: Path, arguments: list[str]) -> None:
    """A program that is started as a file, or as a module, is imported by its children, and begins but once."""
    write(tmp_path, main=MAIN)
    assert run(tmp_path, *arguments) == (0, "True\n", "")


def test_a_runner_is_imported_from_where_it_was_made(tmp_path: Path) -> None:
    """A test that has imported the runner is not imported in its stead, however pytest has loaded it."""
    (tmp_path / "consumer.py").write_text("from lib import runner\nimport lib\n")
    (tmp_path / "lib.py").write_text("from taskrunner import TaskRunner\nrunner = TaskRunner()\n")
    program = (
        "import sys\nfrom importlib.util import module_from_spec, spec_from_file_location\n"
        "from taskrunner.runtime import origin\nspec = spec_from_file_location('consumer', 'consumer.py')\n"
        "sys.modules['consumer'] = consumer = module_from_spec(spec)\nspec.loader.exec_module(consumer)\n"
        "found = origin.find(consumer.runner, consumer.runner.definitions)\nprint(found.module, found.name)\n"
    )
    (tmp_path / "app.py").write_text(program)
    assert run(tmp_path, "app.py") == (0, "lib runner\n", "")


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
            killed = children_of(supervisor.pid)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            await until(lambda: not any(alive(pid) for pid in killed), within=5)
            await anyio.sleep(0.5)  # the supervisor knows of it
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


BUSY = """
@runner.task
async def sleepy(ctx: TaskContext) -> None:
    tree()
    await anyio.sleep(60)

@runner.task
async def spin(ctx: TaskContext) -> None:
    tree()
    sum(range(10 ** 12))  # it never lets go of the interpreter

def fork(_fields):
    if os.fork() == 0:  # a copy of the supervisor, which has its descriptors, outlives it
        time.sleep(2)
        os._exit(0)

runner.on("task.started", fork)

def tree():
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    effect(os.getpid(), child.pid, child.stdout.readline().strip())
"""


@pytest.mark.timeout(30)
async def test_children_die_with_their_supervisor(db: Path, tmp_path: Path) -> None:
    """B25 (a): it is killed with SIGKILL: nothing of it is left a second later, also where a body holds the GIL.

    A fork of the supervisor, which lives on, does not keep them alive.
    """
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
