"""The keys whose values are hidden from people: kept for the commands, which do not have the program itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskrunner.storage.engine import Statement, Unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskrunner.storage.engine import Engine


class Redactions:
    """Keys that programs of this store have named. They stay: what was a secret once is not shown later."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def all(self) -> list[str]:
        """Every key."""
        return [str(key) for (key,) in await self._engine.read(Statement("redactions", {}))]

    async def add(self, keys: Iterable[str]) -> None:
        """Keep these keys, too. Without new ones nothing is written."""
        if not keys:
            return
        known = set(await self.all())
        if new := [Statement("redact", {"key": key}) for key in dict.fromkeys(keys) if key not in known]:
            await self._engine.write(Unit(tuple(new)))
