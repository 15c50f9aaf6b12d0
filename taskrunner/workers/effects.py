"""A witness outside the database: a log of what steps really did, one fsynced line each.

A store cannot prove that it lost nothing and repeated nothing. A file can, if every step writes to it before its work
begins and after its work has ended, and if it can be read without the store. One JSON object per line, appended by
any number of processes: a line is a single write to a file opened with O_APPEND, so that lines never mix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from taskrunner import TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One line of the log."""

    event: str
    """`start` and `end` are written by a step's function, other events by who watches from outside."""
    task: str = ""
    """The task's id."""
    step: str = ""
    """The step's name, and which call of that name: `parse[3]`."""
    attempt: int = 0
    key: str = ""
    """The step's idempotency key."""
    pid: int = 0
    """Of the process that did it; of the new process for `spawn`, of the killed one for `kill`."""
    time: str = ""
    """UTC, ISO 8601."""


def append(path: str | Path, effects: Iterable[Effect]) -> None:
    """Add lines to the log; they are on the disk when this returns.

    Raises:
        OSError: the file cannot be written.
    """
    text = "".join(json.dumps(asdict(effect)) + "\n" for effect in effects)
    if not text:
        return
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, text.encode("ascii"))
        os.fsync(file)
    finally:
        os.close(file)


def read(path: str | Path) -> list[Effect]:
    """Every line of the log, in order; an empty list when there is no file. A torn line is left out."""
    try:
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [effect for line in lines if (effect := _parse(line)) is not None]


@contextmanager
def witnessed(path: str | None, step: str) -> Iterator[None]:
    """Write `start` before and `end` after what a step's function does; without a path, nothing.

    `step` says which step this is, as `Effect.step` does. It works inside a step's function only.

    Raises:
        NotInStep: outside a step.
        OSError: the log cannot be written.
    """
    if path is None:
        yield
        return
    append(path, [_of_this_step("start", step)])
    yield
    append(path, [_of_this_step("end", step)])


def _of_this_step(event: str, step: str) -> Effect:
    ctx = TaskContext.current()
    return Effect(
        event=event,
        task=ctx.task.id,
        step=step,
        attempt=ctx.attempt,
        key=ctx.idempotency_key,
        pid=os.getpid(),
        time=ctx.now().isoformat(),
    )


def _parse(line: str) -> Effect | None:
    try:
        return Effect(**json.loads(line))
    except (TypeError, ValueError):
        return None
