"""Programs with child processes, in a folder of a test: how they are written, run, and looked at."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from taskrunner import TaskRunner
from tests.integration.machine import ROOT

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


def with_runner(folder: Path) -> None:
    """Make the store, with a task that waits."""
    runner = TaskRunner(folder / "agent.db")
    runner.sync(runner.enqueue("pid"))


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


def children_of(pid: int) -> list[int]:
    """The child processes of a process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def hears(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)
