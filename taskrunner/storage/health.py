"""What can be said of a store as a whole: is the file sound, are its rules kept, what waits, what runs where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import apsw

from taskrunner.core.durations import moment, stamp
from taskrunner.storage.engine import Engine, Statement, Value, load_migrations, load_queries

if TYPE_CHECKING:
    from pathlib import Path

    from taskrunner.storage.engine import Rows

MISLED: Final = 10
"""So many times more or fewer rows than the statistics say lead SQLite astray."""

MANY: Final = 1_000
"""Rows of a table below which it does not matter what the statistics say."""

_INVARIANT = re.compile(r"i\d+_")
_OF_AN_INDEX = re.compile(r".* (?:in|from) index (\w+)")
_OF_A_RULE = re.compile(
    r"(?:CHECK constraint failed|NULL value|NUMERIC value|TEXT value|non-.* value) in (\w+)(?:\.\w+)?"
)


def sqlite_version() -> str:
    """The version of the SQLite library that this process has loaded."""
    return str(apsw.sqlite_lib_version())


@dataclass(frozen=True, slots=True)
class Breach:
    """One row for which an invariant does not hold."""

    invariant: str
    """Its number and what it says, such as `I4 ended once`."""
    id: str
    says: str


class Health:
    """Questions about a store; they change nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def damage(self, path: Path) -> list[str]:
        """What SQLite's own checks find wrong with the file, a sentence for each trouble; they read all of it."""
        lines = [str(row[0]) for row in await self._engine.read(Statement("integrity_check", {}))]
        loose = [str(row[0]) for row in await self._engine.read(Statement("foreign_key_check", {}))]
        return [*_damage(path, lines), *_loose(path, loose)]

    async def structure(self, path: Path) -> list[str]:
        """Which indexes and triggers are missing or changed, or are none of ours, a sentence for each."""
        found = _objects(await self._engine.read(Statement("schema_objects", {})))
        return list(_differences(path, found))

    async def statistics(self, path: Path) -> list[str]:
        """Which of the statistics that somebody's ANALYZE has left lead SQLite astray, a sentence for each."""
        if (await self._engine.read(Statement("has_statistics", {})))[0][0] == 0:
            return []
        known = await self._counts("statistics")
        sizes = await self._counts("table_sizes")
        return [
            f"{path}: its statistics say that {table} has {known[table]:,} rows, and it has {rows:,}: "
            f"take new ones with `sqlite3 {path} ANALYZE`, or SQLite may choose slow ways"
            for table, rows in sizes.items()
            if table in known and max(rows, known[table]) > MANY and not rows / MISLED <= known[table] <= rows * MISLED
        ]

    async def invariants(self) -> list[Breach]:
        """Every row for which an invariant does not hold; it looks at all of them."""
        return [
            Breach(title, _text(row[0]), _text(row[1]))
            for name, title in invariants().items()
            for row in await self._engine.read(Statement(name, {}))
        ]

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

    async def suspects(self) -> int:
        """How many tasks may be what kills their process, and wait to be tried one at a time."""
        return int(str((await self._engine.read(Statement("suspect_count", {})))[0][0]))

    async def running(self) -> dict[str, int]:
        """How many tasks run, by the id of their supervisor."""
        return await self._counts("running_counts")

    async def task_ids(self, **page: Value) -> list[tuple[str, str]]:
        """The ids and statuses of a page of tasks, also of those whose text is no UTF-8."""
        rows = await self._engine.read(Statement("task_ids", page))
        return [(_text(row[0]), _text(row[1])) for row in rows]

    async def _counts(self, query: str) -> dict[str, int]:
        return {str(row[0]): int(str(row[1])) for row in await self._engine.read(Statement(query, {}))}


def invariants() -> dict[str, str]:
    """The queries of the invariants by name, with their titles: `i4_ended_once` is "I4 ended once"."""
    names = sorted((name for name in load_queries("sqlite") if _INVARIANT.match(name)), key=_number)
    return {name: name[0].upper() + name[1:].replace("_", " ") for name in names}


def _number(name: str) -> int:
    return int(name[1 : name.index("_")])


def _damage(path: Path, told: Sequence[str]) -> Iterator[str]:
    lines = dict.fromkeys(line for text in told for line in text.splitlines() if not line.startswith("*** in "))
    indexes, tables, rest = set(), set(), []
    for line in lines:
        if found := _OF_AN_INDEX.fullmatch(line):
            indexes.add(found[1])
        elif found := _OF_A_RULE.fullmatch(line):
            tables.add(found[1])
        elif line != "ok":
            rest.append(line)
    for name in sorted(indexes):
        yield (
            f"{path}: its index {name} does not agree with its table: "
            f"stop everybody and make it anew with `sqlite3 {path} 'REINDEX {name}'`"
        )
    for name in sorted(tables):
        yield (
            f"{path}: rows of {name} break the rules of their table: something has written past them; "
            "`taskrunner doctor --invariants` names the rows"
        )
    for line in rest:
        yield (
            f"{path} is damaged: {line}; restore it from a backup, "
            f"or save what can be read with `sqlite3 {path} .recover`"
        )


def _loose(path: Path, tables: Sequence[str]) -> Iterator[str]:
    for table in dict.fromkeys(tables):
        yield (
            f"{path}: {tables.count(table):,} rows of {table} name something that is not there: "
            "something has written past the file's rules; `taskrunner doctor --invariants` names them"
        )


def _objects(rows: Rows) -> dict[tuple[str, str], tuple[str, str]]:
    """By kind and name: the table, and the statement that makes it."""
    return {(_text(kind), _text(name)): (_text(table), _text(text or "")) for kind, name, table, text in rows}


def _expected() -> dict[tuple[str, str], tuple[str, str]]:
    with_schema = apsw.Connection(":memory:")
    try:
        for _number, script in load_migrations("sqlite"):
            with_schema.execute(script).fetchall()
        return _objects(with_schema.execute(load_queries("sqlite")["schema_objects"].sql).fetchall())
    finally:
        with_schema.close()


def _differences(path: Path, found: dict[tuple[str, str], tuple[str, str]]) -> Iterator[str]:
    expected = _expected()
    ours = {name for kind, name in expected if kind == "table"}
    for (kind, name), (_table, text) in expected.items():
        if (kind, name) not in found:
            made = " ".join(text.split())
            yield f"{path}: its {kind} {name} is missing: stop everybody and make it again with {made}"
        elif found[kind, name][1] != text:
            yield f"{path}: its {kind} {name} is not as this version makes it: restore the file from a backup"
    for (kind, name), (table, _text) in found.items():
        if (kind, name) in expected or table not in ours:
            continue
        if kind == "index":
            yield (
                f"{path}: the index {name} on {table} is none of taskrunner's, and costs every write: "
                f"drop it, unless you need it, with `sqlite3 {path} 'DROP INDEX {name}'`"
            )
        elif kind == "trigger":
            yield (
                f"{path}: the trigger {name} on {table} is none of taskrunner's, and may refuse or change what is "
                f"written: drop it, unless you need it, with `sqlite3 {path} 'DROP TRIGGER {name}'`"
            )


def _text(value: Value) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
