"""The storage seam: a write is data.

A `Unit` is a list of `Statement`s, all or nothing. The verbs of this floor (`tasks`, `journal`, `messages`, `owners`)
build units; an engine only commits them. An expectation (`expect_rows`) that is not met undoes its unit, and only that
unit, and the verb turns the refusal into an error of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from taskrunner.core.errors import StoreError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from taskrunner.storage.bells import Bells
    from taskrunner.storage.changes import News

if TYPE_CHECKING:
    Value: TypeAlias = int | float | str | bytes | None
else:
    Value = Any  # what a message to another process is read as: msgspec tells texts and bytes apart by themselves only
Row: TypeAlias = tuple[Value, ...]
Rows: TypeAlias = list[Row]


class Statement(msgspec.Struct, frozen=True, gc=False):
    """One named query with its parameters. Nothing in it can hold it, so no collector has to look at it."""

    name: str
    params: Mapping[str, Value]
    expect_rows: int | None = None
    """Rows that it must return, or change if it returns none by nature; None: any number."""


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Statements that commit together or not at all. A guard is a SELECT with `expect_rows`, placed first."""

    statements: tuple[Statement, ...]
    topics: tuple[str, ...] = ()
    """What becomes news with the commit: those of `changes`, `task:ID`. Waiters on these topics are woken."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """A SELECT in the user's own words (made by `questions.question`), with its parameters by name."""

    sql: str
    params: Mapping[str, Value]
    seconds: float
    """How long it may take."""


class Answer(NamedTuple):
    """The names of the columns, no two the same, and the rows."""

    columns: tuple[str, ...]
    rows: Rows


class Refused(StoreError):
    """An expectation was not met: this unit, and only it, was undone."""

    def __init__(self, index: int, name: str, expected: int, got: int) -> None:
        super().__init__(f"statement {index} ({name}) expected {expected} rows and got {got}")
        self.index = index
        self.expected = expected
        self.got = got
        self.name = name


class Rejected(StoreError):
    """The database itself said no, by a constraint or a trigger: the unit was undone."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the store refused {name}: {reason}")
        self.name = name
        self.reason = reason


class Unreadable(Rejected):
    """A row that something else wrote cannot be read: the unit was undone."""


Outcome: TypeAlias = "list[Rows] | StoreError"
"""One list of rows per statement, or why nothing was written."""


class Engine(Protocol):
    """What a database has to offer. Coroutines belong to the event loop that opened it; `submit` is for any thread."""

    dialect: Literal["sqlite", "postgres"]
    path: Path
    """The store's file."""
    bells: Bells
    """By which supervisors of other processes are woken."""

    async def read(self, statement: Statement) -> Rows:
        """Run one SELECT outside the writer."""
        ...

    async def ask(self, question: Question) -> Answer:
        """Run one SELECT of the user's, which cannot write. Raises `InvalidInput`, or a `StoreError`."""
        ...

    async def write(self, unit: Unit) -> list[Rows]:
        """Commit a unit; it is durable when this returns. Raises `Refused`, `Rejected`, or a `StoreError`."""
        ...

    def write_soon(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit and call `done` on the event loop after the commit. Raises `StoreError` if it is closed."""
        ...

    def submit(self, unit: Unit, done: Callable[[Outcome], None]) -> None:
        """Commit a unit and call `done` from the writer's thread after the commit."""
        ...

    def beat(self, interval: float, make: Callable[[], Unit], done: Callable[[Outcome], None]) -> Callable[[], None]:
        """Commit what `make` returns every `interval` seconds, from the writer's thread, until the answer is called.

        Each supervisor of a process has a heart of its own. A beat that is under way is finished first.
        """
        ...

    def listen(self, topics: Sequence[str]) -> AbstractContextManager[News]:
        """Hear of commits that may concern one of the topics, from now on."""
        ...

    async def close(self) -> None:
        """Finish what was submitted, then let go of the store."""
        ...


@dataclass(frozen=True, slots=True)
class Query:
    """One named query of a `.sql` file; its parameters are bound by position, at a fifth of the cost."""

    name: str
    sql: str
    names: tuple[str, ...]
    returns_rows: bool
    bind: Callable[[Mapping[str, Value]], tuple[Value, ...]]
    """The parameters in the order in which the query uses them."""


def json_of(value: object) -> str:
    """A parameter that a query takes apart with `json_each`."""
    return msgspec.json.encode(value).decode()


_MARK = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_PARAMETER = re.compile(r":([a-z_]+)")
_PART = re.compile(r"\{(\w+)\}")


def load_queries(dialect: str) -> dict[str, Query]:
    """Read every named query of a dialect (its numbered migrations apart).

    A file says `-- name: NAME` before each query, and `-- part: NAME` before a text that queries use as `{NAME}`.

    Raises:
        ValueError: two queries or two parts have one name.
    """
    return dict(_loaded(dialect))


@cache
def _loaded(dialect: str) -> dict[str, Query]:
    texts: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for file in _files(dialect):
        if file.name[0].isdigit():
            continue
        _head, *pieces = _MARK.split(file.read_text(encoding="utf-8"))
        for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
            if name in texts[kind]:
                message = f"two queries or parts are called {name!r}"
                raise ValueError(message)
            texts[kind][name] = " ".join(_COMMENT.sub("", body).split())
    parts = texts["part"]
    return {name: _query(name, _PART.sub(lambda match: parts[match[1]], body)) for name, body in texts["name"].items()}


def load_migrations(dialect: str) -> list[tuple[int, str]]:
    """The numbered migrations of a dialect, in order: `0001_initial.sql` is number 1."""
    return [
        (int(file.name[:4]), file.read_text(encoding="utf-8")) for file in _files(dialect) if file.name[0].isdigit()
    ]


def _files(dialect: str) -> list[Traversable]:
    folder = resources.files("taskrunner.storage").joinpath("sql", dialect)
    return sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)


def _query(name: str, text: str) -> Query:
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    sql = _PARAMETER.sub(lambda match: f"?{names.index(match[1]) + 1}", text)
    writes = re.search(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b", sql)
    return Query(name=name, sql=sql, names=names, returns_rows=not writes or " RETURNING " in sql, bind=_binder(names))


def _binder(names: tuple[str, ...]) -> Callable[[Mapping[str, Value]], tuple[Value, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple(params[name] for name in names)
