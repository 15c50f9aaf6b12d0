"""A store opened to be read: it is neither made nor changed, and what is odd in it spoils nothing else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from taskrunner.cli.common import Door
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreError, TaskNotFound
from taskrunner.core.model import JSON, Task
from taskrunner.core.settings import Settings, read_pyproject, resolve
from taskrunner.core.states import Status
from taskrunner.storage.engine import Row, Unreadable, Value
from taskrunner.storage.health import Health
from taskrunner.storage.rows import task_of
from taskrunner.storage.store import Store

UNREADABLE = (StoreError, TaskNotFound, RecursionError, ValueError, TypeError)
"""What reading a row raises that something else than taskrunner wrote."""

_ID, _STATUS = 0, 7
"""Places in a row of a task, for rows of which nothing more can be read."""


def settings_of(door: Door) -> Settings:
    """The settings as a command without a user's code sees them.

    Raises:
        InvalidInput: one of them is wrong.
    """
    return resolve(flags={"db": door.db}, env=os.environ, pyproject=read_pyproject(Path("pyproject.toml")))


@asynccontextmanager
async def open_to_read(settings: Settings) -> AsyncIterator[Store]:
    """Open the store that the settings name.

    Raises:
        StoreError: none is named, or it cannot be opened.
    """
    async with Store.open(settings, Clock(), writing=False) as store:
        yield store


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a list: the task, or why it cannot be read."""

    id: str
    status: str
    task: Task | None
    trouble: str = ""


async def list_tasks(
    store: Store,
    *,
    limit: int,
    after: str | None = None,
    status: Status | None = None,
    type: str | None = None,  # noqa: A002 - the column's name
    queue: str | None = None,
    session_id: str | None = None,
) -> list[Listed]:
    """A page of tasks, the newest first. A row that cannot be read stands in its place, marked, and harms no other.

    Raises:
        TaskNotFound: no task has the id `after`.
    """
    if after is not None:
        await store.tasks.status(after)
    try:
        rows = await store.tasks.rows(
            limit=limit, after=after, status=status, type=type, queue=queue, session_id=session_id
        )
    except Unreadable:
        return await _list_one_by_one(
            store, limit=limit, after=after, status=status, type=type, queue=queue, session_id=session_id
        )
    return [_listed(row) for row in rows]


async def _list_one_by_one(store: Store, **page: Value) -> list[Listed]:
    found: list[Listed] = []
    for task_id, status in await Health(store.engine).task_ids(**page):
        try:
            found.append(Listed(task_id, status, await store.tasks.get(task_id)))
        except UNREADABLE as error:
            found.append(Listed(task_id, status, None, reason_of(task_id, error)))
    return found


def _listed(row: Row) -> Listed:
    task_id, status = str(row[_ID]), str(row[_STATUS])
    try:
        return Listed(task_id, status, task_of(row))
    except UNREADABLE as error:
        return Listed(task_id, status, None, reason_of(task_id, error))


def reason_of(task_id: str, error: Exception) -> str:
    """Why a task's row cannot be read."""
    return str(error) if isinstance(error, StoreError) else f"task {task_id}: its row is unreadable ({error})"


def as_json(record: Any) -> dict[str, JSON]:  # noqa: ANN401 - any of the frozen rows
    """A frozen row as a JSON object: times as ISO 8601 text."""
    return {name: _plain(value) for name, value in asdict(record).items()}


def status_of(task: Task) -> str:
    """A task's status with what it waits for, as people want to see it."""
    if task.status == "pending" and task.waiting_for is not None:
        return f"pending (waiting: {task.waiting_for})"
    if task.status == "running" and task.cancel_requested_at is not None:
        return "running (cancelling)"
    return str(task.status)


def percent(fraction: object) -> str:
    """A progress as people want to see it."""
    return f"{fraction:.0%}" if isinstance(fraction, int | float) else str(fraction)


def time_of(moment: datetime | None) -> str:
    """A time as people want to see it: UTC, to the second."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _plain(value: object) -> JSON:
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, bytes):
        return value.hex()
    return value
