"""What can be said of a store as a whole: is the file sound, what waits, what runs where."""

from __future__ import annotations

from datetime import datetime

import apsw

from taskrunner.core.durations import moment, stamp
from taskrunner.storage.engine import Engine, Statement, Value


def sqlite_version() -> str:
    """The version of the SQLite library that this process has loaded."""
    return str(apsw.sqlite_lib_version())


class Health:
    """Questions about a store; they change nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def troubles(self) -> list[str]:
        """What SQLite's own check finds wrong with the file; it reads all of it."""
        lines = [str(row[0]) for row in await self._engine.read(Statement("quick_check", {}))]
        return [] if lines == ["ok"] else list(dict.fromkeys(lines))

    async def schema_version(self) -> int:
        """The number of the last migration."""
        return int(str((await self._engine.read(Statement("schema_version", {})))[0][0]))

    async def waiting(self) -> dict[str, int]:
        """How many pending tasks wait for what, such as `worker:TYPE`."""
        return await self._counts("waiting_counts")

    async def due(self) -> dict[str, int]:
        """How many tasks could be claimed now, by queue."""
        return await self._counts("due_counts")

    async def due_since(self, now: datetime) -> dict[str, datetime]:
        """By queue: since when the task that has been due for longest waits, of those that are first in their line."""
        rows = await self._engine.read(Statement("due_since", {"now": stamp(now)}))
        return {str(queue): moment(str(since)) for queue, since in rows}

    async def running(self) -> dict[str, int]:
        """How many tasks run, by the id of their supervisor."""
        return await self._counts("running_counts")

    async def task_ids(self, **page: Value) -> list[tuple[str, str]]:
        """The ids and statuses of a page of tasks, also of those whose text is no UTF-8."""
        rows = await self._engine.read(Statement("task_ids", page))
        return [(_text(row[0]), _text(row[1])) for row in rows]

    async def _counts(self, query: str) -> dict[str, int]:
        return {str(row[0]): int(str(row[1])) for row in await self._engine.read(Statement(query, {}))}


def _text(value: Value) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
