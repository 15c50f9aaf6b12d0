"""What can be said of a store as a whole: is the file sound, what waits, what runs where."""

from __future__ import annotations

from taskrunner.storage.engine import Engine, Statement


class Health:
    """Questions about a store; they change nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def troubles(self) -> list[str]:
        """What SQLite's own check finds wrong with the file; it reads all of it."""
        lines = [str(row[0]) for row in await self._engine.read(Statement("quick_check", {}))]
        return [] if lines == ["ok"] else lines

    async def schema_version(self) -> int:
        """The number of the last migration."""
        return int(str((await self._engine.read(Statement("schema_version", {})))[0][0]))

    async def waiting(self) -> dict[str, int]:
        """How many pending tasks wait for what, such as `worker:TYPE`."""
        return await self._counts("waiting_counts")

    async def due(self) -> dict[str, int]:
        """How many tasks could be claimed now, by queue."""
        return await self._counts("due_counts")

    async def running(self) -> dict[str, int]:
        """How many tasks run, by the id of their supervisor."""
        return await self._counts("running_counts")

    async def _counts(self, query: str) -> dict[str, int]:
        return {str(row[0]): int(str(row[1])) for row in await self._engine.read(Statement(query, {}))}
