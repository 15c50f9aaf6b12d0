"""A store's file by plain SQL: rows in every state, and changes that the schema has to judge."""

from __future__ import annotations

import apsw

from taskrunner.core.states import Status
from tests.stores import NOW

Fields = dict[str, str | int | float | None]

BORN: Fields = {
    "id": "t",
    "type": "job",
    "max_retries": 3,
    "max_losses": 5,
    "run_at": NOW,
    "history_id": "t",
    "created_at": NOW,
    "updated_at": NOW,
}
CLAIM: Fields = {"status": "running", "lease_owner": "me", "attempt": 1, "started_at": NOW}
INTO: dict[Status, list[Fields]] = {
    "pending": [],
    "running": [CLAIM],
    "completed": [CLAIM, {"status": "completed", "lease_owner": None, "output": "1", "completed_at": NOW}],
    "failed": [CLAIM, {"status": "failed", "lease_owner": None, "error_message": "no", "completed_at": NOW}],
    "cancelled": [{"status": "cancelled", "completed_at": NOW, "cancel_requested_at": NOW}],
}
"""How a task comes to each status by allowed moves."""


def insert(plain: apsw.Connection, table: str, **fields: str | float | None) -> None:
    """Insert a row."""
    marks = ", ".join("?" * len(fields))
    plain.execute(f"INSERT INTO {table}({', '.join(fields)}) VALUES ({marks})", list(fields.values()))  # noqa: S608


def update(plain: apsw.Connection, task: str = "t", /, **fields: str | float | None) -> None:
    """Change a task."""
    changes = ", ".join(f"{name} = ?" for name in fields)
    plain.execute(f"UPDATE tasks SET {changes} WHERE id = ?", [*fields.values(), task])  # noqa: S608


def task_in(plain: apsw.Connection, status: Status, task: str = "t", /, **fields: str | float | None) -> None:
    """A task in this status."""
    insert(plain, "tasks", **{**BORN, "id": task, "history_id": task, **fields})
    for move in INTO[status]:
        update(plain, task, **{"outcome": None if status == "running" else status, **move})
    assert plain.execute("SELECT status FROM tasks WHERE id = ?", [task]).fetchall() == [(status,)]
