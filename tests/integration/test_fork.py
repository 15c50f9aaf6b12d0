"""After a fork: the child is told in one sentence, the parent's file stays whole, and nobody hangs (B54)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.machine import ROOT, sql

FORKS = """
import logging, multiprocessing, os, sys, threading, time
from taskrunner import NotOpen, StoreError, TaskRunner

db, rounds, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
runner = TaskRunner(db, lease=3, heartbeat=0.5, sweep=0.1)
log = os.open(db + ".log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

class Direct(logging.Handler):  # the lock of a buffered file, which Python does not renew in the child, is not ours
    def emit(self, record):
        os.write(log, (self.format(record) + "\\n").encode())

logging.basicConfig(handlers=[Direct()], level=logging.INFO)
over = threading.Event()

def chatter():
    while not over.wait(0.0005):
        logging.info("at work")

@runner.task
async def note(number: int) -> int:
    return number

def told_by(call):
    try:
        call()
    except (NotOpen, StoreError) as error:
        return "before a fork" in str(error)
    return False

def child(wait, number):
    logging.info("in the child")
    again = TaskRunner(db)
    calls = [
        lambda: wait(note.enqueue(number)),
        lambda: runner.sync(note.enqueue(number)),
        lambda: again.sync(again.enqueue("note", {"number": number})),
    ]
    code = 0 if all(map(told_by, calls)) else 1
    own = TaskRunner(f"{db}.{number % 2}")
    own.sync(own.enqueue("note", {"number": number}))
    return code

def fork(wait, number):
    pid = os.fork()
    if pid == 0:
        code = child(wait, number)
        if how == "exit":
            sys.exit(code)  # through the `with` block, and through the end of the interpreter
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def process(wait, number):
    started = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(child(wait, number)))
    started.start()
    started.join()
    return started.exitcode

threads = [threading.Thread(target=chatter, daemon=True) for _ in range(5)]
for thread in threads:
    thread.start()
codes = set()
with runner.sync as wait:
    for number in range(rounds):
        wait(note.enqueue(number))
        codes.add((process if how == "process" else fork)(wait, number))
    wait(runner.drain())
over.set()
print(codes)
"""


@pytest.mark.parametrize("how", ["exit", "os._exit", "process"])
@pytest.mark.timeout(60)
def test_a_child_cannot_harm_its_parent(db: Path, how: str) -> None:
    """B54: each of many forks beside logging threads gets one clear error for what it has inherited, and ends.

    It can use a store of its own; the parent's file is whole, with all its rows.
    """
    rounds = 20
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, str(db), str(rounds), how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("{0}\n", "", 0)
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", rounds]]
    own = [sql(db.with_name(f"{db.name}.{number}"), "SELECT count(*) FROM tasks")[0][0] for number in (0, 1)]
    assert sum(own) == rounds


WORKER = """
import os, sys, anyio
from taskrunner import TaskRunner

runner = TaskRunner(sys.argv[1], lease=3, heartbeat=0.5, sweep=0.1)

@runner.task
async def forks(number: int) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

async def main():
    async with runner.working(concurrency=4):
        handles = [await forks.enqueue(number) for number in range(40)]
        print({await handle.result(timeout=20) for handle in handles})

anyio.run(main)
"""


def test_a_task_may_fork(db: Path) -> None:
    """A body that forks, while the writer and the other bodies are at work, harms none of them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WORKER, str(db)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=18, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("{7}\n", "", 0)
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]


COPIES = """
import os, sys, time, anyio
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner(sys.argv[1], lease=6, heartbeat=0.5, sweep=0.1, grace=1)

def leave(how):
    if how == "exit":
        sys.exit(5)
    if how == "raise":
        raise ValueError("in the copy")

@runner.task(max_retries=0)
async def forks(ctx: TaskContext, how: str) -> list[object]:
    here = os.getpid()
    pid = os.fork()
    if pid == 0:
        if how == "step":
            await ctx.step("where", os.getpid)
        leave(how)
        return ["the copy"]
    code = os.waitstatus_to_exitcode((await anyio.to_thread.run_sync(os.waitpid, pid, 0))[1])
    return [code, await ctx.step("where", os.getpid) == here]

@runner.task(max_retries=0)
def plain(ctx: TaskContext, how: str) -> list[object]:
    here = os.getpid()
    pid = os.fork()
    if pid == 0:
        if how == "step":
            ctx.sync(ctx.step("where", os.getpid))
        leave(how)
        return ["the copy"]
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), ctx.sync(ctx.step("where", os.getpid)) == here]

async def main():
    async with runner.working(concurrency=4, processes=int(sys.argv[2])):
        for task in (forks, plain):
            for how in ("exit", "raise", "return", "step"):
                print(how, *await (await task.enqueue(how)).result(timeout=5))

if __name__ == "__main__":
    anyio.run(main)
"""


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.timeout(40)
def test_the_copy_of_a_body_ends_with_it(db: Path, tmp_path: Path, processes: int) -> None:
    """B54: a forked copy of a body that returns, raises, exits or takes a step neither ends nor disturbs the task.

    The copy is a process of its own, with an exit code; the body in the parent goes on.
    """
    app = tmp_path / "copies.py"
    app.write_text(COPIES, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(app), str(db), str(processes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=35, check=False)
    assert done.stdout == 2 * "exit 5 True\nraise 1 True\nreturn 0 True\nstep 1 True\n"
    assert "before a fork" in done.stderr
    assert done.returncode == 0


SUPERVISORS = """
import logging, multiprocessing, os, sys, threading, time, anyio
from taskrunner import NotOpen, TaskRunner

runner = TaskRunner(sys.argv[1], lease=3, heartbeat=0.5, sweep=0.1)

@runner.task
async def note(number: int) -> int:
    return number

async def work():
    async with runner.working(concurrency=2, processes=int(sys.argv[3])):
        handles = [await note.enqueue(number) for number in range(5)]
        assert [await handle.result(timeout=20) for handle in handles] == [0, 1, 2, 3, 4]

async def supervise():
    await runner.run(until_idle=True)

def child():
    for call in (work, supervise):
        try:
            anyio.run(call)
        except NotOpen as error:
            if "before a fork" not in str(error):
                raise
            print("told", flush=True)
        else:
            print("worked", flush=True)

def forks():
    pid = os.fork()
    if pid == 0:
        child()
        os._exit(7)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    print(code, process.exitcode, flush=True)

def chatter():
    while True:
        time.sleep(0.0005)
        logging.info("at work")

def main():
    for _ in range(5):
        threading.Thread(target=chatter, daemon=True).start()
    if sys.argv[2] == "fresh":
        forks()
    with runner.sync as wait:
        wait(note.enqueue(7))
        if sys.argv[2] == "open":
            forks()
    if sys.argv[2] == "closed":
        forks()
    runner.sync(runner.drain())

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("store", ["fresh", "closed", "open"])
@pytest.mark.timeout(60)
def test_a_forked_program_may_be_a_supervisor(db: Path, tmp_path: Path, store: str, processes: int) -> None:
    """B54: a supervisor starts in a fork of a program that has not opened the store, or has closed it again.

    Where the store is open in the parent, it is one sentence, and the parent works on.
    """
    answer, tasks = ("told", 1) if store == "open" else ("worked", 11)
    app = tmp_path / "supervisors.py"
    app.write_text(SUPERVISORS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(app), str(db), store, str(processes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (f"{answer}\n" * 4 + "7 0\n", "", 0)
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", tasks]]
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
