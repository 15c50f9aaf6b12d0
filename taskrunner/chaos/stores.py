"""Stores without a runner: opened on any disk, with supervisors that exist by their row alone, and a still clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from taskrunner.core.clock import Clock
from taskrunner.core.model import NewTask, SupervisorRow, Task, TaskType
from taskrunner.core.settings import resolve
from taskrunner.storage import guard
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.store import Store


@asynccontextmanager
async def open_store(
    db: Path, *, clock: Clock | None = None, writing: bool = True, vfs: str | None = None, **given: object
) -> AsyncIterator[Store]:
    """A store with the settings given, over SQLite's `vfs` if one is named."""
    clock = clock or Clock()
    settings = resolve(code={"db": db, **given})
    engine = await SQLiteEngine.open(
        guard.resolve(settings.db),
        clock=clock,
        busy_timeout=settings.busy_timeout,
        durability=settings.durability,
        writing=writing,
        vfs=vfs,
    )
    try:
        yield Store(engine, clock, settings)
    finally:
        await engine.close()


def writer_of(store: Store) -> apsw.Connection:
    """The connection that writes, of a store that is on a file here: for checkpoints at a time of one's own."""
    assert isinstance(store.engine, SQLiteEngine)
    writer = store.engine._writer
    assert writer is not None
    return writer.connection


def new_task(type: str = "job", **options: Any) -> NewTask:  # noqa: A002, ANN401 - the fields' names and kinds
    """A task to be enqueued."""
    return NewTask(**{"type": type, "input": "{}", **options})


async def register(
    store: Store,
    owner: str,
    *,
    lease: float = 60.0,
    types: Sequence[TaskType] = (),
    now: datetime | None = None,
    limits: Mapping[str, int | None] | None = None,
) -> None:
    """Store a living supervisor."""
    clock = Clock()
    now = now or clock.now()
    row = SupervisorRow(
        id=owner,
        boot_id=clock.boot_id(),
        pid=1,
        pid_namespace="",
        start_time=0,
        host="here",
        lock_name=f"{owner}.lock",
        expires_at=0,
        started_at=now,
        beat_at=now,
        ended_at=None,
        ended_how=None,
    )
    await store.owners.register(row, "0", lease, types, limits)


async def claim(
    store: Store, owner: str = "me", slots: int = 64, queues: Sequence[str] = ("default",), *, suspect: bool = False
) -> list[Task]:
    """Claim what is due, or one suspect."""
    return (await store.tasks.claim(owner, queues, slots, suspect=suspect)).tasks


class StillClock(Clock):
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)
        self.seconds = 1_000.0

    def now(self) -> datetime:
        """The wall clock."""
        return self.moment

    def monotonic(self) -> float:
        """The monotonic clock."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.moment += timedelta(seconds=seconds)
        self.seconds += seconds


async def end(store: Store, task: Task, how: str = "completed") -> str:
    """End the attempt of a claimed task: completed, failed, retried or released."""
    fail = {"error_type": "E", "error_message": "why"}
    statement = {
        "completed": lambda: store.tasks.complete(task.fence, "1"),
        "failed": lambda: store.tasks.fail(task.fence, **fail, retry_in=None),
        "retried": lambda: store.tasks.fail(task.fence, **fail, retry_in=0.0),
        "released": lambda: store.tasks.release(task.fence),
    }[how]()
    return await store.tasks.end(task.fence, statement)
