"""How much of what there is, at a bounded cost: people ask for it every second, of files with millions of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskrunner.storage.engine import Statement
from taskrunner.storage.listing import text_of

if TYPE_CHECKING:
    from taskrunner.storage.engine import Engine, Value

NO_BOUND: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where counting stops. A count that has come to its bound means: that many, or more."""

    tasks: int = 1_000_000
    """Of each status, of each queue, and of what is delayed: entries of an index."""
    types: int = 10_000
    """Of each status the newest so many tasks, by type: rows of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oldest:
    """The task that has been pending for the longest time."""

    id: str
    type: str
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What was counted."""

    statuses: dict[str, int]
    types: dict[str, dict[str, int]]
    """By type and status."""
    due: dict[str, int]
    """Tasks that could be claimed now, by queue."""
    running: dict[str, int]
    """By queue."""
    delayed: int
    """Pending tasks whose time has not come."""
    waiting: dict[str, int]
    """Pending tasks by what they wait for, such as `worker:TYPE`."""
    oldest: Oldest | None


class Stats:
    """Counts that go by an index and stop at a bound."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def count(self, bounds: Bounds) -> Numbers:
        """Count what there is. Each number is of a moment of its own: tasks may move between two of them."""
        most: dict[str, Value] = {"most": bounds.tasks}
        statuses = await self._counts("stats_statuses", most)
        types: dict[str, dict[str, int]] = {}
        for status in statuses:
            found = await self._counts("stats_types", {"status": status, "most": bounds.types})
            for kind, count in found.items():
                types.setdefault(kind, {})[status] = count
        return Numbers(
            statuses=statuses,
            types=types,
            due=await self._counts("stats_due", most),
            running=await self._counts("stats_running", most),
            delayed=int(str((await self._engine.read(Statement("stats_delayed", most)))[0][0])),
            waiting=await self._counts("stats_waiting", most),
            oldest=await self._oldest(),
        )

    async def _counts(self, query: str, params: dict[str, Value]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for name, count in await self._engine.read(Statement(query, params)):
            text = text_of(name)
            totals[text] = totals.get(text, 0) + int(str(count))
        return totals

    async def _oldest(self) -> Oldest | None:
        rows = await self._engine.read(Statement("stats_oldest", {}))
        if not rows:
            return None
        task_id, kind, created_at = map(text_of, rows[0])
        return Oldest(id=task_id, type=kind, created_at=created_at)
