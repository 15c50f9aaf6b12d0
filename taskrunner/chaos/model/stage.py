"""Where the model's calls are made: a real store on a real file, without threads and without an event loop.

The verbs are those of the product, and so are their units, the writer, its connection and the SQL. Who calls a verb is
run up to its unit, which is then committed at once: alone, or in one transaction with those of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import apsw

from taskrunner.core.clock import Clock
from taskrunner.core.errors import LeaseLost, StoreError
from taskrunner.core.settings import resolve
from taskrunner.storage import guard
from taskrunner.storage.engine import Outcome, Rows, Statement, Unit
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.sqlite_connection import close
from taskrunner.storage.store import Store

Verb: TypeAlias = "Coroutine[Unit, Outcome | None, object]"
Answer: TypeAlias = "tuple[object, BaseException | None]"


class Stage(Protocol):
    """An engine's place to play at."""

    store: Store
    topics: set[str]
    """What the last calls have announced."""

    def play(self, calls: Sequence[Callable[[Store], Coroutine[Any, Any, object]]]) -> list[Answer]:
        """Make the calls, and return what each has answered or raised. The units of several are one transaction."""
        ...

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Look at the store."""
        ...

    def reopen(self) -> None:
        """Close the store, and open it again."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...


@dataclass
class _Ask:
    """A unit that wants to be committed: whoever runs the coroutine hands it over, and sends the outcome in."""

    unit: Unit

    def __await__(self) -> Generator[Unit, Outcome, list[Rows]]:
        outcome = yield self.unit
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome


class _Inline(SQLiteEngine):
    """The engine of one thread: it reads at once, and yields what it is to write."""

    def open_here(self) -> None:
        """Open the file."""
        self._open()
        self._looking = self._reader()

    def close_here(self) -> None:
        """Close the file."""
        close(self._looking)
        self._let_go()

    async def read(self, statement: Statement) -> Rows:
        """Run one SELECT."""
        query = self.queries[statement.name]
        return self._looking.execute(query.sql, query.bind(statement.params)).fetchall()

    def write(self, unit: Unit) -> Coroutine[Any, Any, list[Rows]]:
        """Ask for a commit."""
        return self._ask(unit)

    @staticmethod
    async def _ask(unit: Unit) -> list[Rows]:
        return await _Ask(unit)

    def beat(self, _interval: float, make: Callable[[], Unit], done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Beat once, now."""
        done(self.commit([make()])[0])
        return lambda: None

    def commit(self, units: list[Unit]) -> list[Outcome]:
        """Commit these units in one transaction."""
        return self._commit(units, list)

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT of one's own."""
        return self._looking.execute(sql).fetchall()


async def _made(path: Path, clock: Clock) -> _Inline:
    """An engine can be made on an event loop only, though this one never needs it."""
    return _Inline(path, clock=clock, busy_timeout=1.0, durability="normal", writing=True, vfs=None)


class SQLiteStage:
    """A SQLite file."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._settings = resolve(code={"db": folder / "agent.db", "durability": "normal"})
        self._clock = clock
        self.topics: set[str] = set()
        self._open()

    def _open(self) -> None:
        path = guard.resolve(self._settings.db)
        guard.check_library(apsw.sqlite_lib_version())
        self._engine = asyncio.run(_made(path, self._clock))
        self._engine.open_here()
        self.store = Store(self._engine, self._clock, self._settings)

    def play(self, calls: Sequence[Callable[[Store], Coroutine[Any, Any, object]]]) -> list[Answer]:
        """Make the calls; each is run up to its first unit, those are committed, and each goes on alone."""
        self.topics.clear()
        coroutines: list[Verb] = [call(self.store) for call in calls]
        answers: list[Answer | None] = [None] * len(calls)
        units: list[tuple[int, Unit]] = []
        for place, coroutine in enumerate(coroutines):
            asked = self._send(coroutine, None, answers, place)
            if asked is not None:
                units.append((place, asked))
        outcomes = self._commit([unit for _place, unit in units]) if units else []
        for (place, _unit), first in zip(units, outcomes, strict=True):
            asked = self._send(coroutines[place], first, answers, place)
            while asked is not None:
                asked = self._send(coroutines[place], self._commit([asked])[0], answers, place)
        return [answer for answer in answers if answer is not None]

    def _commit(self, units: list[Unit]) -> list[Outcome]:
        outcomes = self._engine.commit(list(units))
        for unit, outcome in zip(units, outcomes, strict=True):
            if not isinstance(outcome, StoreError):
                self.topics.update(unit.topics)
        return outcomes

    @staticmethod
    def _send(coroutine: Verb, outcome: Outcome | None, answers: list[Answer | None], place: int) -> Unit | None:
        """Let a call go on; the next unit that it asks for, or None when it has answered."""
        try:
            return coroutine.send(outcome)
        except StopIteration as done:
            answers[place] = (done.value, None)
        except (Exception, LeaseLost) as error:  # noqa: BLE001 - what it raises is its answer
            answers[place] = (None, error)
        return None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Look at the store."""
        return self._engine.look(sql)

    def reopen(self) -> None:
        """Close the store, and open it again."""
        self._engine.close_here()
        self._open()

    def close(self) -> None:
        """Close the store."""
        self._engine.close_here()


MAKERS: Final = {"sqlite": SQLiteStage}
"""The engines that the model is played on, by name."""
