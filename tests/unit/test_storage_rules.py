"""What the database refuses whoever asks, and what it writes by itself: tried by plain SQL."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from taskrunner.core.states import TERMINAL, Status
from tests.stores import LATER, NOW, sql
from tests.unit.plain_sql import BORN, INTO, Fields, insert, task_in, update

STEP: Fields = {
    "history_id": "t",
    "scope": "",
    "name": "search",
    "occurrence": 0,
    "position": 0,
    "digest": "d",
    "value": "1",
    "task_id": "t",
    "attempt": 1,
    "created_at": NOW,
}
LINE: Fields = {"task_id": "t", "attempt": 1, "at": NOW, "level": "info", "event": "hello", "fields": "{}"}
MESSAGE: Fields = {
    "id": "m",
    "session_id": "s",
    "role": "user",
    "content": "hello",
    "token_count": 3,
    "created_at": NOW,
}


def refused(plain: apsw.Connection, statement: str, why: str = ".") -> None:
    """The statement is refused, for this reason."""
    with pytest.raises(apsw.ConstraintError, match=why):
        plain.execute(statement)


def session(plain: apsw.Connection, session_id: str = "s", **fields: str) -> None:
    """Insert a session."""
    insert(plain, "sessions", id=session_id, created_at=NOW, updated_at=NOW, **fields)


def count(plain: apsw.Connection, table: str) -> int:
    """How many rows a table has."""
    return int(str(plain.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]))  # noqa: S608 - a test's own name


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("input", "[]"),
        ("output", "2"),
        ("output", None),
        ("error_type", "Other"),
        ("error_message", "another story"),
        ("completed_at", LATER),
        ("completed_at", None),
        ("progress", 0.75),
    ],
)
def test_a_finished_task_is_final(
    plain: apsw.Connection, status: Status, column: str, value: str | float | None
) -> None:
    """Nothing that a finished task tells of itself is changed afterwards (G1)."""
    task_in(plain, status, progress=0.5)
    before = plain.execute("SELECT * FROM tasks").fetchall()
    if plain.execute(f"SELECT {column} IS ? FROM tasks", [value]).fetchall() == [(1,)]:  # noqa: S608 - its own name
        return
    with pytest.raises(apsw.ConstraintError):
        update(plain, **{column: value})
    assert plain.execute("SELECT * FROM tasks").fetchall() == before


def test_a_task_keeps_its_identity(plain: apsw.Connection) -> None:
    """Its id, its place in the order, its type and its birth never change."""
    task_in(plain, "pending")
    for change in ("id = 'u'", "seq = 99", "type = 'other'", f"created_at = '{LATER}'"):
        refused(plain, f"UPDATE tasks SET {change}", "keeps its id")  # noqa: S608


@pytest.mark.parametrize("status", ["pending", "running", "completed", "failed", "cancelled"])
def test_a_task_is_not_replaced(plain: apsw.Connection, status: Status) -> None:
    """INSERT OR REPLACE, which asks no trigger about the row it deletes, does not get past the rules either."""
    task_in(plain, status)
    columns = "id, type, max_retries, max_losses, run_at, history_id, created_at, updated_at"
    again = f"'job', 3, 5, '{NOW}', 't', '{NOW}', '{NOW}'"
    refused(plain, f"INSERT OR REPLACE INTO tasks({columns}) VALUES ('t', {again})", "not replaced")  # noqa: S608
    refused(plain, f"REPLACE INTO tasks(seq, {columns}) VALUES (1, 'u', {again})", "not replaced")  # noqa: S608
    insert(plain, "tasks", **{**BORN, "id": "u"})
    refused(plain, "UPDATE OR REPLACE tasks SET seq = 1 WHERE id = 'u'", "keeps its id")
    assert plain.execute("SELECT id, status FROM tasks ORDER BY seq").fetchall() == [("t", status), ("u", "pending")]


def test_progress_never_falls(plain: apsw.Connection) -> None:
    """It rises to 1.0 at most; a retry by hand begins at what was reached, or anew."""
    task_in(plain, "running", progress=0.5)
    for wrong in ("0.4", "-1", "1.1", "NULL", "'x'", "9e999"):
        refused(plain, f"UPDATE tasks SET progress = {wrong}")  # noqa: S608
    update(plain, progress=1.0)


def test_an_acknowledged_cancel_is_not_taken_back(plain: apsw.Connection) -> None:
    """From the cancel on the task becomes cancelled and nothing else (G6)."""
    task_in(plain, "running")
    update(plain, cancel_requested_at=NOW)
    for change in ({"cancel_requested_at": None}, {"cancel_requested_at": LATER}):
        with pytest.raises(apsw.ConstraintError, match="not taken back"):
            update(plain, **change)
    end = {"lease_owner": None, "outcome": "completed", "completed_at": LATER}
    ends: list[dict[str, str | None]] = [
        {"status": "completed", "output": "1", **end},
        {"status": "failed", **end},
        {"status": "pending", **end, "completed_at": None},
    ]
    for wrong in ends:
        for also in ({}, {"cancel_requested_at": None}):
            with pytest.raises(apsw.ConstraintError):
                update(plain, **wrong, **also)
    update(plain, status="cancelled", **{**end, "outcome": "cancelled"})


@pytest.mark.parametrize(
    "change",
    [
        "status = 'done'",
        "status = NULL",
        "priority = 10",
        "priority = -1",
        "hold = 5",
        "hold = 3",
        "waiting_for = 'timer'",
        "retry_count = 4",
        "retry_count = -1",
        "max_retries = -1",
        "losses = 6",
        "losses = -1",
        "max_losses = 2",
        "run_at = '2026-01-01'",
        "run_at = NULL",
        "timeout = 0",
        "timeout = -1",
        "completed_at = run_at",
        "output = '1'",
        "cancel_requested_at = run_at",
        "lease_owner = 'me'",
        "outcome = 'done'",
        "slot = 1",
        "input = NULL",
        "max_retries = NULL",
    ],
)
def test_a_row_that_contradicts_itself_is_refused(plain: apsw.Connection, change: str) -> None:
    """The columns of a pending task hold what the rest of the house relies on."""
    task_in(plain, "pending")
    refused(plain, f"UPDATE tasks SET {change}")  # noqa: S608 - a test's own text


def test_keys_are_unique(plain: apsw.Connection) -> None:
    """A unique key among the unfinished of a type, an idempotency key among all of a type."""
    task_in(plain, "running", unique_key="k", idempotency_key="i")
    for key in ({"unique_key": "k"}, {"idempotency_key": "i"}):
        with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
            task_in(plain, "pending", "u", **key)
        task_in(plain, "pending", f"other {key}", type="other", **key)
    update(plain, **{**INTO["failed"][1], "outcome": "failed"})
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        task_in(plain, "pending", "u", idempotency_key="i")
    task_in(plain, "pending", "u", unique_key="k")
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        update(plain, status="pending", series=1, error_message=None, completed_at=None)


# ── what is written by itself ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("completed", "completed"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("pending", "retried"),
        ("pending", "released"),
        ("pending", "lost"),
    ],
)
def test_every_end_of_an_attempt_leaves_its_row(plain: apsw.Connection, status: Status, outcome: str) -> None:
    """The row of an ended attempt is written in the same commit by the database, whoever ends it."""
    task_in(plain, "running")
    end: Fields = {
        "status": status,
        "outcome": outcome,
        "lease_owner": None,
        "output": "1" if status == "completed" else None,
        "completed_at": LATER if status in TERMINAL else None,
        "error_type": "ValueError",
        "error_message": "why",
        "traceback": "where",
        "updated_at": LATER,
    }
    if status == "cancelled":
        end["cancel_requested_at"] = NOW
    with pytest.raises(apsw.ConstraintError):
        update(plain, **{**end, "outcome": None})
    update(plain, **end)
    columns = "task_id, attempt, series, owner, started_at, ended_at, outcome, error_type, error_message, traceback"
    assert plain.execute(f"SELECT {columns} FROM attempts").fetchall() == [  # noqa: S608 - a test's own text
        ("t", 1, 0, "me", NOW, LATER, outcome, "ValueError", "why", "where")
    ]


def test_what_did_not_run_leaves_no_attempt(plain: apsw.Connection) -> None:
    """A task that is cancelled or fails before it was claimed had no attempt."""
    task_in(plain, "cancelled")
    task_in(plain, "pending", "u")
    update(plain, "u", status="failed", completed_at=NOW)
    assert count(plain, "attempts") == 0


def test_ended_attempts_and_retries_are_kept_as_they_are(plain: apsw.Connection) -> None:
    """Nobody rewrites or thins out what has happened to a task while the task is there."""
    task_in(plain, "failed")
    update(plain, status="pending", series=1, error_message=None, completed_at=None)
    for table in ("attempts", "retries"):
        refused(plain, f"UPDATE {table} SET series = 7", "never changes")  # noqa: S608
        refused(plain, f"DELETE FROM {table}", "not deleted")  # noqa: S608
    plain.execute("DELETE FROM tasks")
    assert count(plain, "attempts") == count(plain, "retries") == 0


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recorded_step_never_changes(plain: apsw.Connection) -> None:
    """A step is written once: no update, no replacement, no removal while its task may still need it (G2)."""
    task_in(plain, "running")
    insert(plain, "steps", **STEP)
    refused(plain, "UPDATE steps SET value = '2'", "never changes")
    refused(plain, "UPDATE steps SET value = value", "never changes")
    refused(plain, "DELETE FROM steps", "not deleted")
    columns = "seq, history_id, scope, name, occurrence, position, digest, value, task_id, attempt, created_at"
    same = f"'t', '', 'search', 0, 0, 'd', '2', 't', 1, '{NOW}'"
    other = f"'t', '', 'other', 0, 0, 'd', '2', 't', 1, '{NOW}'"
    for verb, values in (("INSERT", f"2, {same}"), ("REPLACE", f"2, {same}"), ("REPLACE", f"1, {other}")):
        refused(plain, f"{verb} INTO steps({columns}) VALUES ({values})", "recorded already")
    assert plain.execute("SELECT name, value FROM steps").fetchall() == [("search", "1")]


@pytest.mark.parametrize("fields", [{"value": None}, {"value": "1", "error": "no"}, {"value": None, "error": None}])
def test_a_step_has_a_value_or_an_error(plain: apsw.Connection, fields: Fields) -> None:
    """One of both, and never neither: None is the value `null`."""
    task_in(plain, "running")
    with pytest.raises(apsw.ConstraintError):
        insert(plain, "steps", **{**STEP, **fields})


def test_steps_go_with_their_task(plain: apsw.Connection) -> None:
    """A finished task that is removed takes its steps along; those of others stay."""
    task_in(plain, "running")
    insert(plain, "steps", **STEP)
    task_in(plain, "running", "u")
    insert(plain, "steps", **{**STEP, "history_id": "u", "task_id": "u"})
    refused(plain, "DELETE FROM tasks", "running task is not deleted")
    update(plain, **{**INTO["failed"][1], "outcome": "failed"})
    plain.execute("DELETE FROM tasks WHERE id = 't'")
    assert plain.execute("SELECT task_id FROM steps").fetchall() == [("u",)]


def test_a_line_of_a_log_stays_as_it_is_and_goes_with_its_task(plain: apsw.Connection) -> None:
    """Nobody rewrites what a body has logged; it is removed when its task has ended, or with the task."""
    task_in(plain, "running")
    for number in (1, 2):
        insert(plain, "logs", **{**LINE, "seq": number})
    refused(plain, "UPDATE logs SET event = 'bye'", "never changes")
    refused(plain, "DELETE FROM logs", "not deleted")
    columns, values = "seq, task_id, attempt, at, level, event, fields", "1, 't', 1, '', '', 'bye', ''"
    refused(plain, f"INSERT OR REPLACE INTO logs({columns}) VALUES ({values})", "not replaced")  # noqa: S608
    with pytest.raises(apsw.ConstraintError):
        plain.execute("INSERT INTO logs SELECT 3, task_id, attempt, at, level, x'ff', fields FROM logs LIMIT 1")
    update(plain, **{**INTO["failed"][1], "outcome": "failed"})
    plain.execute("DELETE FROM logs WHERE seq = 1")
    assert count(plain, "logs") == 1
    plain.execute("DELETE FROM tasks")
    assert count(plain, "logs") == 0


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_with_a_running_task_is_not_deleted(plain: apsw.Connection) -> None:
    """Deleting a session's row takes its tasks and messages along, or nothing of it happens."""
    session(plain)
    task_in(plain, "running", session_id="s")
    task_in(plain, "pending", "u", session_id="s")
    insert(plain, "steps", **STEP)
    insert(plain, "messages", **MESSAGE)
    refused(plain, "DELETE FROM sessions", "running task is not deleted")
    assert [count(plain, table) for table in ("sessions", "tasks", "messages", "steps")] == [1, 2, 1, 1]
    update(plain, **{**INTO["failed"][1], "outcome": "failed"})
    plain.execute("DELETE FROM sessions")
    assert [count(plain, table) for table in ("sessions", "tasks", "messages", "steps", "attempts")] == [0] * 5


