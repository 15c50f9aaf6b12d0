"""Every error that taskrunner raises, in one tree.

```
TaskRunnerError
├── TaskFailed            a task ended as failed, and somebody asked for its result
├── TaskCancelled         a task ended as cancelled, and somebody asked for its result
├── StepFailed            a step's function raised; raised again on replay
├── TaskNotFound          no task has this id                                       (LookupError)
├── UnknownTask           no task type of this name is registered                   (LookupError)
├── DuplicateTask         an unfinished task holds this unique key (defined beside the handle that it carries)
├── InvalidInput          an argument or an option was refused at the door          (ValueError)
│   └── PayloadTooLarge   … because its JSON is larger than `max_payload`
├── InvalidResult         a result has no JSON form, or does not fit its annotation (TypeError)
├── AmbiguousStep         one step name used from several async tasks without a key
├── NotOpen               the runner was used before it was opened                  (RuntimeError)
├── NotInTask             `TaskContext.current()` outside a task                    (LookupError)
├── NotInStep             `ctx.idempotency_key` outside a step's function           (LookupError)
├── NoSession             the task has no session, or no session has this id        (LookupError)
├── StoreError            the store cannot be opened or used
│   ├── StoreBusy         nothing was written: safe to send again
│   └── StoreUnknown      lost during COMMIT and not to be looked up
├── Retry                 raised by user code: run me again
└── Fail                  raised by user code: do not run me again

AttemptOver (BaseException: `except Exception` in user code must not see it)
├── LeaseLost             the task was taken from this attempt
└── NonDeterministicStep  the body no longer follows its recorded steps
```

An error's docstring is its default message.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime, timedelta

MAX_ERROR_TEXT = 4_096
"""Characters of an error's text that are stored; a longer one is cut and says so."""

MAX_SENTENCE = 900
"""Characters of the sentence by which a value is refused."""

MAX_DEPTH = 5
"""Levels of a group of errors that its text tells of: groups may hold groups without end."""

_HOME = "taskrunner"
_DEFINED_IN = ("taskrunner.core.", "taskrunner.authoring.")
_ours: dict[str, type[BaseException]] = {}
"""Our errors by the name that users know them by."""


def _call_as_imported(kind: type[BaseException]) -> None:
    """Users import our errors from `taskrunner`, wherever they are defined: so tracebacks call them by that name."""
    if kind.__module__.startswith(_DEFINED_IN):
        kind.__module__ = _HOME
        _ours[f"{_HOME}.{kind.__qualname__}"] = kind


class TaskRunnerError(Exception):
    """Something in taskrunner went wrong."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        _call_as_imported(cls)

    def __init__(self, message: str = "", /) -> None:
        super().__init__(message or _first_line(type(self)))


_call_as_imported(TaskRunnerError)


class TaskFailed(TaskRunnerError):
    """The task failed."""

    def __init__(self, task_id: str, error_type: str, details: str) -> None:
        super().__init__(f"task {task_id} failed: {details}")
        self.task_id = task_id
        self.error_type = error_type
        self.details = details


class TaskCancelled(TaskRunnerError):
    """The task was cancelled."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"task {task_id} was cancelled")
        self.task_id = task_id


class StepFailed(TaskRunnerError):
    """The step's function raised; `__cause__` holds the original the first time, on replay there is none."""

    def __init__(self, step: str, error_type: str, details: str) -> None:
        super().__init__(f"step {step!r} failed: {details}")
        self.step = step
        self.error_type = error_type
        self.details = details


class TaskNotFound(TaskRunnerError, LookupError):
    """No task has this id."""


class UnknownTask(TaskRunnerError, LookupError):
    """No task type of this name is registered here."""


class InvalidInput(TaskRunnerError, ValueError):
    """The input was refused; `path` names the offending value, such as `topics[2].since`."""

    def __init__(self, message: str = "", /, *, path: str = "") -> None:
        super().__init__(one_sentence(message))
        self.path = path


class PayloadTooLarge(InvalidInput):
    """The JSON of this value is larger than `max_payload`."""


class InvalidResult(TaskRunnerError, TypeError):
    """The result has no JSON form, or does not fit its annotation; `path` names the offending value."""

    def __init__(self, message: str = "", /, *, path: str = "") -> None:
        super().__init__(one_sentence(message))
        self.path = path


class AmbiguousStep(TaskRunnerError):
    """One step name was used from several async tasks: give each its own name, or `ctx.options(key=…)`."""


