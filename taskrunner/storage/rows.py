"""From a row of the store to the frozen rows of the ground floor."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskrunner.core.durations import moment
from taskrunner.core.errors import StoreError
from taskrunner.core.model import Attempt, HandRetry, LogLine, Message, SessionRow, Step, SupervisorRow, Task

if TYPE_CHECKING:
    from datetime import datetime

    from taskrunner.storage.engine import Row

_decode = msgspec.json.Decoder().decode

_TASK_COLUMNS: Final = tuple(field.name for field in fields(Task))
"""The part `task_columns` names them in this order."""


def task_of(row: Row) -> Task:
    """The task of a row with the columns of the part `task_columns`.

    Raises:
        StoreError: something that is no taskrunner wrote what cannot be read; it names the task.
    """
    columns: dict[str, Any] = dict(zip(_TASK_COLUMNS, row, strict=True))
    try:
        columns["input"] = _decode(columns["input"])
        if columns["output"] is not None:
            columns["output"] = _decode(columns["output"])
        return msgspec.convert(columns, Task)  # it reads the instants, and refuses a value that is of another type
    except (TypeError, RecursionError, msgspec.MsgspecError) as error:
        message = f"task {columns['id']}: its row is unreadable ({error})"
        raise StoreError(message) from error


def step_of(row: Row) -> Step:
    """The step of a row of the query `steps`."""
    value: Any = row
    return Step(
        scope=value[0], name=value[1], occurrence=value[2], position=value[3], turn=value[4], digest=value[5],
        value=value[6], error_type=value[7], error=value[8], attempt=value[9], created_at=moment(value[10]),
    )  # fmt: skip


def attempt_of(row: Row) -> Attempt:
    """The ended attempt of a row of the query `attempts`."""
    value: Any = row
    return Attempt(
        attempt=value[0], owner=value[1], outcome=value[2], error_type=value[3], error_message=value[4],
        traceback=value[5], started_at=moment(value[6]), ended_at=moment(value[7]),
    )  # fmt: skip


def retry_of(row: Row) -> HandRetry:
    """The retry by hand of a row of the query `retries`."""
    value: Any = row
    return HandRetry(series=value[0], from_status=value[1], error_message=value[2], retried_at=moment(value[3]))


def log_line_of(row: Row) -> LogLine:
    """The line of a row of the query `log_lines_after`."""
    value: Any = row
    return LogLine(attempt=value[0], at=moment(value[1]), level=value[2], event=value[3], fields=value[4])


def session_of(row: Row) -> SessionRow:
    """The session of a row with the columns of the part `session_columns`."""
    value: Any = row
    return SessionRow(
        id=value[0], seq=value[1], title=value[2], status=value[3], model=value[4], system_prompt=value[5],
        token_usage=value[6], created_at=moment(value[7]), updated_at=moment(value[8]),
    )  # fmt: skip


def message_of(row: Row) -> Message:
    """The message of a row with the columns of the part `message_columns`."""
    value: Any = row
    return Message(
        id=value[0], seq=value[1], session_id=value[2], role=value[3], content=value[4], tool_calls=_decode(value[5]),
        tool_call_id=value[6], parent_msg_id=value[7], token_count=value[8],
        payload=None if value[9] is None else _decode(value[9]), created_at=moment(value[10]),
    )  # fmt: skip


def supervisor_of(row: Row) -> SupervisorRow:
    """The supervisor of a row with the columns of the part `supervisor_columns`."""
    value: Any = row
    return SupervisorRow(
        id=value[0], boot_id=value[1], pid=value[2], pid_namespace=value[3], start_time=value[4], host=value[5],
        lock_name=value[6], bell=value[7], expires_at=value[8], started_at=moment(value[9]), beat_at=moment(value[10]),
        ended_at=_moment(value[11]), ended_how=value[12],
    )  # fmt: skip


def _moment(text: str | None) -> datetime | None:
    return None if text is None else moment(text)