def test_a_deleted_session_takes_nothing_new(plain: apsw.Connection) -> None:
    """No new tasks and no new messages; an archived one takes both."""
    session(plain, status="deleted")
    session(plain, "a", status="archived")
    with pytest.raises(apsw.ConstraintError, match="takes no new tasks"):
        task_in(plain, "pending", session_id="s")
    with pytest.raises(apsw.ConstraintError, match="takes no new messages"):
        insert(plain, "messages", **MESSAGE)
    task_in(plain, "pending", session_id="a")
    insert(plain, "messages", **{**MESSAGE, "session_id": "a"})
    for wrong in ("'gone'", "NULL"):
        refused(plain, f"UPDATE sessions SET status = {wrong}")  # noqa: S608


def test_what_names_no_session_is_refused(plain: apsw.Connection) -> None:
    """A task may have no session, but not one that is not there."""
    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        task_in(plain, "pending", session_id="s")
    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        insert(plain, "messages", **MESSAGE)
    task_in(plain, "pending")


@pytest.mark.parametrize(
    "change",
    [
        "seq = 2",
        "id = 'n'",
        "session_id = 'a'",
        "role = 'system'",
        "content = 'bye'",
        "tool_calls = '[1]'",
        "tool_call_id = 'c'",
        "parent_msg_id = 'm'",
        "token_count = 4",
        "payload = '{}'",
        "history_id = 't', write_key = 'k'",
        f"created_at = '{LATER}'",
    ],
)
def test_a_message_never_changes(plain: apsw.Connection, change: str) -> None:
    """What was said was said (G5)."""
    session(plain)
    session(plain, "a")
    insert(plain, "messages", **MESSAGE)
    refused(plain, f"UPDATE messages SET {change}", "a message never changes")  # noqa: S608 - a test's own text
    columns = "seq, id, session_id, role, content, created_at"
    for seq, message in ((1, "n"), (2, "m")):
        with pytest.raises(apsw.ConstraintError, match="not replaced"):
            plain.execute(
                f"REPLACE INTO messages({columns}) VALUES (?, ?, 's', 'user', '', '')",  # noqa: S608 - its own text
                (seq, message),
            )


