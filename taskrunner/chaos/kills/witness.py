"""The witness: one log outside the store, to which every process of a test appends a line before and after it acts.

A line is one `write` to a file opened with O_APPEND and is fsynced, so the lines of all processes stand in one order,
and what a process has witnessed stays when it is killed. Who writes what:

- a body: `enter`, `leave` (text: returned, or the error), `gate` (it waits there), `refused` (its write was);
- a step's function: `effect`, before it does anything; its caller: `ack`, after `ctx.step` returned (text: the value);
- a supervisor's listeners: `supervising` (it has its lease), `child` (text: the pid of one that is ready), `lost` (it
  has its lease no more), `completed` and `fenced` (a task's end was written, or refused);
- a client: `asked` (before it enqueues; step: its key), `enqueued` (after it returned) or `unknown` (it raised);
- whoever plays fate: `spawn`, and before it does so `kill`, `term`, `pause`, `resume`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

VARIABLE = "TASKRUNNER_TEST_WITNESS"
"""The environment variable that names the log."""


class Line(NamedTuple):
    """What somebody did."""

    kind: str
    task: str
    step: str
    attempt: int
    pid: int
    """Of the process that it is about: its own, or the one that is killed."""
    ns: int
    """CLOCK_MONOTONIC in nanoseconds, which all processes share."""
    text: str


_descriptors: dict[str, int] = {}


def write(
    kind: str,
    task: str = "",
    step: str = "",
    attempt: int = 0,
    text: str = "",
    *,
    pid: int | None = None,
    path: str | Path | None = None,
) -> int:
    """Append a line; it is on the disk when this returns. Returns its time. Without a log (no path), nothing."""
    name = os.environ.get(VARIABLE, "") if path is None else str(path)
    now = time.monotonic_ns()
    if not name:
        return now
    if name not in _descriptors:
        _descriptors[name] = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    line = "\t".join((kind, task, step, str(attempt), str(os.getpid() if pid is None else pid), str(now), text))
    os.write(_descriptors[name], (line.replace("\n", " ") + "\n").encode())
    os.fsync(_descriptors[name])
    return now


def close(path: str | Path) -> None:
    """Let go of a log in this process."""
    if (descriptor := _descriptors.pop(str(path), None)) is not None:
        os.close(descriptor)


def parse(text: str) -> Iterator[Line]:
    """Read lines; one that was torn is left out."""
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == len(Line._fields):
            kind, task, step, attempt, pid, ns, rest = fields
            yield Line(kind, task, step, int(attempt), int(pid), int(ns), rest)


class Tail:
    """The log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.lines: list[Line] = []

    def read(self) -> list[Line]:
        """What is new since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = list(parse(whole.decode()))
        self.lines += new
        return new

    def wait(self, wanted: Callable[[Line], bool], *, since: int = 0, timeout: float = 10.0) -> Line | None:
        """The first line from place `since` on that is wanted; None when it does not come in time (seconds)."""
        deadline = time.monotonic() + timeout
        place = since
        while True:
            self.read()
            for line in self.lines[place:]:
                place += 1
                if wanted(line):
                    return line
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)

    def count(self, wanted: Callable[[Line], bool], number: int, *, timeout: float = 10.0) -> list[Line]:
        """All lines so far that are wanted, as soon as there are `number` of them, or when the time is over."""
        deadline = time.monotonic() + timeout
        while True:
            self.read()
            found = [line for line in self.lines if wanted(line)]
            if len(found) >= number or time.monotonic() > deadline:
                return found
            time.sleep(0.005)
