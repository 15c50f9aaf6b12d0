"""A runner on a real file whose times are scaled down, and ways to look at its file from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final

import anyio

from taskrunner import BoundTask, Task, TaskRunner

ROOT = Path(__file__).resolve().parents[2]

SQL = """
import json, sqlite3, sys
base = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
given = json.loads(sys.stdin.read())
print(json.dumps([base.execute(text, values).fetchall() for text, values in given]))
"""


FAST: Final[dict[str, Any]] = {"lease": 3, "heartbeat": 0.5, "sweep": 0.1, "grace": 0.5, "durability": "normal"}
"""Settings whose times are scaled down."""


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def quick(db: Path, **settings: Any) -> TaskRunner:  # noqa: ANN401 - each setting's own type
    """A runner with a short lease, sweep and grace."""
    return TaskRunner(db, **{"lease": 3, "heartbeat": 0.5, "sweep": 0.1, "grace": 0.5, **settings})


async def ended(runner: TaskRunner, bound: BoundTask[Any], *, within: float = 10) -> Task:
    """Run one task here to its end and return its row."""
    async with runner.working():
        handle = await runner.enqueue(bound)
        with anyio.fail_after(within):
            while (await handle.status()) in {"pending", "running"}:  # noqa: ASYNC110 - it looks at a file
                await anyio.sleep(0.01)
        return await handle.task()


async def until(what: Callable[[], object], *, within: float = 5) -> None:
    """Wait until something holds; it may be something to be awaited."""
    with anyio.fail_after(within):
        while True:
            answer = what()
            if await answer if isawaitable(answer) else answer:
                return
            await anyio.sleep(0.005)


def sql(db: Path, text: str, *values: object) -> list[Any]:
    """Run one statement on the file from another program, with plain SQLite."""
    answers = script(db, [(text, values)])
    rows: list[Any] = answers[0]
    return rows


def script(db: Path, statements: list[tuple[str, tuple[object, ...]]]) -> list[Any]:
    """Run several statements, each in a commit of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SQL, str(db)],
        input=json.dumps(statements),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


class Heard:
    """What a runner tells, in the order of telling."""

    def __init__(self, runner: TaskRunner, event: str = "*") -> None:
        self.events: list[Mapping[str, Any]] = []
        runner.on(event, self.events.append)

    def names(self) -> list[str]:
        """The names of what was heard."""
        return [event["event"] for event in self.events]

    def of(self, name: str) -> list[Mapping[str, Any]]:
        """What was heard under this name."""
        return [event for event in self.events if event["event"] == name]


class EffectLog:
    """A file that bodies write to, line by line and synced: the only witness of what really ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        """All lines so far."""
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []

    def wait_for(self, count: int, *, within: float = 10) -> list[str]:
        """Wait until there are that many lines."""
        deadline = time.monotonic() + within
        while len(lines := self.lines()) < count:
            assert time.monotonic() < deadline, f"{count} lines expected, there are {lines}"
            time.sleep(0.005)
        return lines


PREAMBLE = """
import asyncio, os, sys, time
from functools import partial
import anyio
from taskrunner import *

db, log = sys.argv[1:3]
runner = TaskRunner(db, lease=3, heartbeat=0.5, sweep=0.1, grace=1)

def effect(*words):
    line = " ".join(map(str, words)) + "\\n"
    with open(log, "a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
"""


class Program:
    """A program of its own process: the preamble, some tasks, and what it does with them."""

    def __init__(self, db: Path, log: EffectLog, code: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + code, str(db), str(log.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def hear(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 15) -> tuple[int, str]:
        """Wait for its end: its exit code and what it wrote to stderr."""
        _out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, err


@contextmanager
def program(db: Path, log: EffectLog, code: str) -> Iterator[Program]:
    """Start a program, and leave nothing of it."""
    started = Program(db, log, code)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.communicate()