@pytest.mark.parametrize(
    "wrong",
    [{"role": "robot"}, {"content": None}, {"token_count": -1}, {"write_key": "k"}, {"parent_msg_id": "nobody"}],
)
def test_a_message_that_cannot_be_is_refused(plain: apsw.Connection, wrong: Fields) -> None:
    """Unknown roles, negative counts and parents that are not there."""
    session(plain)
    with pytest.raises(apsw.ConstraintError):
        insert(plain, "messages", **{**MESSAGE, **wrong})


def test_token_usage_is_the_sum(plain: apsw.Connection, db: Path) -> None:
    """Whoever adds or removes messages, `token_usage` is the sum of their `token_count` (G5)."""
    session(plain)
    session(plain, "a")
    for number in range(20):
        insert(plain, "messages", **{**MESSAGE, "id": f"m{number}", "token_count": number})
    insert(plain, "messages", **{**MESSAGE, "session_id": "a"})
    plain.execute("DELETE FROM messages WHERE token_count % 3 = 0 AND session_id = 's'")
    usage = sql(
        db, "SELECT token_usage, (SELECT sum(token_count) FROM messages WHERE session_id = s.id) FROM sessions s"
    )
    assert usage == [[127, 127], [3, 3]]


def test_a_supervisor_that_ended_says_how(plain: apsw.Connection) -> None:
    """Who asks what became of a task's owner is told: the end and its reason stand together."""
    insert(
        plain, "supervisors", id="o", boot_id="", pid=1, pid_namespace="", start_time=0, host="", lock_name="",
        version="", expires_at=0, started_at=NOW, beat_at=NOW,
    )  # fmt: skip
    refused(plain, f"UPDATE supervisors SET ended_at = '{LATER}'")  # noqa: S608 - a test's own text
    refused(plain, "UPDATE supervisors SET ended_how = 'it was stopped'")
