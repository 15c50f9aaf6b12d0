"""The states of a task and of a session, and the moves a task may make."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

Status: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
SessionStatus: TypeAlias = Literal["active", "archived", "deleted"]
Role: TypeAlias = Literal["user", "assistant", "system", "tool"]
OnConflict: TypeAlias = Literal["reuse", "replace", "reject"]

Ending: TypeAlias = Literal["completed", "failed", "retried", "released", "lost", "cancelled"]
"""How an attempt ended: `retried` burnt a retry, `released` burnt nothing, `lost` means that its process was gone."""

STATUSES: Final[tuple[Status, ...]] = ("pending", "running", "completed", "failed", "cancelled")
ROLES: Final[tuple[Role, ...]] = ("user", "assistant", "system", "tool")
ON_CONFLICT: Final[tuple[OnConflict, ...]] = ("reuse", "replace", "reject")
TERMINAL: Final[frozenset[Status]] = frozenset({"completed", "failed", "cancelled"})
RETRIABLE: Final[frozenset[Status]] = frozenset({"failed", "cancelled"})
"""What `retry` takes."""

MOVES: Final[dict[tuple[Status, Status], str]] = {
    ("pending", "running"): "claimed by a supervisor",
    ("pending", "failed"): "its deadline passed",
    ("pending", "cancelled"): "cancelled before it ran",
    ("running", "completed"): "its body returned",
    ("running", "pending"): "to be run again: retried, released by a stop, orphaned, or waiting",
    ("running", "failed"): "raised for good, retries used up, or quarantined",
    ("running", "cancelled"): "cancelled while it ran",
    ("failed", "pending"): "retried by hand, as a new series",
    ("cancelled", "pending"): "retried by hand, as a new series",
}
"""Every move a task may make, and when. The store's triggers refuse all others (a test compares the two)."""
