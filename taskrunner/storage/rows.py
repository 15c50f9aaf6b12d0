"""From a row of the store to the frozen rows of the ground floor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskrunner.core.durations import moment
from taskrunner.core.errors import StoreError
from taskrunner.core.model import Attempt, Message, SessionRow, Step, SupervisorRow, Task

if TYPE_CHECKING:
    from datetime import datetime

    from taskrunner.storage.engine import Row

_decode = msgspec.json.Decoder().decode

_NONE = type(None)
_TASK_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "id": (str,), "seq": (int,), "session_id": (str, _NONE), "parent_task_id": (str, _NONE), "type": (str,),
    "queue": (str,), "priority": (int,), "status": (str,), "waiting_for": (str, _NONE), "unique_key": (str, _NONE),
    "idempotency_key": (str, _NONE), "cancel_requested_at": (str, _NONE), "input": (str,), "output": (str, _NONE),
    "error_type": (str, _NONE), "error_message": (str, _NONE), "progress": (float,), "progress_message": (str,),
    "attempt": (int,), "losses": (int,), "max_losses": (int,), "retry_count": (int,), "max_retries": (int,),
    "series": (int,), "timeout": (float, _NONE), "history_id": (str,), "lease_owner": (str, _NONE), "run_at": (str,),
    "scheduled_for": (str, _NONE), "started_at": (str, _NONE), "completed_at": (str, _NONE), "created_at": (str,),
    "updated_at": (str,),
}  # fmt: skip
"""The columns of the part `task_columns`, in its order, and the types that their values have."""

_good_types: set[tuple[type, ...]] = set()
"""Combinations of types that were seen to be right: few, and quickly compared."""


def task_of(row: Row) -> Task:
    """The task of a row with the columns of the part `task_columns`.

    Raises:
        StoreError: something that is no taskrunner wrote what cannot be read; it names the task.
    """
    value: Any = row
    try:
        _check_types(row)
        return Task(
            id=value[0], seq=value[1], session_id=value[2], parent_task_id=value[3], type=value[4], queue=value[5],
            priority=value[6], status=value[7], waiting_for=value[8], unique_key=value[9], idempotency_key=value[10],
            cancel_requested_at=_moment(value[11]), input=_decode(value[12]),
            output=None if value[13] is None else _decode(value[13]), error_type=value[14], error_message=value[15],
            progress=value[16], progress_message=value[17], attempt=value[18], losses=value[19], max_losses=value[20],
            retry_count=value[21], max_retries=value[22], series=value[23], timeout=value[24], history_id=value[25],
            lease_owner=value[26], run_at=moment(value[27]), scheduled_for=_moment(value[28]),
            started_at=_moment(value[29]), completed_at=_moment(value[30]), created_at=moment(value[31]),
            updated_at=moment(value[32]),
        )  # fmt: skip
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        message = f"task {value[0]}: its row is unreadable ({error})"
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
        lock_name=value[6], expires_at=value[7], started_at=moment(value[8]), beat_at=moment(value[9]),
        ended_at=_moment(value[10]), ended_how=value[11],
    )  # fmt: skip


def _check_types(row: Row) -> None:
    """Refuse a task's row with a value of a type that its column never has: SQLite keeps whatever it is given.

    Raises:
        TypeError: it names the column.
    """
    types = tuple(map(type, row))
    if types in _good_types:
        return
    for (name, allowed), value in zip(_TASK_TYPES.items(), row, strict=True):
        if not isinstance(value, allowed):
            message = f"{name} is of type {type(value).__name__}"
            raise TypeError(message)
    _good_types.add(types)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else moment(text)
