"""The rows, frozen: what the store tells. Times are aware datetimes in UTC, durations are seconds.

What people get to see are dataclasses; what is made for each write is a Struct, which takes a sixth of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec

from taskrunner.core.states import Role, SessionStatus, Status

JSON: TypeAlias = Any
"""Any JSON value. (A recursive alias reads worse in every error message.)"""


SUSPECT_FROM: Final = 2
"""From so many losses in a row a task is a suspect: it may be what kills its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, as it stood when it was read."""

    id: str
    seq: int
    """The order: tasks of equal priority run in it."""
    session_id: str | None
    parent_task_id: str | None
    type: str
    queue: str
    priority: int
    """0 to 9, lower first."""
    status: Status
    waiting_for: str | None
    """What a pending task waits for, such as `worker:TYPE`; None: for its turn."""
    unique_key: str | None
    idempotency_key: str | None
    cancel_requested_at: datetime | None
    input: JSON
    output: JSON
    error_type: str | None
    error_message: str | None
    progress: float
    """0.0 to 1.0; it never falls."""
    progress_message: str
    attempt: int
    """How often the task was claimed. The running attempt's number is its fencing token."""
    losses: int
    """How many attempts in a row ended with the death of their process without recording a step."""
    max_losses: int
    retry_count: int
    max_retries: int
    series: int
    """How often the task was retried by hand."""
    timeout: float | None
    """Seconds that one attempt may take; None: no limit."""
    history_id: str
    """Under which its steps are recorded."""
    lease_owner: str | None
    """The supervisor that runs it."""
    run_at: datetime
    scheduled_for: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def is_suspect(self) -> bool:
        """Whether it has lost its process so often that it runs one at a time, and apart from others if possible."""
        return self.losses >= SUSPECT_FROM

    @property
    def fence(self) -> Fence:
        """The right to write for this attempt; only meaningful for a row that a claim has returned."""
        return Fence(task_id=self.id, owner=self.lease_owner or "", attempt=self.attempt, history_id=self.history_id)


class Fence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What every write of an attempt carries: it is refused once the task was taken from that attempt."""

    task_id: str
    owner: str
    attempt: int
    history_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One recorded step: its value as JSON text, or the error that its function raised."""

    scope: str
    name: str
    occurrence: int
    """Which call of that name, from 0."""
    position: int
    """Which step of its attempt, from 0, in the order of the calls."""
    turn: int | None
    """Which call of the body's own async task, from 0; None when another async task called."""
    digest: str
    """Of its arguments."""
    value: str | None
    error_type: str | None
    error: str | None
    attempt: int
    created_at: datetime

    @property
    def label(self) -> str:
        """As people read it; see `step_label`."""
        return step_label(self.scope, self.name, self.occurrence)


def step_label(key: str, name: str, occurrence: int) -> str:
    """A step as people read it: `search`, `search#2` for the third call, `search[key]`, `search[key]#2`."""
    return name + (f"[{key}]" if key else "") + (f"#{occurrence}" if occurrence else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One ended attempt; the open one is the task's row."""

    attempt: int
    owner: str
    outcome: str
    error_type: str | None
    error_message: str | None
    traceback: str | None
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class HandRetry:
    """One time that a task was retried by hand, from what it had ended as."""

    series: int
    from_status: str
    error_message: str | None
    retried_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line that a task's body has logged, its fields as JSON text."""

    attempt: int
    at: datetime
    level: str
    event: str
    fields: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A task with its ended attempts, its recorded steps and its children."""

    task: Task
    attempts: list[Attempt]
    steps: list[Step]
    children: list[Task]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One conversation's row."""

    id: str
    seq: int
    title: str
    status: SessionStatus
    model: str | None
    system_prompt: str | None
    token_usage: int
    """The sum of its messages' `token_count`."""
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a session."""

    id: str
    seq: int
    """The order; 0 for a message that waits for its step's commit."""
    session_id: str
    role: Role
    content: str
    tool_calls: list[JSON]
    tool_call_id: str | None
    parent_msg_id: str | None
    token_count: int
    payload: JSON
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorRow:
    """One run of a supervisor process. `id` is a fresh random id: no host name and no pid is an identity."""

    id: str
    boot_id: str
    pid: int
    pid_namespace: str
    start_time: int
    """Field 22 of /proc/PID/stat, in clock ticks since boot; 0: unknown."""
    host: str
    lock_name: str
    """The file in the store's folder that it holds an exclusive flock on while it lives."""
    bell: str | None = None
    """The socket in the store's folder by which it is woken; None: it has none, and polls."""
    expires_at: int
    """When its lease runs out, in nanoseconds of CLOCK_MONOTONIC."""
    started_at: datetime
    beat_at: datetime
    ended_at: datetime | None
    ended_how: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What was said of a queue."""

    name: str
    paused_at: datetime | None
    """Since when nothing is claimed from it; None: it is not paused."""
    concurrency: int | None
    """How many of its tasks may run at the same time, over all supervisors; None: as many as they have slots."""
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """What a task type says of itself. It is a row of the store too, so that enqueue by name knows it."""

    name: str
    queue: str = "default"
    priority: int = 5
    max_retries: int | None = None
    timeout: float | None = None
    max_losses: int | None = None


class NewTask(msgspec.Struct, frozen=True, kw_only=True, gc=False, repr_omit_defaults=True):
    """A task to be enqueued: checked, encoded, not yet stored. None means: as its type says, else the default."""

    type: str
    input: str
    """JSON text of an object."""
    session_id: str | None = None
    parent_task_id: str | None = None
    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    """Seconds from now."""
    run_at: datetime | None = None
    unique_key: str | None = None
    on_conflict: str = "reuse"
    idempotency_key: str | None = None
    max_retries: int | None = None
    timeout: float | None = None
    max_losses: int | None = None
