"""The options of a task and of an enqueue, checked at the door."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, TypedDict
from unicodedata import category

from taskrunner.core.durations import Duration, aware, seconds
from taskrunner.core.errors import InvalidInput, safe_text
from taskrunner.core.model import TaskType
from taskrunner.core.places import is_huge, shown
from taskrunner.core.states import ON_CONFLICT, OnConflict

MAX_NAME: Final = 200
"""Characters of a name or key: of a task, a queue, a unique key, an idempotency key."""

MAX_RETRIES: Final = 1_000_000
MIN_LOSSES, MAX_LOSSES = 3, 1_000
_MAX_DURATION_TEXT = 60


class Options(TypedDict):
    """What `NewTask` holds beside the type and the input: the options of one enqueue, checked."""

    session_id: str | None
    queue: str | None
    priority: int | None
    delay: float | None
    run_at: datetime | None
    unique_key: str | None
    on_conflict: str
    idempotency_key: str | None
    max_retries: int | None
    timeout: float | None


def enqueue_options(
    *,
    priority: int | None = None,
    queue: str | None = None,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    session_id: str | None = None,
    unique_key: str | None = None,
    on_conflict: OnConflict = "reuse",
    idempotency_key: str | None = None,
    max_retries: int | None = None,
    timeout: Duration | None = None,
) -> Options:
    """Check the options of one enqueue. None: as the task's type says.

    Raises:
        InvalidInput: one of them is out of its bounds, or two contradict each other; `path` is its name.
    """
    if delay is not None and run_at is not None:
        message = "delay and run_at both say when the task is due: give one of them"
        raise InvalidInput(message, path="run_at")
    if not isinstance(on_conflict, str) or on_conflict not in ON_CONFLICT:
        message = f"on_conflict: must be one of {', '.join(ON_CONFLICT)}, not {shown(on_conflict)}"
        raise InvalidInput(message, path="on_conflict")
    if on_conflict != "reuse" and unique_key is None:
        message = f"on_conflict={on_conflict!r} needs a unique_key to conflict on"
        raise InvalidInput(message, path="on_conflict")
    return Options(
        session_id=_optional_name(session_id, "session_id"),
        queue=_optional_name(queue, "queue"),
        priority=_optional_integer(priority, "priority", 0, 9),
        delay=None if delay is None else duration(delay, "delay", zero=True),
        run_at=None if run_at is None else _moment(run_at, "run_at"),
        unique_key=_optional_name(unique_key, "unique_key"),
        on_conflict=on_conflict,
        idempotency_key=_optional_name(idempotency_key, "idempotency_key"),
        max_retries=_optional_integer(max_retries, "max_retries", 0, MAX_RETRIES),
        timeout=None if timeout is None else duration(timeout, "timeout"),
    )


def task_type(
    *,
    name: str,
    queue: str = "default",
    priority: int = 5,
    timeout: Duration | None = None,
    max_retries: int | None = None,
    max_losses: int | None = None,
) -> TaskType:
    """Check what a task's definition says for all its tasks. None: as the runner says.

    Raises:
        InvalidInput: one of them is out of its bounds; `path` is its name.
    """
    return TaskType(
        name=text(name, "name"),
        queue=text(queue, "queue"),
        priority=integer(priority, "priority", 0, 9),
        timeout=None if timeout is None else duration(timeout, "timeout"),
        max_retries=_optional_integer(max_retries, "max_retries", 0, MAX_RETRIES),
        max_losses=_optional_integer(max_losses, "max_losses", MIN_LOSSES, MAX_LOSSES),
    )


def text(value: object, name: str) -> str:
    """A name or key: a text of 1 to 200 characters, without control characters and lone surrogates.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str):
        message = f"{name}: must be a text, not {shown(value)}"
        raise InvalidInput(message, path=name)
    value = str.__str__(value)  # a subclass may say what it likes of its length
    if not 0 < len(value) <= MAX_NAME:
        message = f"{name}: must have 1 to {MAX_NAME} characters, not {len(value):,}"
        raise InvalidInput(message, path=name)
    if not value.isprintable() and any(category(character) in {"Cc", "Cs"} for character in value):
        message = f"{name}={safe_text(value)!r}: must not contain control characters or lone surrogates"
        raise InvalidInput(message, path=name)
    return value


def integer(value: object, name: str, low: int, high: int) -> int:
    """An integer from `low` to `high`; True and False are none.

    Raises:
        InvalidInput: it is not.
    """
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    message = f"{name}: must be an integer from {low} to {high:,}, not {shown(value)}"
    raise InvalidInput(message, path=name)


def duration(value: object, name: str, *, zero: bool = False) -> float:
    """A duration in seconds; 0 only where `zero` says so.

    Raises:
        InvalidInput: it is none, or out of bounds.
    """
    readable = len(value) <= _MAX_DURATION_TEXT if isinstance(value, str) else not is_huge(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str | timedelta) or not readable:
        message = f"{name}: must be a duration, in seconds or like '90s', not {shown(value)}"
        raise InvalidInput(message, path=name)
    return seconds(value, name, zero=zero)


def _optional_name(value: object, name: str) -> str | None:
    return None if value is None else text(value, name)


def _optional_integer(value: object, name: str, low: int, high: int) -> int | None:
    return None if value is None else integer(value, name, low, high)


def _moment(value: object, name: str) -> datetime:
    if isinstance(value, datetime):
        return aware(value, name)
    message = f"{name}: must be a datetime with a time zone, not {shown(value)}"
    raise InvalidInput(message, path=name)
