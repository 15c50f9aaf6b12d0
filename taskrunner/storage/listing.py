"""Looking at many tasks: pages of a filter, the newest first, in which an odd row harms no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreError, TaskNotFound
from taskrunner.core.places import shown
from taskrunner.storage.engine import Statement, Unreadable
from taskrunner.storage.rows import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskrunner.core.model import Task
    from taskrunner.core.states import Status
    from taskrunner.storage.engine import Engine, Row, Rows, Value

_ID, _SEQ, _STATUS, _CREATED_AT = 0, 1, 7, -2
"""Columns of a row of a task, for rows of which nothing more can be read."""

_LONGEST: Final = 200
"""Characters of a raw value that are read: what cannot be read whole need not be shown whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which tasks are meant; None leaves a field open."""

    status: Status | None = None
    type: str | None = None
    queue: str | None = None
    session_id: str | None = None
    parent_task_id: str | None = None
    since: datetime | None = None
    """Created then or later."""
    until: datetime | None = None
    """Created before."""

    @property
    def params(self) -> dict[str, Value]:
        """The parameters of the part `chosen`, and the status."""
        return {
            "status": self.status,
            "type": self.type,
            "queue": self.queue,
            "session_id": self.session_id,
            "parent_task_id": self.parent_task_id,
            "since": None if self.since is None else stamp(self.since),
            "until": None if self.until is None else stamp(self.until),
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task stands: a page begins after that of the last row of the page before, also if that one is gone."""

    seq: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a page: the task, or why it cannot be read."""

    id: str
    place: Place
    status: str
    task: Task | None
    trouble: str = ""


class Listing:
    """Pages of tasks, and what is left of a row that cannot be read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def place_of(self, task_id: str) -> Place:
        """Where a task stands.

        Raises:
            TaskNotFound: no task has this id.
        """
        rows = await self._engine.read(Statement("task_place", {"id": task_id}))
        if not rows:
            message = f"no task has the id {shown(task_id)}"
            raise TaskNotFound(message)
        return Place(int(str(rows[0][0])), text_of(rows[0][1]))

    async def rows(self, chosen: Filter, *, limit: int, after: Place | None = None) -> Rows:
        """The newest of the tasks, as raw rows, by the index that fits.

        Raises:
            Unreadable: one of them holds text that is not UTF-8.
        """
        params = _page(chosen, limit, after)
        if chosen.status is not None:
            return await self._engine.read(Statement("tasks_by_status", params))
        if chosen.session_id is not None:
            return await self._engine.read(Statement("tasks_by_session", params))
        if chosen.parent_task_id is not None:
            return await self._engine.read(Statement("tasks_by_parent", params))
        return await self._engine.read(Statement("tasks_newest", params))

    async def page(self, chosen: Filter, *, limit: int, after: Place | None = None) -> list[Listed]:
        """A page of `rows`, in which a row that cannot be read stands in its place, marked."""
        try:
            return [_listed(row) for row in await self.rows(chosen, limit=limit, after=after)]
        except Unreadable:  # text that is none spoils the whole answer: the rows are asked for one by one
            return [await self._at(*each) for each in await self.ids(chosen, limit=limit, after=after)]

    async def tasks(self, chosen: Filter, *, limit: int, after: Place | None = None) -> list[Task]:
        """The newest of the tasks that can be read, at most `limit`; the others are left out."""
        found: list[Task] = []
        while (missing := limit - len(found)) > 0:
            page = await self.page(chosen, limit=missing, after=after)
            found += [each.task for each in page if each.task is not None]
            if len(page) < missing:
                break
            after = page[-1].place
        return found

    async def ids(self, chosen: Filter, *, limit: int, after: Place | None = None) -> list[tuple[str, Place, str]]:
        """A page of tasks by id, place and status only, which can always be read."""
        name = "task_ids" if chosen.status is None else "task_ids_by_status"
        rows = await self._engine.read(Statement(name, _page(chosen, limit, after)))
        return [(text_of(row[0]), Place(int(str(row[1])), text_of(row[2])), text_of(row[3])) for row in rows]

    async def raw(self, task_id: str) -> dict[str, str]:
        """What can be shown of a row that cannot be read: the beginning of each value's text.

        Raises:
            TaskNotFound: no task has this id.
        """
        rows = await self._engine.read(Statement("task_raw", {"id": task_id, "longest": _LONGEST}))
        if not rows:
            await self.place_of(task_id)
        names = ("id", "status", "type", "queue", "input", "output", "error_type", "error_message", "run_at")
        times = ("started_at", "completed_at", "created_at", "updated_at")
        values: Sequence[Value] = rows[0] if rows else ()
        return {name: text_of(value) for name, value in zip((*names, *times), values, strict=True) if value is not None}

    async def standing(self, task_id: str, *, most: int) -> tuple[int, int] | None:
        """Of a pending task its `hold`, and how many tasks of its queue come before it (`most`: that many, or more)."""
        rows = await self._engine.read(Statement("task_standing", {"id": task_id, "most": most}))
        return (int(str(rows[0][0])), int(str(rows[0][1]))) if rows else None

    async def one(self, task_id: str) -> Listed:
        """One task, marked if it cannot be read.

        Raises:
            TaskNotFound: no task has this id.
        """
        return await self._at(task_id, await self.place_of(task_id), "")

    async def _at(self, task_id: str, place: Place, status: str) -> Listed:
        try:
            rows = await self._engine.read(Statement("task_at", {"seq": place.seq}))
        except Unreadable as error:
            return Listed(task_id, place, status, None, unreadable(task_id, error.reason))
        return _listed(rows[0]) if rows else Listed(task_id, place, status, None, unreadable(task_id, "it is gone"))


def text_of(value: Value) -> str:
    """A value's text, whatever it is; bytes that are no UTF-8 as escapes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def unreadable(task_id: str, reason: str) -> str:
    """How a task is spoken of whose row something else than taskrunner wrote."""
    return f"task {task_id}: its row is unreadable ({reason})"


def _page(chosen: Filter, limit: int, after: Place | None) -> dict[str, Value]:
    seq, created_at = (None, None) if after is None else (after.seq, after.created_at)
    return {**chosen.params, "limit": limit, "after": seq, "after_at": created_at}


def _listed(row: Row) -> Listed:
    place = Place(int(str(row[_SEQ])), text_of(row[_CREATED_AT]))
    task_id, status = text_of(row[_ID]), text_of(row[_STATUS])
    try:
        return Listed(task_id, place, status, task_of(row))
    except StoreError as error:
        return Listed(task_id, place, status, None, str(error))
