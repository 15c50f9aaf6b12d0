"""The same verb for many tasks: in small batches, so that nobody else waits for the write lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from taskrunner.core.durations import stamp
from taskrunner.core.states import RETRIABLE
from taskrunner.storage.changes import CANCEL, WORK
from taskrunner.storage.engine import Rejected, Statement, Unit
from taskrunner.storage.tasks import KeyTaken, task_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from taskrunner.core.clock import Clock
    from taskrunner.storage.engine import Engine, Value
    from taskrunner.storage.listing import Filter, Listing, Place

BATCH: Final = 100
"""Tasks of one commit: some milliseconds of the write lock."""

_PAGE: Final = 1_000
"""Ids of one read."""

Answer: TypeAlias = Literal[
    "cancelled", "cancelling", "retried", "too_late", "not_retriable", "key_taken", "not_found", "unreadable"
]
"""What became of a task; `unreadable`: the row is so odd that the store refuses to write it again."""


_ANSWERS: Final[dict[str, Answer]] = {"cancelled": "cancelled", "running": "cancelling", "pending": "retried"}
"""By the status that the task has now."""


@dataclass(frozen=True, slots=True)
class Done:
    """One task that a verb was tried on; `why` is its status where a cancel was too late, or what holds instead."""

    id: str
    answer: Answer
    why: str = ""


class Bulk:
    """Cancels and retries tasks by their ids, and finds those that a filter means."""

    def __init__(self, engine: Engine, clock: Clock, listing: Listing) -> None:
        self._engine = engine
        self._clock = clock
        self._listing = listing

    async def choose(self, chosen: Filter) -> AsyncIterator[list[str]]:
        """The ids of the tasks that a filter with a status means, the newest first, in batches."""
        after: Place | None = None
        while page := await self._listing.ids(chosen, limit=_PAGE, after=after):
            ids = [task_id for task_id, _place, _status in page]
            for start in range(0, len(ids), BATCH):
                yield ids[start : start + BATCH]
            after = page[-1][1]

    async def cancel(self, task_ids: Sequence[str], reason: str = "") -> list[Done]:
        """Cancel tasks in one commit, as `TaskStore.cancel` does each; durable when it returns."""
        return await self._each("cancel", task_ids, {"reason": reason or None})

    async def retry(self, task_ids: Sequence[str]) -> list[Done]:
        """Retry tasks in one commit, as `TaskStore.retry` does each; durable when it returns."""
        return await self._each("retry", task_ids, {})

    async def _each(self, name: str, task_ids: Sequence[str], params: dict[str, Value]) -> list[Done]:
        given = {**params, "now": stamp(self._clock.now())}
        topics = (CANCEL if name == "cancel" else WORK, *map(task_topic, task_ids))
        statements = tuple([Statement(name, {**given, "task": task_id}) for task_id in task_ids])
        try:
            results = await self._engine.write(Unit(statements, topics=topics))
        except Rejected as rejected:  # by one odd row: the others are not to suffer for it
            if len(task_ids) > 1:
                return [done for task_id in task_ids for done in await self._each(name, [task_id], params)]
            await self._listing.place_of(task_ids[0])  # raises if it is a text that no store can hold
            return [Done(task_ids[0], "unreadable", rejected.reason)]
        return [
            Done(task_id, _ANSWERS[str(rows[0][0])]) if rows else await self._refused(name, task_id)
            for task_id, rows in zip(task_ids, results, strict=True)
        ]

    async def _refused(self, name: str, task_id: str) -> Done:
        rows = await self._engine.read(Statement("unretried", {"task": task_id}))
        if not rows:
            return Done(task_id, "not_found")
        status, kind, key = rows[0]
        if name == "cancel":
            return Done(task_id, "too_late", str(status))
        if status in RETRIABLE and key is not None:
            return Done(task_id, "key_taken", str(KeyTaken(str(kind), str(key))))
        is_so = "has completed" if status == "completed" else f"is {status!s}"
        return Done(task_id, "not_retriable", f"it {is_so}; only failed and cancelled tasks are retried")
