"""Moments at which a child program kills itself with SIGKILL, exactly there, where a random kill rarely hits.

`claim`: right after its first claim was committed; `within:N`: in the writer's N-th transaction, when all is written
but the COMMIT; `after:N`: right after the N-th COMMIT, before anybody was told of it.
"""

from __future__ import annotations

import os
import signal
from typing import Any, Final

from taskrunner import TaskRunner
from taskrunner.chaos.kills.witness import write
from taskrunner.storage.sqlite_writer import Writer

VARIABLE: Final = "TASKRUNNER_TEST_DIE_AT"
"""The environment variable that names the moment."""


def decree(moment: str, runner: TaskRunner) -> None:
    """Have this process die at that moment; without one, not at all."""
    name, _, number = moment.partition(":")
    if name == "claim":
        runner.on("task.started", lambda _fields: die(moment))
    elif name:
        at_commit(name, int(number))


def at_commit(name: str, number: int) -> None:
    """Die in the N-th transaction of this process, or after it."""
    begun = 0
    mark, commit = Writer._mark, Writer.commit

    def marking(writer: Writer, *args: Any) -> None:  # noqa: ANN401 - as the writer does
        nonlocal begun
        begun += 1
        mark(writer, *args)
        if name == "within" and begun == number:
            die(f"{name}:{number}")

    def committing(writer: Writer, *args: Any) -> Any:  # noqa: ANN401 - as above
        outcomes = commit(writer, *args)
        if name == "after" and begun >= number:
            die(f"{name}:{number}")
        return outcomes

    setattr(Writer, "_mark", marking)  # noqa: B010 - to a type checker methods are no variables
    setattr(Writer, "commit", committing)  # noqa: B010 - as above


def die(why: str) -> None:
    """Witness it, and die."""
    write("kill", text=why.partition(":")[0])
    os.kill(os.getpid(), signal.SIGKILL)
