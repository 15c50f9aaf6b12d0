"""Who watches from inside of a process that a sweep kills: its commits, by SQLite's own hooks, and its steps.

The engine is the one that everybody has. SQLite calls a commit hook when all of a transaction is written but its
COMMIT, and its profile of the statement when that is over, before any of our code has heard of it: there the process
kills itself, with SIGKILL.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final

import apsw

from taskrunner.core.hints import target_of
from taskrunner.core.model import step_label
from taskrunner.storage.engine import load_queries
from taskrunner.testing.orders import Called, Commit, Killed, Repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from taskrunner.authoring.history import Number
    from taskrunner.core.model import Fence, Step
    from taskrunner.storage.engine import Query
    from taskrunner.testing.orders import Line, Log, Order

_CLAIM: Final = "the claim"
_LAST: Final = "forget_writer"
"""A transaction of its own, whose changes SQLite has not counted when it calls the hook."""
_PLACES: Final = {
    "register_supervisor": "a supervisor begins",
    "claim": _CLAIM,
    "claim_suspect": _CLAIM,
    "add_message": "a message",
    "progress": "progress",
    "add_log_lines": "lines of the log",
    "enqueue": "an enqueue",
    "enqueue_keyed": "an enqueue",
    "complete": "the end: completed",
    "fail": "the end of an attempt: failed",
    "release": "the end of an attempt: handed back",
    "cancelled": "the end: cancelled",
    "cancel": "a cancel",
    "bury": "a supervisor ends",
    "forget_writer": "the store is closed",
}
"""Statements as people know them."""


class Commits:
    """Counts the commits of a run in this process, and kills it at one of them."""

    def __init__(self, db: Path, log: Log, order: Order, so_far: int) -> None:
        self._db = os.path.realpath(db)
        self._log = log
        self._kill_at = order.kill_at
        self._moment = order.moment
        self._count = so_far
        self._lock = threading.Lock()
        self._queries = {query.sql: query for query in load_queries("sqlite").values()}

    def watch(self, connection: apsw.Connection) -> None:
        """Watch a connection that was just opened, if it is one to the store."""
        if os.path.realpath(connection.filename) == self._db:
            _Watched(connection, self._queries, self._begun, self._done)

    def _begun(self, what: str) -> int:
        with self._lock:
            self._count += 1
            number = self._count
        self._log.write(Commit(what))
        if self._moment == "before" and number == self._kill_at:
            self._die(what)
        return number

    def _done(self, number: int, what: str) -> None:
        if self._moment == "after" and number == self._kill_at:
            self._die(what)

    def _die(self, what: str) -> None:
        self._log.write(Killed(what))
        os.kill(os.getpid(), signal.SIGKILL)


class _Watched:
    """One connection. `begun` is called at each COMMIT and gives it a number, with which `done` is called after it."""

    def __init__(
        self,
        connection: apsw.Connection,
        queries: dict[str, Query],
        begun: Callable[[str], int],
        done: Callable[[int, str], None],
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._begun = begun
        self._done = done
        self._changes = 0
        self._is_last = False
        self._parts: list[str] = []
        self._number = 0
        connection.exec_trace = self._statement
        connection.set_commit_hook(self._commit)
        connection.set_rollback_hook(self._rolled_back)
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._over)

    def _statement(self, _cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:  # noqa: ANN401 - as SQLite has them
        if not self._connection.in_transaction:
            self._changes = self._connection.total_changes()
            self._parts = []
        if (query := self._queries.get(sql)) is not None:
            self._parts.append(_part(query, bindings))
            self._is_last = query.name == _LAST
        return True

    def _commit(self) -> bool:
        if self._is_last or self._connection.total_changes() != self._changes:
            self._number = self._begun(self._what)
        return False  # it may commit

    def _rolled_back(self) -> None:
        self._number = 0

    def _over(self, _event: object) -> None:
        if self._number and not self._connection.in_transaction:
            number, self._number = self._number, 0
            self._done(number, self._what)

    @property
    def _what(self) -> str:
        known = [part for part in dict.fromkeys(self._parts) if part]
        beside = [part for part in known if part != _CLAIM]  # one that finds nothing joins many a transaction
        return ", ".join(beside or known) or "house-keeping"


def _part(query: Query, bindings: Any) -> str:  # noqa: ANN401 - as SQLite has them
    if query.name != "record_step":
        return _PLACES.get(query.name, "")
    given = dict(zip(query.names, bindings, strict=True))
    return f"step {step_label(str(given['scope']), str(given['name']), int(given['occurrence']))!r}"


class Steps:
    """Hears of each step of this process, and knows what was recorded before it began."""

    def __init__(self, log: Log, lines: Iterable[Line]) -> None:
        self._log = log
        self._before: dict[tuple[str, str, str, int], str] = {}
        """The steps that were recorded then, with the digests of their arguments."""
        self._functions: dict[tuple[str, str, str, int], str] = {
            (line.history_id, line.scope, line.name, line.occurrence): line.function
            for line in lines
            if isinstance(line, Called)
        }
        self._asked: set[tuple[str, str, str, int]] = set()
        self._called: set[tuple[str, str, str]] = set()
        """Which functions were called in which history, and with which arguments, under names that had no record."""

    def know(self, history_id: str, recorded: Iterable[Step]) -> None:
        """Hear what is recorded."""
        for step in recorded:
            self._before[history_id, step.scope, step.name, step.occurrence] = step.digest

    def hear(
        self, fence: Fence, number: Number, function: Callable[..., Any], digest: str, recorded: Step | None
    ) -> None:
        """Hear that the body asks for a step."""
        key = (fence.history_id, *number.key)
        self._asked.add(key)
        if recorded is not None:
            return
        if key in self._before:
            self._log.write(Repeated(number.label))
        target = target_of(function)
        name = f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', repr(target))}"
        self._called.add((fence.history_id, name, digest))
        self._log.write(Called(*key, function=name, digest=digest))

    def conclude(self) -> None:
        """Find the steps that were done again under another name: recorded and never asked for, and yet called."""
        for key, digest in self._before.items():
            if key not in self._asked and (key[0], self._functions.get(key, ""), digest) in self._called:
                self._log.write(Repeated(step_label(*key[1:])))
