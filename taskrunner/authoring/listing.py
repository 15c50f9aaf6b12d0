"""The tasks of a store, one by one and page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskrunner.core.errors import InvalidInput
from taskrunner.core.model import Task
from taskrunner.core.places import shown
from taskrunner.core.states import STATUSES, Status
from taskrunner.storage.listing import Filter

if TYPE_CHECKING:
    from taskrunner.authoring.handle import Client

MAX_LIST = 1_000
"""Rows of one page at most."""


class TaskList:
    """Looks at tasks; it changes none."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, task_id: str, /) -> Task:
        """One task.

        Raises:
            TaskNotFound: no task has this id.
            NotOpen: the runner is not open.
        """
        return await self._client.store.tasks.get(task_id)

    async def list(
        self,
        *,
        status: Status | None = None,
        type: str | None = None,  # noqa: A002 - the column's name
        queue: str | None = None,
        session_id: str | None = None,
        parent_task_id: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Task]:
        """The newest tasks first, at most `limit` (1 to 1,000); `after` is the last id of the page before.

        A row that something else than taskrunner wrote, and nobody can read, is left out; `taskrunner list` shows it.

        Raises:
            InvalidInput: an unknown status, or a limit out of its bounds.
            TaskNotFound: no task has the id `after`.
        """
        if status is not None and (not isinstance(status, str) or status not in STATUSES):
            message = f"status={shown(status)}: one of {', '.join(STATUSES)} is wanted"
            raise InvalidInput(message, path="status")
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIST:
            message = f"limit={shown(limit)}: a number from 1 to {MAX_LIST:,} is wanted"
            raise InvalidInput(message, path="limit")
        listing = self._client.store.listing
        place = None if after is None else await listing.place_of(after)
        chosen = Filter(status=status, type=type, queue=queue, session_id=session_id, parent_task_id=parent_task_id)
        return await listing.tasks(chosen, limit=limit, after=place)
