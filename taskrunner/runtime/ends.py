"""How an attempt's end is written, however long that takes, and what is told of it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from taskrunner.core.errors import LeaseLost, StoreBusy, StoreError, error_text, error_type_of
from taskrunner.core.model import Fence
from taskrunner.runtime.watched import unbegun
from taskrunner.storage.engine import Refused, Rejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import Task
    from taskrunner.runtime.workshop import Workshop
    from taskrunner.storage.claims import Recovered
    from taskrunner.storage.engine import Outcome, Row, Statement

WRITE_AGAIN = 0.5
"""Seconds after which an end that met a locked or full store is written again."""


class Ends:
    """Writes the ends of one supervisor's attempts."""

    def __init__(self, workshop: Workshop, owner: str) -> None:
        self._tasks = workshop.store.tasks
        self._clock = workshop.clock
        self._events = workshop.events
        self._owner = owner
        self._engine = workshop.store.engine
        self.is_abandoned = False
        """Whether everything was handed back while the event loop did not turn."""

    async def write(
        self,
        fence: Fence,
        statement: Statement,
        before: list[Statement] | None = None,
        failed: StoreError | None = None,
    ) -> str | None:
        """Write an end, however long the store is locked or full; None when the task is another's.

        `failed`: how a first try went.

        Raises:
            StoreError: the store cannot be used any more.
        """
        while True:
            try:
                if failed is not None:
                    raise failed
                return await self._tasks.end(fence, statement, before or ())
            except (LeaseLost, Refused):
                return None
            except StoreBusy as error:
                self._events.trouble(error, self._clock.monotonic())
                await anyio.sleep(WRITE_AGAIN)
            except Rejected as error:
                if statement.name == "fail":
                    raise
                statement, before = self._failure(fence, error_type_of(error), error_text(error)), None
            failed = None

    async def write_unbegun(self, task: Task, definition: TaskDefinition[Any, Any], error: Exception) -> None:
        """Write the end of an attempt that could not even begin."""
        statement = unbegun(self._tasks, task, definition, error)
        self.tell(task, statement, await self.write(task.fence, statement))

    async def write_unreadable(self, row: Row) -> None:
        """Fail a claimed row that cannot be read, so that it stands in nobody's way."""
        fence = Fence(task_id=str(row[0]), owner=self._owner, attempt=int(str(row[18])), history_id=str(row[25]))
        message = "its row is unreadable: something that is no taskrunner wrote it"
        await self.write(fence, self._failure(fence, "taskrunner.StoreError", message))

    async def write_lost(self, lost: Sequence[Fence], how: str) -> list[Recovered]:
        """Charge tasks of this owner whose process has died, however long the store is locked or full.

        Raises:
            StoreError: the store cannot be used any more.
        """
        while True:
            try:
                return await self._tasks.lose(self._owner, lost, how)
            except StoreBusy as error:
                self._events.trouble(error, self._clock.monotonic())
                await anyio.sleep(WRITE_AGAIN)

    def abandon(self, left: list[Task]) -> None:
        """Hand the last tasks back past the event loop, and tell when that is written; from any thread."""

        def tell() -> None:
            self.is_abandoned = True
            self._events.warn("supervisor.abandoned", supervisor_id=self._owner)

        def done(task: Task, _outcome: Outcome) -> None:
            left.remove(task)
            if not left:
                tell()

        if not left:
            tell()
        for task in tuple(left):
            unit = self._tasks.ending(task.fence, self._tasks.release(task.fence))
            with suppress(StoreError):  # it is closed: the loop turns again
                self._engine.submit(unit, partial(done, task))

    def tell(self, task: Task, statement: Statement, status: str | None) -> None:
        """Tell of an end that is written; `status` is what it made of the task, None when the task is another's."""
        retried = "task.retried" if statement.name == "fail" else "task.released"
        name = {None: "task.fenced", "pending": retried}.get(status, f"task.{status}")
        fields: dict[str, object] = {"task_id": task.id, "task_type": task.type, "attempt": task.attempt}
        if statement.name == "fail":
            fields["error"] = statement.params["error_message"]
        self._events.emit(name, **fields)

    def tell_recovered(self, orphan: Recovered) -> None:
        """Tell of a task that was found without a living owner."""
        name = {"pending": "task.recovered", "failed": "task.quarantined"}.get(orphan.status, "task.cancelled")
        fields = {"task_id": orphan.task_id, "task_type": orphan.type, "losses": orphan.losses}
        self._events.emit(name, **fields)

    def _failure(self, fence: Fence, error_type: str, message: str) -> Statement:
        return self._tasks.fail(fence, error_type=error_type, error_message=message, retry_in=None)
