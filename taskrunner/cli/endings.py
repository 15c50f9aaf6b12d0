"""How a command ends: its exit code, and the one sentence that tells an error."""

from __future__ import annotations

import os
from typing import Final

import click

DONE: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
NO_STORE: Final = 3
NOT_FOUND: Final = 4
WAIT_TIMED_OUT: Final = 124
INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells have it."""


class Trouble(click.ClickException):
    """What a command found wrong, with the exit code that says of what kind it is."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: BaseException) -> int:
    """The exit code for an error that ended a command."""
    from taskrunner.core.errors import InvalidInput, NoSession, StoreError, TaskNotFound, UnknownTask

    error = _single(error)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, Trouble):
        return error.code
    if isinstance(error, click.ClickException):
        return error.exit_code
    codes: dict[type[BaseException], int] = {
        InvalidInput: WRONG_USAGE,
        UnknownTask: WRONG_USAGE,
        StoreError: NO_STORE,
        TaskNotFound: NOT_FOUND,
        NoSession: NOT_FOUND,
        TimeoutError: WAIT_TIMED_OUT,
    }
    return next((code for kind, code in codes.items() if isinstance(error, kind)), FAILED)


def sentence_of(error: BaseException) -> str:
    """One sentence for an error; an empty one where the user knows (Ctrl-C)."""
    from taskrunner.core.errors import TaskRunnerError, error_text

    error = _single(error)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return ""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "taskrunner"
        return f"{_one_line(error.format_message()).rstrip('.')}; see '{where} --help'"
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message())
    if isinstance(error, TaskRunnerError):
        return _one_line(str(error))
    if isinstance(error, OSError):
        return _one_line(reason_of(error))
    return f"{_one_line(error_text(error))} (an error in taskrunner or in a task's own code; --debug shows where)"


def reason_of(error: OSError) -> str:
    """What the system refused, without Python's numbers: the file, if one is known, and why."""
    from taskrunner.core.errors import error_text

    if error.strerror is None:
        return error_text(error)
    return error.strerror if error.filename is None else f"{os.fsdecode(error.filename)}: {error.strerror}"


def _single(error: BaseException) -> BaseException:
    """The one error inside a group of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _one_line(text: str) -> str:
    return " ".join(text.split())
