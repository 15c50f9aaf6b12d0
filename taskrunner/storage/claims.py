"""The claim: one unit that puts orphans back and takes what can be run, and what it brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskrunner.core.errors import StoreError
from taskrunner.storage.engine import Statement, Unit, json_of
from taskrunner.storage.rows import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskrunner.core.model import Task
    from taskrunner.core.states import Status
    from taskrunner.storage.engine import Row, Rows, Value


@dataclass(frozen=True, slots=True)
class Recovered:
    """One orphan that was put back, quarantined or cancelled."""

    task_id: str
    type: str
    queue: str
    status: Status
    losses: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What one claim brought: the tasks to run, the orphans found, and the queues that have more.

    `unasked` are those of them from which nothing was asked for, `promoted` is how many delayed tasks became due,
    `suspects` says that a suspect is in line which this owner may run when it is the suspects' turn, and `limits` that
    some queue has a limit.
    """

    tasks: list[Task]
    unreadable: list[Row]
    recovered: list[Recovered]
    queues: list[str]
    unasked: list[str]
    promoted: int
    suspects: bool
    limits: bool


def claim_unit(
    owner: str,
    queues: Sequence[str],
    slots: int,
    known: Sequence[str],
    only: Sequence[str] | None,
    *,
    now: str,
    suspect: bool,
) -> Unit:
    """The unit of `TaskStore.claim`, whose arguments these are."""
    base: dict[str, Value] = {
        "owner": owner,
        "slots": slots,
        "now": now,
        "known": json_of(list(known)),
        "only": None if only is None else json_of(list(only)),
    }
    if suspect:
        claims = [Statement("claim_suspect", base)]
    else:
        claims = [
            Statement("claim_put_back", {**base, "queue": queue, "waiting_for": f"worker:{name}"})
            for name in known
            for queue in (only or (None,))
        ]  # first, for they had their turn already
        claims += [Statement("claim", {**base, "queue": queue}) for queue in queues]
    return Unit(
        (
            Statement("living_owner", base, expect_rows=1),
            Statement("promote_due", base),
            Statement("recover", base),
            *claims,
            Statement("claim_signs", base),
            Statement("claimable_queues", base),
        ),
    )


def claim_of(results: Sequence[Rows], queues: Sequence[str]) -> Claim:
    """What the unit brought; `queues` are those that were asked."""
    _alive, due, recovered, *claimed, ((suspects, limits),), last = results
    tasks, unreadable = _readable([row for rows in claimed for row in rows])
    tasks.sort(key=lambda task: (task.priority, task.seq))
    left = [str(row[0]) for row in last]
    found = [Recovered(*row) for row in recovered]  # type: ignore[arg-type]
    unasked = [name for name in left if name not in queues]
    return Claim(tasks, unreadable, found, left, unasked, len(due), bool(suspects), bool(limits))


def _readable(rows: Rows) -> tuple[list[Task], list[Row]]:
    tasks: list[Task] = []
    unreadable: list[Row] = []
    for row in rows:
        try:
            tasks.append(task_of(row))
        except StoreError:
            unreadable.append(row)
    return tasks, unreadable
