"""Planted bugs: what the harnesses have to find, or they find nothing. Each is put into a running process only.

Most change a few words of a query or of a function's source: a condition that is dropped, a wait that is left out, a
number that is off by one, as a mistake would. When such a place has changed, a bug that no longer fits says so instead
of planting nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from taskrunner.authoring.history import History
from taskrunner.runtime import leases
from taskrunner.runtime.pool import Pool
from taskrunner.storage import engine, sqlite, sqlite_writer
from taskrunner.storage.engine import Outcome, Query, Refused, Rows, Statement, Unit
from taskrunner.storage.journal import Journal
from taskrunner.storage.owners import NANOSECONDS, Owners
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.sqlite_writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "TASKRUNNER_TEST_PLANT"
"""The environment variable that names what is planted."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug: what is wrong, the kind of faults that has to find it, and how it is put in."""

    what: str
    kind: str
    put: Callable[[], None]


# ── how a bug is put in ───────────────────────────────────────────────────────────────────────────────────────────────


def _swap(owner: Any, name: str, new: Any) -> None:  # noqa: ANN401 - whatever there is to break
    assert hasattr(owner, name), f"{owner} has no {name} to break"
    setattr(owner, name, new)


def _query(names: str, old: str, new: str) -> Callable[[], None]:
    """Write `new` where `old` (a regular expression) stands in these queries; it has to stand in each."""

    def put() -> None:
        load: Callable[[str], Mapping[str, Query]] = vars(sqlite)["load_queries"]

        def broken(dialect: str) -> Mapping[str, Query]:
            queries = dict(load(dialect))
            for name in names.split():
                sql, found = re.subn(old, new, queries[name].sql)
                assert found, f"{name} has no {old} to break: {queries[name].sql}"
                queries[name] = replace(queries[name], sql=sql)
            return queries

        _swap(sqlite, "load_queries", broken)

    return put


def _source(owner: Any, name: str, old: str, new: str) -> Callable[[], None]:  # noqa: ANN401 - a class or a module
    """Write `new` where `old` stands in the source of a function."""

    def put() -> None:
        function: Any = inspect.unwrap(getattr(owner, name))
        source = textwrap.dedent(inspect.getsource(function))
        assert old in source, f"{owner.__name__}.{name} has no {old!r} to break"
        tree = compile(
            "from __future__ import annotations\n" + source.replace(old, new), inspect.getfile(function), "exec"
        )
        made: dict[str, Any] = {}
        exec(tree, function.__globals__, made)  # noqa: S102 - our own source, but for a mistake
        assert isinstance(made[name], FunctionType)
        _swap(owner, name, made[name])

    return put


# ── the bugs that are more than a word ────────────────────────────────────────────────────────────────────────────────

FENCED: Final = r"lease_owner = (\?\d+) AND attempt = (\?\d+)"


def _fence() -> None:
    load = engine.load_queries
    fenced = re.compile(FENCED)

    def unfenced(dialect: str) -> dict[str, Query]:
        queries, found = dict(load(dialect)), 0
        for name, query in queries.items():
            sql, number = fenced.subn(r"\1 IS NOT NULL AND \2 IS NOT NULL", query.sql)
            queries[name] = replace(query, sql=sql)
            found += number
        assert found >= 7, f"there are {found} fenced statements to take the fence from"
        return queries

    _swap(sqlite, "load_queries", unfenced)


def _early() -> None:
    in_time = Journal.write

    async def write(self: Journal, statements: Sequence[Statement]) -> list[Rows]:
        if statements[-1].name != "record_step":
            return await in_time(self, statements)
        unit = Unit(tuple(statements))
        asyncio.get_running_loop().call_later(0.005, self._engine.submit, unit, lambda _outcome: None)
        return [[] for _ in statements]

    _swap(Journal, "write", write)


