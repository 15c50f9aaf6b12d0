"""The one connection that writes: groups of units in one transaction, and what is known after a COMMIT that failed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import apsw

from taskrunner.core.durations import stamp
from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown
from taskrunner.storage.engine import Refused, Rejected, Unreadable
from taskrunner.storage.sqlite_connection import FSYNC_ERRORS, close, translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskrunner.core.clock import Clock
    from taskrunner.storage.engine import Outcome, Query, Rows, Unit, Value


_UNFIT = (apsw.TooBigError, apsw.MismatchError, apsw.RangeError, apsw.BindingsError, apsw.SQLError)
"""What SQLite says of a statement or its values, not of the file."""


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
        self._at = ""
        self._broken: StoreError | None = None
        self.bells: list[str] = []
        """The bells of the supervisors that were registered when the last transaction was committed."""
        self.connection = reconnect()
        self._cursor = self.connection.cursor()  # a cursor of its own for each statement takes half a microsecond more

    def commit(self, units: list[Unit], late: Callable[[], list[Unit]] = list) -> list[Outcome]:
        """Write the units in one transaction and return an outcome for each. It never raises for a unit's fault.

        `late` gives what has come in meanwhile, until there is nothing: it joins, and is added to `units`.
        """
        try:
            return self._transaction(units, late, savepoints=False)
        except _AgainOneByOneError:
            return self._one_by_one(units)
        except apsw.Error as error:
            return [self._trouble(error) for _ in units]

    def give_up(self, error: StoreError) -> None:
        """Commit nothing more: what this process believes to be on the disk may not be there."""
        self._broken = self._broken or StoreError(f"{error}; this process writes nothing more")

    def foreign_commits(self) -> int:
        """A number that moves when another connection has committed: not with our own commits (7 µs, no disk)."""
        try:
            return int(self.connection.pragma("data_version"))
        except apsw.Error:
            return -1

    def finish(self) -> None:
        """Take this writer's mark out of the file: the last commit, while the file is still locked as in use."""
        with suppress(apsw.Error):  # then the mark stays, which costs a row; the commits are safe
            if self._broken is not None:  # what the WAL holds in memory may not be on the disk: it is not to be copied
                self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            elif self._token:
                query = self._queries["forget_writer"]
                self.connection.execute(query.sql, query.bind({"id": self._id})).fetchall()

    def close(self) -> None:
        """Close the connection; SQLite empties the WAL if it was the last one."""
        close(self.connection)

    def _one_by_one(self, units: list[Unit]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for unit in units:
            if outcomes and isinstance(outcomes[-1], StoreBusy):
                outcomes.append(outcomes[-1])  # the others would only wait as long for the same lock or disk
            else:
                outcomes.append(self._alone(unit))
        return outcomes

    def _alone(self, unit: Unit) -> Outcome:
        try:
            return self._transaction([unit], list, savepoints=True)[0]
        except apsw.Error as error:
            return self._trouble(error)

    def _transaction(self, units: list[Unit], late: Callable[[], list[Unit]], *, savepoints: bool) -> list[Outcome]:
        if self._broken is not None:
            return [self._broken] * len(units)
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        before = self.connection.total_changes()
        self.bells = []
        try:
            outcomes = [self._apply(unit, alone=savepoints) for unit in units]
            while joining := late():
                units += joining
                outcomes += [self._apply(unit, alone=savepoints) for unit in joining]
            if self.connection.total_changes() == before:
                return outcomes  # nothing to write, nothing to wait for
            self._mark()
            try:
                execute("COMMIT")
            except apsw.Error as error:
                return self._after_failed_commit(error, outcomes)
            return outcomes
        finally:
            if self._broken is None and self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _apply(self, unit: Unit, *, alone: bool) -> Outcome:
        """Run a unit's statements; a refused unit undoes only itself.

        A statement is atomic by itself, so only several need a savepoint. A single one that changed rows although it
        was refused is rare, and so is a value that SQLite or Python cannot take: the group is then undone and run one
        by one, each inside a savepoint.
        """
        execute = self.connection.execute
        guarded = alone or len(unit.statements) > 1
        try:
            if guarded:
                execute("SAVEPOINT unit")
            results = self._run(unit)
            if guarded:
                execute("RELEASE unit")
        except Exception as error:
            self._cursor.close(force=True)  # it may stand amid its rows, and hold the transaction open
            self._cursor = self.connection.cursor()
            if not self.connection.in_transaction:
                if alone:
                    return self._refusal(error)
                raise _AgainOneByOneError from error
            if guarded:
                execute("ROLLBACK TO unit")
                execute("RELEASE unit")
            elif not isinstance(error, apsw.Error) and not (isinstance(error, Refused) and error.got == 0):
                raise _AgainOneByOneError from error
            return self._refusal(error)
        return results

    def _run(self, unit: Unit) -> list[Rows]:
        results: list[Rows] = []
        cursor = self._cursor
        for index, statement in enumerate(unit.statements):
            query = self._queries[statement.name]
            self._at = statement.name
            cursor.execute(query.sql, query.bind(statement.params))
            rows: Rows = cursor.fetchall() if query.returns_rows else []
            expected = statement.expect_rows
            if expected is not None:
                got = len(rows) if query.returns_rows else self.connection.changes()
                if got != expected:
                    raise Refused(index, statement.name, expected, got)
            results.append(rows)
        return results

    def _refusal(self, error: Exception) -> StoreError:
        """What the error of a unit's own statement means: all but trouble with the file is the unit's fault."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, apsw.ConstraintError):
            return Rejected(self._at, str(error))
        if isinstance(error, UnicodeDecodeError):
            return Unreadable(self._at, f"a row holds text that is not UTF-8 ({error.reason})")
        if not isinstance(error, apsw.Error) or isinstance(error, _UNFIT):
            return Rejected(self._at, f"{type(error).__name__}: {error}")
        return self._trouble(error)

    def _trouble(self, error: apsw.Error) -> StoreError:
        trouble = translate(error, self._path)
        if isinstance(trouble, StoreUnknown):
            self.give_up(trouble)
        return trouble

    def _mark(self) -> None:
        self._token += 1
        query = self._queries["mark_commit"]
        mark: dict[str, Value] = {"id": self._id, "token": self._token, "opened_at": self._opened_at}
        bells = self.connection.execute(query.sql, query.bind(mark)).fetchall()[0][0]
        self.bells = [] if bells is None else str(bells).split()

    def _after_failed_commit(self, error: apsw.Error, outcomes: list[Outcome]) -> list[Outcome]:
        """An error out of COMMIT means unknown: the transaction's own mark tells whether it happened."""
        if isinstance(error, apsw.BusyError) and self.connection.in_transaction:
            return _instead(outcomes, translate(error, self._path))
        if getattr(error, "extendedresult", None) in FSYNC_ERRORS:
            return _instead(outcomes, self._trouble(error))
        try:
            happened = self._happened(error)
        except (apsw.Error, StoreError) as blind:
            unknown = StoreUnknown(
                f"{self._path}: a commit failed ({error}) and could not be looked up ({blind}); it may have happened"
            )
            self.give_up(unknown)
            return _instead(outcomes, unknown)
        return outcomes if happened else _instead(outcomes, translate(error, self._path), certain=True)

    def _happened(self, error: apsw.Error) -> bool:
        """Look for the mark on a fresh connection.

        If it is not there, a new commit is made at once: it takes the place of the frames that the failed one may have
        left in the WAL, which a later crash would otherwise bring to life. A write that found the disk full has left
        no whole frame of a commit, so that is no reason to wait for space.
        """
        close(self.connection)
        self.connection = self._reconnect()
        self._cursor = self.connection.cursor()
        query = self._queries["last_commit"]
        rows = self.connection.execute(query.sql, query.bind({"id": self._id})).fetchall()
        if rows == [(self._token,)]:
            return True
        if not isinstance(error, apsw.FullError):
            self.connection.execute("BEGIN IMMEDIATE")
            self._mark()
            self.connection.execute("COMMIT")
        return False


def _instead(outcomes: list[Outcome], error: StoreError, *, certain: bool = False) -> list[Outcome]:
    """The same outcomes, but nobody is told of a success; `certain`: nothing was written, it is safe to try again."""
    if certain and not isinstance(error, StoreBusy):
        error = StoreBusy(f"{error}; nothing was written")
    return [outcome if isinstance(outcome, StoreError) else error for outcome in outcomes]
