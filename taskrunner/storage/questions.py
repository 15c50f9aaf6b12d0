"""A user's own SELECT: the one place where SQL comes in that is not ours.

Each question has a thread and a connection of its own, so that a slow one holds up nothing else. Three locks keep it
from writing: the connection's `query_only`, SQLite's authorizer, which lets through only what reads, and the rule of
one statement. And it has bounds, of time, of rows, and of what they hold.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
import apsw

from taskrunner.core.errors import InvalidInput, StoreError
from taskrunner.core.loop import call_in_thread
from taskrunner.core.places import is_huge, shown
from taskrunner.storage.engine import Answer, Question, Row, Value
from taskrunner.storage.sqlite_connection import close

if TYPE_CHECKING:
    from taskrunner.core.clock import Clock

MOST_ROWS: Final = 100_000
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all the values of an answer together, and of a single one."""

LONGEST_SQL: Final = 100_000
AT_ONCE: Final = 4
"""Questions of one process that are answered at the same time; others wait their turn, before their time begins."""

_STEPS: Final = 2_000
"""Instructions of SQLite between two looks at the clock: about 0.1 ms."""

_LIMITS: Final = {
    apsw.SQLITE_LIMIT_ATTACHED: 0,
    apsw.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    apsw.SQLITE_LIMIT_EXPR_DEPTH: 200,
    apsw.SQLITE_LIMIT_LENGTH: MOST_BYTES,
    apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,  # one comparison cannot be interrupted
    apsw.SQLITE_LIMIT_SQL_LENGTH: LONGEST_SQL,
    apsw.SQLITE_LIMIT_VDBE_OP: 100_000,
}

FUNCTIONS: Final = frozenset(
    "-> ->> abs avg ceil ceiling char coalesce concat concat_ws count cume_dist current_date current_time "  # noqa: SIM905 - reads better than a column of 80 quoted words
    "current_timestamp date datetime dense_rank exp first_value floor format glob group_concat hex if ifnull iif json "
    "json_array json_array_length json_each json_error_position json_extract json_group_array json_group_object "
    "json_object json_pretty json_quote json_tree json_type json_valid julianday lag last_value lead length like "
    "likelihood likely ln log log10 log2 lower max median min mod nth_value ntile nullif octet_length percent_rank "
    "percentile percentile_cont percentile_disc pow power printf quote random rank round row_number sign "
    "sqlite_version sqrt strftime string_agg substr substring sum time timediff total trunc typeof unicode unixepoch "
    "unlikely upper".split()
)
"""What reads, and takes no more than its arguments' length in time: `instr` of two long texts would take hours, which
nothing can interrupt."""

_READS: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE})
_TABLES: Final = frozenset({"json_each", "json_tree"})
"""The virtual tables that may be read: others show pages of the file, or do things."""


def refuse(name: str, rule: str) -> NoReturn:
    """Refuse an argument of `read`.

    Raises:
        InvalidInput: always.
    """
    message = f"{name}: {rule}"
    raise InvalidInput(message, path=name)


def question(sql: object, params: object, seconds: float) -> Question:
    """Check what a user asks.

    Raises:
        InvalidInput: it is no text, or a parameter is nothing that a row can hold.
    """
    if not isinstance(sql, str):
        refuse("sql", f"it must be a text, and it is {shown(sql)}")
    if not sql.strip():
        refuse("sql", "it is empty: write one SELECT")
    if len(sql) > LONGEST_SQL:
        refuse("sql", f"it has {len(sql):,} characters, and {LONGEST_SQL:,} are the most: hand values over as params")
    if "\x00" in sql or not _is_unicode(sql):
        refuse("sql", "it has a character that no SQL has: U+0000, or half of a surrogate pair")
    if params is not None and not isinstance(params, Mapping):
        refuse("params", f"it must be a mapping, such as {{'status': 'failed'}} for :status, and it is {shown(params)}")
    given: dict[str, Value] = {}
    for name, value in dict(params or {}).items():
        if not isinstance(name, str):
            refuse("params", f"{shown(name)} is no name of a parameter: :status is called 'status'")
        if not _is_bindable(value):
            refuse("params", f"{name}={shown(value)}: no column holds its kind; times are texts, as columns show them")
        given[name] = value
    return Question(sql, given, seconds)