def _deaf() -> None:
    hear = leases.Lease._beaten

    def late(lease: leases.Lease, outcome: Outcome) -> None:
        if not isinstance(outcome, Refused):
            hear(lease, outcome)
            return
        timer = threading.Timer(0.3, hear, (lease, outcome))
        timer.daemon = True
        timer.start()

    _swap(leases.Lease, "_beaten", late)


def _wall() -> None:
    wall = "self._clock.now().timestamp()"
    _source(leases.Lease, "sweep", "<= now * NANOSECONDS", f"<= {wall} * NANOSECONDS")()
    bury = leases.Lease._bury

    async def by_the_wall(lease: leases.Lease, dead: list[tuple[str, str]], monotonic: float) -> None:
        await bury(lease, dead, monotonic and lease._clock.now().timestamp())

    _swap(leases.Lease, "_bury", by_the_wall)
    _swap(Owners, "_expiry", lambda self, lease: int((self._clock.now().timestamp() + lease) * NANOSECONDS))


# ── the bugs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

HELPERS: Final = MappingProxyType({"deaf": _deaf, "none": lambda: None})
"""No bugs. `deaf`: a supervisor that was taken for dead hears of it late, as on a busy machine; until then it writes
on. `none`: a control, with which nothing may be found."""

PLANTS: Final = MappingProxyType(
    {
        # what is recorded, and when
        "memo": Plant(
            "recorded steps are not found on replay", "kills", lambda: _swap(History, "recorded", lambda *_args: None)
        ),
        "early": Plant("a step returns before its record is committed", "kills", _early),
        "normal": Plant(
            "commits are not synced", "power", _source(SQLiteEngine, "__init__", '"FULL" if', '"NORMAL" if')
        ),
        "failed": Plant(
            "a commit whose sync failed counts as not done",
            "errors",
            lambda: _swap(sqlite_writer, "FSYNC_ERRORS", frozenset()),
        ),
        "half": Plant(
            "a refused unit is not undone", "model", _source(Writer, "_apply", 'execute("ROLLBACK TO unit")', "pass")
        ),
        "deferred": Plant(
            "a transaction takes the write lock only when it writes",
            "kills",
            _source(Writer, "_transaction", "BEGIN IMMEDIATE", "BEGIN DEFERRED"),
        ),
        "twice": Plant(
            "a message of a step has no key", "kills", _query("add_message", r"(\?10), (\?11),", r"\1, nullif(\2, \2),")
        ),
        # who may write
        "fence": Plant("a write is accepted whatever its attempt and its owner", "zombies", _fence),
        "attempt": Plant(
            "a write is accepted from an earlier attempt",
            "model",
            _query("record_step complete", FENCED, r"lease_owner = \1 AND \2 IS NOT NULL"),
        ),
        "progress": Plant(
            "progress is not fenced", "model", _query("progress", FENCED, r"\1 IS NOT NULL AND \2 IS NOT NULL")
        ),
        "claims": Plant(
            "a supervisor that was taken for dead claims", "model", _query("living_owner", " AND ended_at IS NULL", "")
        ),
        "lost": Plant(
            "a supervisor that has lost its lease works on",
            "zombies",
            _source(leases.Lease, "lose", "self._tell_lost()", "pass"),
        ),
        # who is dead, and what becomes of its tasks
        "thief": Plant(
            "every other supervisor is taken for dead",
            "kills",
            lambda: _swap(leases, "judge", lambda *_args: "it was in the way"),
        ),
        "expired": Plant(
            "every lease has run out", "model", _query("bury_expired", r"expires_at <= (\?\d+)", r"expires_at > 0 * \1")
        ),
        "wall": Plant("leases run by the wall clock", "simulation", _wall),
        "orphans": Plant(
            "the tasks of the dead stay theirs",
            "kills",
            _query("recover", "s.id IS NULL OR s.ended_at IS NOT NULL", "s.id IS NULL"),
        ),
        "same": Plant(
            "a task is claimed again without a new attempt",
            "kills",
            _query("claim", r"attempt = attempt \+ 1", "attempt = max(attempt, 1)"),
        ),
        "unheard": Plant(
            "the death of a child is not charged", "kills", _source(Pool, "_bury", "if lost:", "if False:")
        ),
        "losses": Plant(
            "a lost worker does not count",
            "model",
            _query("recover lose", r"min\(t.losses \+ 1, t.max_losses\)", "t.losses"),
        ),
        "one more": Plant(
            "a poison task is tried once more",
            "model",
            _query(
                "recover", r"orphans.losses >= max_losses THEN 'failed'", "orphans.losses > max_losses THEN 'failed'"
            ),
        ),
        # the task's life
        "cancelled": Plant(
            "a task completes after its cancel was acknowledged",
            "model",
            _query(
                "complete",
                r"CASE WHEN cancel_requested_at IS NULL THEN 'completed' ELSE 'cancelled' END",
                "'completed'",
            ),
        ),
        "retries": Plant(
            "a retry is not counted", "model", _query("fail", r"THEN 0 ELSE 1 END,\s+hold", "THEN 0 ELSE 0 END, hold")
        ),
        "at once": Plant(
            "a retry does not wait for its time",
            "model",
            _query("fail", r"OR \?\d+ <= \?\d+ THEN 0 ELSE 1 END", "THEN 0 ELSE 0 END"),
        ),
        "delay": Plant(
            "a delayed task is due at once",
            "model",
            _query("enqueue enqueue_keyed", r"CASE WHEN \?\d+ > \?\d+ THEN 1 ELSE 0 END", "0"),
        ),
        "order": Plant("priorities are not kept", "model", _query("claim", "ORDER BY priority, seq", "ORDER BY seq")),
        "limit": Plant(
            "a queue's pause and limit are not kept",
            "model",
            _query("claim", r"\(SELECT room FROM queue_room WHERE name = \?\d+\)", "NULL"),
        ),
        "key": Plant(
            "the idempotency key is not stored",
            "model",
            _query("enqueue_keyed", r"(\?10), (\?11),", r"\1, nullif(\2, \2),"),
        ),
        "prune": Plant(
            "unfinished tasks are removed",
            "model",
            _query(
                "finished_before remove_tasks begin_removal",
                r"tasks.status IN \('completed', 'failed', 'cancelled'\) AND tasks.completed_at",
                "tasks.updated_at",
            ),
        ),
        "forgiving": Plant(
            "a recorded step does not start the count of losses anew",
            "model",
            _query("recover lose", r"THEN 1 ELSE (min\(.*?\)) END AS losses", r"THEN \1 ELSE \1 END AS losses"),
        ),
        "due": Plant(
            "every delayed task is due",
            "model",
            _query("promote_due", r"run_at <= (\?\d+)", r"run_at > '' AND \1 IS NOT NULL"),
        ),
        "slots": Plant(
            "a claim takes more than the free slots",
            "model",
            _query("claim", r"min\(64, (\?\d+) - \(SELECT count.*?\), coalesce", r"min(64, \1, coalesce"),
        ),
        "parents": Plant(
            "a task is removed before its children",
            "model",
            _query("remove_tasks", r"AND NOT EXISTS \(SELECT 1 FROM tasks child [^)]*\)", ""),
        ),
        "asked": Plant(
            "an acknowledged cancel is taken back",
            "model",
            _query(
                "cancel",
                r"cancel_requested_at = coalesce\(cancel_requested_at, (\?\d+)\)",
                "cancel_requested_at = NULL",
            ),
        ),
        "released": Plant(
            "what is handed back counts as lost",
            "model",
            _query("release", r"ELSE 0 END,\s+waiting_for", "ELSE 0 END, losses = losses + 1, waiting_for"),
        ),
    }
)
"""All bugs by name."""


def plant(names: str) -> None:
    """Put these into this process, their names parted by commas."""
    for name in filter(None, names.split(",")):
        put: Callable[[], None] = HELPERS[name] if name in HELPERS else PLANTS[name].put
        put()
