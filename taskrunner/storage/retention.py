"""The verbs of retention: which finished tasks are old, and how they are removed, a small commit at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskrunner.core.durations import stamp
from taskrunner.storage.engine import Statement, Unit, json_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskrunner.core.states import Status
    from taskrunner.storage.engine import Engine, Value

PAGE: Final = 500
"""Tasks of one look."""

WHOLE: Final = 1_000
"""The most work for which a task is removed in one piece; steps and log of a larger one are removed before it."""

PART: Final = 16 * 1024
"""Bytes of a step's value that are as much work as one more row."""

START: Final = ("", 0)
"""Before every task."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished task, as retention sees it. `work` is what it costs to remove it, in rows; 0: it has to stay."""

    seq: int
    id: str
    created_at: str
    work: int

    @property
    def place(self) -> tuple[str, int]:
        """Where the next page begins behind it."""
        return self.created_at, self.seq


class Retention:
    """Removes finished tasks with their steps, attempts, logs and retries. Messages belong to sessions, and stay."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def finished(self, status: Status, before: datetime, after: tuple[str, int] = START) -> list[Finished]:
        """A page of the finished tasks of a status that were born before a moment, behind a place; empty at the end."""
        params: dict[str, Value] = {
            "status": status,
            "before": stamp(before),
            "created_at": after[0],
            "seq": after[1],
            "limit": PAGE,
            "most": WHOLE,
        }
        rows = await self._engine.read(Statement("finished_before", params))
        return [Finished(*row) for row in rows]  # type: ignore[arg-type]

    async def remove(self, tasks: Sequence[str], before: datetime) -> int:
        """Remove tasks by their ids, those that still may be, and return how many these were."""
        params = {"ids": json_of(tasks), "before": stamp(before)}
        return len((await self._engine.write(Unit((Statement("remove_tasks", params),))))[0])

    async def begin(self, task: str, before: datetime) -> None:
        """Note that a large task is going to be removed, if it still may be: from now on it is not retried."""
        await self._engine.write(Unit((Statement("begin_removal", {"id": task, "before": stamp(before)}),)))

    async def begun(self) -> list[tuple[str, str]]:
        """The tasks whose removal has begun: their ids, and the histories of their steps."""
        rows = await self._engine.read(Statement("removals", {"limit": PAGE}))
        return [(str(task), str(history)) for task, history in rows]

    async def remove_steps(self, history: str, work: int) -> int:
        """Remove steps of a task whose removal has begun, for about so much work; how many there were."""
        rows = await self._engine.read(Statement("steps_to_remove", {"history_id": history, "limit": work}))
        count = 0
        for (size,) in rows:
            count += 1
            work -= 1 + int(str(size)) // PART
            if work <= 0:
                break
        if count == 0:
            return 0
        params: dict[str, Value] = {"history_id": history, "limit": count}
        return len((await self._engine.write(Unit((Statement("remove_steps", params),))))[0])

    async def remove_log_lines(self, task: str, most: int) -> int:
        """Remove the first lines of the log of a task whose removal has begun; how many there were."""
        params: dict[str, Value] = {"task": task, "limit": most}
        return len((await self._engine.write(Unit((Statement("remove_log_lines", params),))))[0])

    async def end(self, task: str) -> int:
        """Remove a task whose removal has begun; how many there were."""
        return len((await self._engine.write(Unit((Statement("end_removal", {"id": task}),))))[0])