class NotOpen(TaskRunnerError, RuntimeError):
    """The runner is not open: use it inside `async with runner`, `runner.working()`, or through `runner.sync`."""


class NotInTask(TaskRunnerError, LookupError):
    """There is no current task: `TaskContext.current()` works inside a task's body only."""


class NotInStep(TaskRunnerError, LookupError):
    """There is no current step: `ctx.idempotency_key` is read inside a step's function only."""


class NoSession(TaskRunnerError, LookupError):
    """There is no such session."""


class StoreError(TaskRunnerError):
    """The store cannot be opened or used."""


class StoreBusy(StoreError):
    """Nothing was written, because the store is locked or its disk is full: it is safe to send this again."""


class StoreUnknown(StoreError):
    """The write was lost during COMMIT and could not be looked up: it may or may not have happened."""


class Retry(TaskRunnerError):
    """Raised by a task: end this attempt and run the task again.

    `after` is how long to wait (seconds, `"90s"`, a timedelta) or when to run (an aware datetime); by default the
    task's `wait` decides. It uses up one of the task's `max_retries`.
    """

    def __init__(self, reason: str = "", /, *, after: float | str | timedelta | datetime | None = None) -> None:
        super().__init__(reason or "the task asked to be run again")
        self.after = after


class Fail(TaskRunnerError):
    """Raised by a task: it failed for good, whatever retries are left."""

    def __init__(self, reason: str, /) -> None:
        super().__init__(reason)


class AttemptOver(BaseException):
    """This attempt may do nothing more: let it pass; `except Exception` does not see it, so nothing is undone."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        _call_as_imported(cls)

    def __init__(self, message: str = "", /) -> None:
        super().__init__(message or _first_line(type(self)))


_call_as_imported(AttemptOver)


class LeaseLost(AttemptOver):
    """The task was taken from this attempt: another one may be running, and nothing that this one writes is kept."""


class NonDeterministicStep(AttemptOver):
    """The task's code no longer takes the steps that are recorded; the task is failed.

    `retry` goes on from the recorded steps, with mended code.
    """


def error_type_of(error: BaseException) -> str:
    """Name an error's class in storable text, as users write it: `ValueError`, `taskrunner.Fail`."""
    try:
        return safe_text(name_of_type(type(error)))
    except Exception:  # noqa: BLE001 - its metaclass may raise anything, and the task must still end
        return "(an error whose class has no name)"


def name_of_type(kind: type[BaseException]) -> str:
    """Name a class of errors as users write it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def class_of_name(name: str) -> type[BaseException] | None:
    """Find the class of errors that `name_of_type` names so, without importing anything; None if it is not at hand.

    It has to be a builtin one, or to stand in a module that this program has imported already.
    """
    if name in _ours:
        return _ours[name]
    parts = name.split(".")
    for count in range(len(parts) - 1, -1, -1):
        found: object = sys.modules.get(".".join(parts[:count]) or "builtins")
        for part in parts[count:]:
            found = _own_attribute(found, part)
        if isinstance(found, type) and issubclass(found, BaseException) and name_of_type(found) == name:
            return found
    return None


def _own_attribute(holder: object, name: str) -> object:
    """An attribute of a module or a class by its dict alone: a `__getattr__` might import something."""
    try:
        return object.__getattribute__(holder, "__dict__").get(name)
    except AttributeError:
        return None


def safe_text(text: str, limit: int = MAX_ERROR_TEXT) -> str:
    """Make any text fit to be stored: no lone surrogates, no U+0000, at most `limit` characters."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean):,} characters in all)"


def one_sentence(text: str) -> str:
    """What is said of a value that may be anything: short, on one line, and what no terminal should see escaped."""
    if len(text) > MAX_SENTENCE:
        text = f"{text[:MAX_SENTENCE]}…"
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def error_text(error: BaseException, depth: int = MAX_DEPTH) -> str:
    """Describe an error in bounded, storable text, whatever its `__str__` does; of a group `depth` levels."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - a user's __str__ may raise anything, and the task must still end
        text = f"(its text cannot be read: __str__ raised {error_type_of(broken)})"
    if isinstance(error, BaseExceptionGroup) and depth > 0:
        parts = "; ".join(f"{error_type_of(part)}: {error_text(part, depth - 1)}" for part in error.exceptions[:3])
        text = f"{text}: {parts}"
    return safe_text(f"{error_type_of(error)}: {text}" if text else error_type_of(error))


def _first_line(kind: type[BaseException]) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]
