"""The life of a task, as the database itself enforces it: every move is tried by plain SQL."""

from __future__ import annotations

import itertools

import apsw
import pytest

from taskrunner.core.states import MOVES, STATUSES, TERMINAL, Status
from tests.stores import LATER, NOW
from tests.unit.plain_sql import BORN, CLAIM, INTO, Fields, insert, task_in, update


def fitting(old: Status, new: Status) -> Fields:
    """A change from `old` to `new` that breaks no rule but, perhaps, that of the move itself."""
    change: Fields = {
        "status": new,
        "lease_owner": "me" if new == "running" else None,
        "completed_at": LATER if new in TERMINAL else None,
        "output": "1" if new == "completed" else None,
        "error_message": None,
        "outcome": {"pending": "retried", "running": None}.get(new, new),
        "cancel_requested_at": NOW if new == "cancelled" else None,
        "updated_at": LATER,
    }
    if new == "running":
        change["attempt"] = 2 if INTO[old][:1] == [CLAIM] else 1
        change["started_at"] = LATER
    if old in TERMINAL:
        change["series"] = 1
    return change


@pytest.mark.parametrize(("old", "new"), [pair for pair in itertools.product(STATUSES, STATUSES) if len({*pair}) == 2])
def test_a_task_moves_as_the_table_says(plain: apsw.Connection, old: Status, new: Status) -> None:
    """Exactly the moves of `core.states.MOVES` are possible in the file, whoever tries (G1)."""
    task_in(plain, old)
    if (old, new) in MOVES:
        update(plain, **fitting(old, new))
        assert plain.execute("SELECT status FROM tasks").fetchone() == (new,)
        return
    for change in (fitting(old, new), {**fitting(old, new), "series": 0}):
        with pytest.raises(apsw.ConstraintError):
            update(plain, **change)
    with pytest.raises(apsw.ConstraintError):
        update(plain, status=new)
    assert plain.execute("SELECT status FROM tasks").fetchone() == (old,)


@pytest.mark.parametrize("status", STATUSES)
def test_a_task_is_born_pending(plain: apsw.Connection, status: Status) -> None:
    """No row comes into the file in the middle of its life."""
    fields = {**BORN, **{key: value for move in INTO[status] for key, value in move.items()}}
    if status == "pending":
        for wrong in ({"attempt": 1}, {"series": 1}):
            with pytest.raises(apsw.ConstraintError, match="born pending"):
                insert(plain, "tasks", **{**fields, **wrong})
        insert(plain, "tasks", **fields)
    else:
        with pytest.raises(apsw.ConstraintError, match="born pending"):
            insert(plain, "tasks", **fields)


@pytest.mark.parametrize("attempt", [0, 2, -1, None, "1x"])
def test_a_claim_takes_the_next_attempt(plain: apsw.Connection, attempt: int | str | None) -> None:
    """A claim that does not count its attempt by one is refused: the number is the fence."""
    task_in(plain, "pending")
    with pytest.raises(apsw.ConstraintError):
        update(plain, **{**CLAIM, "attempt": attempt})
    update(plain, **CLAIM)


@pytest.mark.parametrize("hold", [0, 1, 2, 3, 4])
def test_only_what_is_due_is_claimed(plain: apsw.Connection, hold: int) -> None:
    """A task that waits for its time or stands in a line of its key is not claimed past the line."""
    losses = 2 if hold == 4 else 0
    task_in(plain, "pending", hold=hold, losses=losses, waiting_for="worker:job" if hold == 3 else None)
    change = {**CLAIM, "hold": 0, "waiting_for": None}
    if hold in {1, 2}:
        with pytest.raises(apsw.ConstraintError, match="may not make this move"):
            update(plain, **change)
    else:
        update(plain, **change)


@pytest.mark.parametrize("status", STATUSES)
def test_an_attempt_never_falls_and_rises_with_a_claim_only(plain: apsw.Connection, status: Status) -> None:
    """Nobody gives an old attempt its number back, and nobody takes one without a claim."""
    task_in(plain, status)
    attempt = int(str(plain.execute("SELECT attempt FROM tasks").fetchall()[0][0]))
    for other in (attempt - 1, attempt + 1):
        with pytest.raises(apsw.ConstraintError, match="an attempt, its owner and its series"):
            update(plain, attempt=other)


def test_a_running_task_keeps_its_owner(plain: apsw.Connection) -> None:
    """A running task changes hands through pending only, where its attempt's end is recorded."""
    task_in(plain, "running")
    for owner in ("another", None):
        with pytest.raises(apsw.ConstraintError):
            update(plain, lease_owner=owner)
    with pytest.raises(apsw.ConstraintError, match="an attempt, its owner"):
        update(plain, lease_owner="another", attempt=2)


@pytest.mark.parametrize("status", STATUSES)
def test_the_owner_stands_on_running_tasks_only(plain: apsw.Connection, status: Status) -> None:
    """`lease_owner` and `running` say the same."""
    task_in(plain, status)
    with pytest.raises(apsw.ConstraintError):
        update(plain, lease_owner=None if status == "running" else "me")


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_retry_is_a_new_series_that_starts_clean(plain: apsw.Connection, status: Status) -> None:
    """`retry` is possible as one more series only, keeps the input and the steps, and clears what the old one left."""
    task_in(plain, status, input='{"x": 1}')
    clean: Fields = {
        "status": "pending",
        "series": 1,
        "error_message": None,
        "completed_at": None,
        "cancel_requested_at": None,
        "updated_at": LATER,
    }
    left_behind: list[Fields] = [
        {"series": 0},
        {"series": 2},
        {"series": -1},
        {"error_message": "old"},
        {"completed_at": NOW},
        {"cancel_requested_at": NOW},
        {"hold": 3, "waiting_for": "timer"},
        {"retry_count": 1},
        {"losses": 1},
        {"output": "1"},
        {"input": '{"x": 2}'},
        {"history_id": "another"},
        {"attempt": 0 if status == "failed" else 1},
    ]
    for wrong in left_behind:
        with pytest.raises(apsw.ConstraintError):
            update(plain, **{**clean, **wrong})
    update(plain, **clean)
    assert plain.execute("SELECT task_id, series, from_status, error_message, retried_at FROM retries").fetchall() == [
        ("t", 1, status, "no" if status == "failed" else None, LATER)
    ]
    with pytest.raises(apsw.ConstraintError, match="series"):
        update(plain, series=2)


@pytest.mark.parametrize("status", ["pending", "running", "completed"])
def test_nothing_else_begins_a_series(plain: apsw.Connection, status: Status) -> None:
    """A completed task is never retried, and an unfinished one needs no retry."""
    task_in(plain, status)
    with pytest.raises(apsw.ConstraintError):
        update(plain, series=1)
    with pytest.raises(apsw.ConstraintError):
        update(plain, status="pending", series=1, output=None, completed_at=None, lease_owner=None, outcome="retried")


def test_a_second_retry_is_a_third_series(plain: apsw.Connection) -> None:
    """Series and attempts count on over any number of retries, and each leaves its row."""
    task_in(plain, "failed")
    for series in (1, 2):
        update(plain, status="pending", series=series, error_message=None, completed_at=None, updated_at=LATER)
        update(plain, **{**CLAIM, "attempt": series + 1})
        update(plain, **{**INTO["failed"][1], "outcome": "failed"})
    assert plain.execute("SELECT series FROM retries ORDER BY seq").fetchall() == [(1,), (2,)]
    assert plain.execute("SELECT attempt, series FROM attempts ORDER BY seq").fetchall() == [(1, 0), (2, 1), (3, 2)]
