"""Planted bugs: what the harness has to find, or it finds nothing. A test's child program asks for one by its name.

They are put into the running child only. What they break is a seam of the product: when one of them no longer fits, it
says so instead of planting nothing.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from taskrunner.authoring.history import History
from taskrunner.runtime import leases
from taskrunner.storage import engine, sqlite
from taskrunner.storage.engine import Outcome, Query, Refused, Rows, Statement, Unit
from taskrunner.storage.journal import Journal

VARIABLE: Final = "TASKRUNNER_TEST_PLANT"
"""The environment variable that names what is planted."""


def memo() -> None:
    """Recorded steps are not found on replay."""
    _replace(History, "recorded", lambda *_args: None)


def fence() -> None:
    """A write is accepted whatever its attempt and its owner, as long as somebody runs the task."""
    load = engine.load_queries
    fenced = re.compile(r"lease_owner = (\?\d+) AND attempt = (\?\d+)")

    def unfenced(dialect: str) -> dict[str, Query]:
        queries, found = load(dialect), 0
        for name, query in queries.items():
            sql, number = fenced.subn(r"\1 IS NOT NULL AND \2 IS NOT NULL", query.sql)
            queries[name] = replace(query, sql=sql)
            found += number
        assert found >= 7, f"there are {found} fenced statements to take the fence from"
        return queries

    _replace(sqlite, "load_queries", unfenced)


def early() -> None:
    """A step returns some milliseconds before its record is committed."""
    in_time = Journal.write

    async def write(self: Journal, statements: Sequence[Statement]) -> list[Rows]:
        if statements[-1].name != "record_step":
            return await in_time(self, statements)
        unit = Unit(tuple(statements))
        asyncio.get_running_loop().call_later(0.005, self._engine.submit, unit, lambda _outcome: None)
        return [[] for _ in statements]

    _replace(Journal, "write", write)


def thief() -> None:
    """Every other supervisor is taken for dead."""
    _replace(leases, "judge", lambda *_args: "it was in the way")


def deaf() -> None:
    """No bug: a supervisor that was taken for dead hears of it late, as on a busy machine. Until then it writes on."""
    hear = leases.Lease._beaten

    def late(lease: leases.Lease, outcome: Outcome) -> None:
        if not isinstance(outcome, Refused):
            hear(lease, outcome)
            return
        timer = threading.Timer(0.3, hear, (lease, outcome))
        timer.daemon = True
        timer.start()

    _replace(leases.Lease, "_beaten", late)


PLANTS: Final[dict[str, Callable[[], None]]] = {plant.__name__: plant for plant in (memo, fence, early, thief, deaf)}


def plant(names: str) -> None:
    """Put these into this process, their names parted by commas."""
    for name in filter(None, names.split(",")):
        PLANTS[name]()


def _replace(owner: Any, name: str, new: Any) -> None:  # noqa: ANN401 - whatever there is to break
    assert hasattr(owner, name), f"{owner} has no {name} to break"
    setattr(owner, name, new)