def _is_bindable(value: object) -> bool:
    if type(value) is str:
        return _is_unicode(value)
    if type(value) is float:
        return not math.isnan(value)
    return type(value) in (int, bool, bytes, type(None)) and not is_huge(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Questions:
    """Answers the questions of one process. It belongs to the event loop, but for `close`."""

    def __init__(
        self, connect: Callable[[], apsw.Connection], translate: Callable[[apsw.Error], StoreError], clock: Clock
    ) -> None:
        self._connect = connect
        self._translate = translate
        self._clock = clock
        self._turns = anyio.Semaphore(AT_ONCE)
        self._door = threading.Lock()
        self._asked: set[_Asked] = set()
        self._closing = False

    async def answer(self, question: Question) -> Answer:
        """Answer one. When the wait is cancelled, so is the question.

        Raises:
            InvalidInput: it is not one statement that only reads, SQLite does not understand it, or it has no bounds.
            StoreError: it takes too long, or the store cannot be read, or is closed.
        """
        async with self._turns:
            asked = _Asked(question, self._connect, self._clock)
            with self._door:
                if self._closing:
                    message = "the store is closed"
                    raise StoreError(message)
                self._asked.add(asked)
            try:
                return await call_in_thread("question", self._run, asked)
            finally:
                asked.stopped = True

    def close(self) -> None:
        """Stop what is asked, and wait until no connection is open. It blocks."""
        with self._door:
            self._closing = True
            asked = list(self._asked)
        for each in asked:
            each.stopped = True
            each.ended.wait()

    def _run(self, asked: _Asked) -> Answer:
        try:
            return asked.run()
        except apsw.Error as error:
            raise asked.explained(error) or self._translate(error) from None
        finally:
            asked.ended.set()
            with self._door:
                self._asked.discard(asked)


class _Asked:
    """One question on its way to its answer, in a thread."""

    def __init__(self, question: Question, connect: Callable[[], apsw.Connection], clock: Clock) -> None:
        self.stopped = False
        """Whether nobody wants the answer any more."""
        self.ended = threading.Event()
        self._question = question
        self._connect = connect
        self._clock = clock
        self._until = math.inf
        self._refused = ""
        self._columns: tuple[str, ...] = ()
        self._virtual: frozenset[str] = frozenset()

    def run(self) -> Answer:
        """Ask SQLite; at the end its connection is closed."""
        connection = self._connect()
        try:
            self._guard(connection)
            cursor = connection.cursor()
            cursor.exec_trace = self._begin
            return self._fetch(cursor)
        except KeyError as error:
            refuse("params", f"the statement asks for :{error.args[0]}, which is not given")
        except (UnicodeDecodeError, apsw.BindingsError) as error:
            if isinstance(error, apsw.BindingsError):
                refuse("params", "the statement has a parameter without a name, or none are given: write :name")
            message = f"sql: a row has text that is not UTF-8 ({error.reason}): CAST(… AS BLOB) shows its bytes"
            raise StoreError(message) from None
        finally:
            close(connection)

    def _guard(self, connection: apsw.Connection) -> None:
        self._virtual = frozenset(row[0] for row in connection.execute("PRAGMA module_list")) - _TABLES
        connection.execute("PRAGMA temp_store = FILE").fetchall()  # a sort of millions of rows takes a file, not memory
        for limit, most in _LIMITS.items():
            connection.limit(limit, most)
        self._until = self._clock.monotonic() + self._question.seconds
        connection.set_progress_handler(self._is_over, _STEPS)
        connection.authorizer = self._may

    def _is_over(self) -> bool:
        return self.stopped or self._clock.monotonic() >= self._until

    def _may(self, action: int, first: str | None, second: str | None, *_where: str | None) -> int:
        """What SQLite asks for each thing that a statement would do, before it does any."""
        if action in _READS:
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_READ:
            table = (first or "").lower()
            if table not in self._virtual and not table.startswith("pragma_"):
                return apsw.SQLITE_OK
            self._refused = f"the table {first} is not one that read shows"
        elif action == apsw.SQLITE_FUNCTION:
            if (second or "").lower() in FUNCTIONS:
                return apsw.SQLITE_OK
            self._refused = f"the function {second}() is not among those that read runs: take its rows, and do it there"
        else:
            name = str(apsw.mapping_authorizer_function[action]).removeprefix("SQLITE_").replace("_", " ")
            self._refused = f"it would do {name}, and read only reads: write a SELECT"
        return apsw.SQLITE_DENY

    def _begin(self, cursor: apsw.Cursor, _text: str, _params: Any) -> bool:  # noqa: ANN401 - as it was given
        """Look at a statement that is about to run: the first one has to be the last. A comment has no columns."""
        columns = tuple(column[0] for column in cursor.get_description())
        if columns and self._columns:
            refuse("sql", "it has several statements: write one SELECT")
        for column in columns:
            if columns.count(column) > 1:
                refuse("sql", f"two columns are called {column!r}: name each with AS")
        for name in self._question.params if columns else ():
            if name not in cursor.bindings_names:
                refuse("params", f"{name!r} is not asked for: the statement has no :{name}")
        self._columns = self._columns or columns
        return True

    def _fetch(self, cursor: apsw.Cursor) -> Answer:
        rows: list[Row] = []
        size = 0
        for row in cursor.execute(self._question.sql, self._question.params or None):
            rows.append(row)
            size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
            if len(rows) > MOST_ROWS:
                refuse("sql", f"it gives more than {MOST_ROWS:,} rows: add a LIMIT, or count in SQL")
            if size > MOST_BYTES:
                refuse("sql", f"its rows hold more than {MOST_BYTES:,} bytes: ask for fewer columns, or add a LIMIT")
        if not self._columns:
            refuse("sql", "it is empty: write one SELECT")
        return Answer(self._columns, rows)

    def explained(self, error: apsw.Error) -> InvalidInput | StoreError | None:
        """What an error of SQLite says of the question; None: it speaks of the store."""
        seconds = self._question.seconds
        if isinstance(error, apsw.InterruptError):
            return StoreError(f"sql: it took longer than {seconds:g} s: ask for less, or give it more by timeout=")
        if self._refused:
            return InvalidInput(f"sql: {self._refused}", path="sql")
        if isinstance(error, apsw.SQLError | apsw.TooBigError | apsw.MismatchError | apsw.RangeError | apsw.NoMemError):
            return InvalidInput(f"sql: SQLite does not run it: {error}", path="sql")
        return None
