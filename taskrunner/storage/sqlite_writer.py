"""The one connection that writes: groups of units in one transaction, and what is known after a COMMIT that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown
from taskrunner.storage.engine import Refused, Rejected
from taskrunner.storage.sqlite_connection import FSYNC_ERRORS, translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskrunner.core.clock import Clock
    from taskrunner.storage.engine import Outcome, Query, Rows, Unit, Value


class _AgainOneByOneError(Exception):
    """The group's transaction was undone as a whole: its units are run again, each in a transaction of its own."""


class Writer:
    """Commits groups of units. It belongs to one thread at a time; `reconnect` opens the connection anew."""

    def __init__(
        self, reconnect: Callable[[], apsw.Connection], path: Path, queries: dict[str, Query], clock: Clock
    ) -> None:
        self._reconnect = reconnect
        self._path = path
        self._queries = queries
        self._id = clock.new_id()
        self._opened_at = stamp(clock.now())
        self._token = 0
        self._broken: StoreError | None = None
        self.connection = reconnect()

    def commit(self, units: list[Unit]) -> list[Outcome]:
        """Write the units in one transaction and return an outcome for each. It never raises for a unit's fault."""
        if self._broken is not None:
            return [self._broken] * len(units)
        try:
            return self._transaction(units, savepoints=False)
        except _AgainOneByOneError:
            return [self._alone(unit) for unit in units]
        except apsw.Error as error:
            return [translate(error, self._path)] * len(units)

    def foreign_commits(self) -> int:
        """A number that moves when another connection has committed: not with our own commits (7 µs, no disk)."""
        try:
            return int(self.connection.pragma("data_version"))
        except apsw.Error:
            return -1

    def close(self) -> None:
        """Forget this writer's mark and close the connection; SQLite empties the WAL if it was the last one."""
        try:
            if self._broken is None and self._token:
                query = self._queries["forget_writer"]
                self.connection.execute(query.sql, query.bind({"id": self._id})).fetchall()
        except apsw.Error:
            self._broken = StoreError("closing")  # the mark stays, which costs a row; the commits are safe
        self.connection.close()

    def _alone(self, unit: Unit) -> Outcome:
        try:
            return self._transaction([unit], savepoints=True)[0]
        except apsw.Error as error:
            return translate(error, self._path)

    def _transaction(self, units: list[Unit], *, savepoints: bool) -> list[Outcome]:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        before = self.connection.total_changes()
        try:
            outcomes = [self._apply(unit, alone=savepoints) for unit in units]
            if self.connection.total_changes() == before:
                return outcomes  # nothing to write, nothing to wait for
            self._mark()
            try:
                execute("COMMIT")
            except apsw.Error as error:
                return self._after_failed_commit(error, outcomes)
            return outcomes
        finally:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _apply(self, unit: Unit, *, alone: bool) -> Outcome:
        """Run a unit's statements; a refused unit undoes only itself.

        A statement is atomic by itself, so only several need a savepoint. A single one that changed rows although it
        was refused is rare: the group is then undone and run one by one, each inside a savepoint.
        """
        execute = self.connection.execute
        guarded = alone or len(unit.statements) > 1
        try:
            if guarded:
                execute("SAVEPOINT unit")
            results = self._run(unit)
            if guarded:
                execute("RELEASE unit")
        except (Refused, apsw.Error) as error:
            if not self.connection.in_transaction:
                if alone:
                    raise
                raise _AgainOneByOneError from error
            if guarded:
                execute("ROLLBACK TO unit")
                execute("RELEASE unit")
            elif isinstance(error, Refused) and error.got > 0:
                raise _AgainOneByOneError from error
            return self._refusal(unit, error)
        return results

    def _run(self, unit: Unit) -> list[Rows]:
        results: list[Rows] = []
        for index, statement in enumerate(unit.statements):
            query = self._queries[statement.name]
            self._at = statement.name
            rows: Rows = self.connection.execute(query.sql, query.bind(statement.params)).fetchall()
            if statement.expect_rows is not None:
                got = len(rows) if query.returns_rows else self.connection.changes()
                if got != statement.expect_rows:
                    raise Refused(index, statement.name, statement.expect_rows, got)
            results.append(rows)
        return results

    def _refusal(self, unit: Unit, error: Refused | apsw.Error) -> StoreError:
        if isinstance(error, Refused):
            return error
        if isinstance(error, apsw.ConstraintError):
            return Rejected(self._at, str(error))
        if isinstance(error, apsw.TooBigError | apsw.MismatchError | apsw.RangeError):
            return Rejected(unit.statements[0].name, str(error))
        return translate(error, self._path)

    def _mark(self) -> None:
        self._token += 1
        query = self._queries["mark_commit"]
        mark: dict[str, Value] = {"id": self._id, "token": self._token, "opened_at": self._opened_at}
        self.connection.execute(query.sql, query.bind(mark)).fetchall()

    def _after_failed_commit(self, error: apsw.Error, outcomes: list[Outcome]) -> list[Outcome]:
        """An error out of COMMIT means unknown: the transaction's own mark tells whether it happened."""
        if isinstance(error, apsw.BusyError) and self.connection.in_transaction:
            return _instead(outcomes, translate(error, self._path))
        if getattr(error, "extendedresult", None) in FSYNC_ERRORS:
            self._broken = translate(error, self._path)
            return _instead(outcomes, self._broken)
        try:
            happened = self._happened()
        except (apsw.Error, StoreError) as blind:
            self._broken = StoreUnknown(
                f"{self._path}: a commit failed ({error}) and could not be looked up ({blind}); it may have happened"
            )
            return _instead(outcomes, self._broken)
        return outcomes if happened else _instead(outcomes, translate(error, self._path), certain=True)

    def _happened(self) -> bool:
        """Look for the mark on a fresh connection.

        If it is not there, a new commit is made at once: it takes the place of the frames that the failed one may have
        left in the WAL, which a later crash would otherwise bring to life.
        """
        self.connection.close()
        self.connection = self._reconnect()
        query = self._queries["last_commit"]
        rows = self.connection.execute(query.sql, query.bind({"id": self._id})).fetchall()
        if rows == [(self._token,)]:
            return True
        self.connection.execute("BEGIN IMMEDIATE")
        self._mark()
        self.connection.execute("COMMIT")
        return False


def _instead(outcomes: list[Outcome], error: StoreError, *, certain: bool = False) -> list[Outcome]:
    """The same outcomes, but nobody is told of a success; `certain`: nothing was written, it is safe to try again."""
    if certain and not isinstance(error, StoreBusy):
        error = StoreBusy(f"{error}; nothing was written")
    return [outcome if isinstance(outcome, StoreError) else error for outcome in outcomes]
