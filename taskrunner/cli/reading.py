"""A store opened to be read: it is neither made nor changed, and what is odd in it spoils nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from taskrunner.cli.common import Door
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreError
from taskrunner.core.model import JSON, Queue, Task
from taskrunner.core.places import MAX_DEPTH
from taskrunner.core.settings import Settings, read_pyproject, resolve
from taskrunner.core.waiting import IN_LINE, waits_for
from taskrunner.storage import guard
from taskrunner.storage.listing import Listed, unreadable
from taskrunner.storage.store import Store

_DEEPEST: Final = 2 * MAX_DEPTH


def settings_of(door: Door, **flags: object) -> Settings:
    """The settings as a command without a user's code sees them, with these `flags` and `--db`.

    Raises:
        InvalidInput: one of them is wrong.
    """
    return resolve(flags={"db": door.db, **flags}, env=os.environ, pyproject=read_pyproject())


def require_store(settings: Settings) -> None:
    """See that the store is there: only `run` and `enqueue` make one.

    Raises:
        StoreError: none is named, or there is none.
    """
    path = guard.resolve(settings.db)
    if not path.exists():
        message = f"{path}: there is no such store"
        raise StoreError(message)


@asynccontextmanager
async def open_to_read(settings: Settings) -> AsyncIterator[Store]:
    """Open the store that the settings name.

    Raises:
        StoreError: none is named, or it cannot be opened.
    """
    async with Store.open(settings, Clock(), writing=False) as store:
        yield store


def document_of(listed: Listed) -> dict[str, JSON]:
    """One row of a page as a JSON object: of a row that cannot be read, its id, its status and why."""
    if listed.task is None:
        return {"id": listed.id, "status": listed.status, "unreadable": listed.trouble}
    return as_json(listed.task)


def readable(listed: Listed) -> Listed:
    """The same, marked as unreadable where its JSON is deeper than any that was enqueued: to print it would fail."""
    task = listed.task
    if task is None or not (is_deep(task.input) or is_deep(task.output)):
        return listed
    return replace(listed, task=None, trouble=unreadable(listed.id, f"its JSON is more than {_DEEPEST} levels deep"))


def is_deep(value: JSON) -> bool:
    """Whether JSON is deeper than any that was enqueued."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def as_json(record: Any) -> dict[str, JSON]:  # noqa: ANN401 - any of the frozen rows
    """A frozen row as a JSON object: times as ISO 8601 text."""
    return {each.name: _plain(getattr(record, each.name)) for each in fields(record)}


def decoded(text: str | None) -> JSON:
    """A step's value; its own text where something else than taskrunner wrote what is no JSON."""
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if is_deep(value) else value


def status_of(task: Task, queues: Mapping[str, Queue] = MappingProxyType({})) -> str:
    """A task's status with what it waits for beside its turn, as people want to see it."""
    waits = [reason for reason in waits_for(task, queues, Clock().now()) if reason != IN_LINE]
    if waits:
        return f"pending (waiting: {', '.join(waits)})"
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
