"""`doctor --invariants`: a sound store breaks none, and each is found when somebody has written past the rules."""
# ruff: noqa: S608 - every statement is put together of the tests' own texts

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import apsw
import pytest

from taskrunner.chaos.disk.verbs import VERBS, build
from taskrunner.storage.health import Breach, Health, invariants
from tests.stores import NOW, StillClock, claim, end, new_task, open_store, register, sql
from tests.unit.plain_round import fill, record_a_step_of_every_other
from tests.unit.plain_sql import insert, task_in
from tests.unit.test_storage_rules import LINE, MESSAGE, STEP, session

DONE = "id = 'done'"
ATTEMPT = "INSERT INTO attempts(task_id, attempt, series, owner, started_at, ended_at, outcome) VALUES"
COPY = (
    "INSERT INTO tasks(id, type, max_retries, max_losses, run_at, history_id, created_at, updated_at, {0})"
    " SELECT 'copy', type, 3, 5, run_at, 'copy', created_at, updated_at, {0} FROM tasks WHERE id = 'pending'"
)
LATER_BY_TWO_MINUTES = "2026-01-01T00:02:00.000000Z"
AGAIN = (
    "INSERT INTO messages(id, session_id, role, content, token_count, history_id, write_key, created_at)"
    " SELECT 'n', session_id, role, content, 0, history_id, write_key, created_at FROM messages"
)

BROKEN: dict[str, list[tuple[str, str, str]]] = {
    "I2 one task for a key": [
        (COPY.format("idempotency_key"), "copy", "its idempotency_key is held by 2 tasks of type job"),
        (COPY.format("unique_key"), "copy", "its unique_key is held by 2 unfinished tasks of type job"),
    ],
    "I4 ended once": [
        (f"UPDATE tasks SET completed_at = NULL WHERE {DONE}", "done", "it is completed, and completed_at is empty"),
        (
            f"UPDATE tasks SET completed_at = '{NOW}' WHERE id = 'pending'",
            "pending",
            f"it is pending, and completed_at is {NOW}",
        ),
        (f"{ATTEMPT} ('done', 2, 0, 'me', '{NOW}', '{NOW}', 'failed')", "done", "it has ended 2 times in its series 0"),
    ],
    "I5 the end is final": [
        (
            f"{ATTEMPT} ('done', 2, 0, 'me', '{NOW}', '{NOW}', 'lost')",
            "done",
            "its attempt 2 began after it had ended in the same series",
        ),
        (
            "UPDATE tasks SET status = 'pending' WHERE id = 'failed'",
            "failed",
            "it is pending again after it had ended in the same series",
        ),
        (
            "UPDATE tasks SET series = 1 WHERE id = 'failed'",
            "failed",
            "it is in series 1, and there is a record of 0 retries",
        ),
    ],
    "I7 a step has one result": [
        ("UPDATE steps SET value = NULL", "running", "its step search has neither a value nor an error"),
        ("UPDATE steps SET error = 'why'", "running", "its step search has a value and an error"),
        ("UPDATE steps SET value = '{'", "running", "the value of its step search is no JSON"),
    ],
    "I8 completed with a result": [
        (f"UPDATE tasks SET output = NULL WHERE {DONE}", "done", "it is completed, and its output is missing"),
        ("UPDATE tasks SET output = '1' WHERE id = 'failed'", "failed", "it is failed, and its output is there"),
        (f"UPDATE tasks SET output = 'x' WHERE {DONE}", "done", "its output is no JSON"),
        ("DELETE FROM attempts WHERE task_id = 'done'", "done", "it is completed, and no attempt of its was"),
    ],
    "I9 one open attempt": [
        (
            f"{ATTEMPT} ('running', 1, 0, 'me', '{NOW}', '{NOW}', 'lost')",
            "running",
            "its attempt 1 is running, and has ended",
        )
    ],
    "I10 running has an owner": [
        (
            "UPDATE tasks SET lease_owner = NULL WHERE id = 'running'",
            "running",
            "it is running, and its owner is nobody",
        ),
        (f"UPDATE tasks SET lease_owner = 'me' WHERE {DONE}", "done", "it is completed, and its owner is me"),
        ("UPDATE tasks SET started_at = NULL WHERE id = 'running'", "running", "it is running, and has not started"),
    ],
    "I11 every attempt has its row": [
        (
            "UPDATE tasks SET attempt = 3 WHERE id = 'running'",
            "running",
            "it is running at attempt 3, and 0 attempts have ended, the last of them number 0",
        ),
        (
            "DELETE FROM attempts WHERE task_id = 'failed'",
            "failed",
            "it is failed at attempt 1, and 0 attempts have ended, the last of them number 0",
        ),
    ],
    "I12 nothing from a foreign attempt": [
        (
            "UPDATE steps SET attempt = 2",
            "running",
            "its step search was recorded by attempt 2, and it is at attempt 1",
        ),
        (
            "UPDATE steps SET attempt = 0",
            "running",
            "its step search was recorded by attempt 0, and it is at attempt 1",
        ),
        ("UPDATE logs SET attempt = 2", "running", "its log has lines of attempt 2, and it is at attempt 1"),
    ],
    "I15 retries and losses within bounds": [
        (
            "UPDATE tasks SET retry_count = 4 WHERE id = 'pending'",
            "pending",
            "it was retried 4 times, and may be 3 times",
        ),
        ("UPDATE tasks SET losses = 6 WHERE id = 'running'", "running", "it has 6 losses, and may have 5"),
        (
            "UPDATE tasks SET losses = 5 WHERE id = 'pending'",
            "pending",
            "it is pending after 5 losses, the most that it may have",
        ),
    ],
    "I16 not before its time": [
        (
            f"UPDATE tasks SET run_at = '{LATER_BY_TWO_MINUTES}' WHERE id = 'running'",
            "running",
            f"it was started at {NOW}, and was due at {LATER_BY_TWO_MINUTES}",
        )
    ],
    "I17 progress within bounds": [
        ("UPDATE tasks SET progress = 1.5 WHERE id = 'running'", "running", "it is running with a progress of 1.5"),
        (f"UPDATE tasks SET progress = 0.5 WHERE {DONE}", "done", "it is completed with a progress of 0.5"),
    ],
    "I18 cancelled never completes": [
        (
            f"UPDATE tasks SET cancel_requested_at = '{NOW}' WHERE {DONE}",
            "done",
            f"it is completed, and its cancel was acknowledged at {NOW}",
        )
    ],
    "I19 messages hang together": [
        ("UPDATE messages SET parent_msg_id = 'nobody'", "m", "its parent_msg_id nobody is no earlier message"),
        ("UPDATE sessions SET token_usage = 7", "s", "its token_usage is 7, and its messages have 3"),
    ],
    "I20 a message is written once": [(AGAIN, "m", "it was written 2 times under one key of its task")],
    "I23 a child has its parent": [
        (
            "UPDATE tasks SET parent_task_id = 'nobody' WHERE id = 'pending'",
            "pending",
            "its parent_task_id nobody is no task",
        )
    ],
    "I26 nothing is left behind": [
        ("UPDATE steps SET task_id = 'gone'", "gone", "steps of it are there, and the task is not"),
        ("UPDATE logs SET task_id = 'gone'", "gone", "lines of its log are there, and the task is not"),
        (
            f"{ATTEMPT} ('gone', 1, 0, 'me', '{NOW}', '{NOW}', 'lost')",
            "gone",
            "attempts of it are there, and the task is not",
        ),
        (
            f"INSERT INTO retries(task_id, series, from_status, retried_at) VALUES ('gone', 1, 'failed', '{NOW}')",
            "gone",
            "retries of it are there, and the task is not",
        ),
        ("UPDATE messages SET session_id = 'gone'", "gone", "messages of it are there, and the session is not"),
        ("UPDATE tasks SET session_id = 'gone' WHERE id = 'pending'", "pending", "its session_id gone is no session"),
        ("INSERT INTO removals VALUES ('pending')", "pending", "it is being removed, and has not ended"),
    ],
    "I28 everyone stands in one line": [
        (
            "UPDATE tasks SET hold = 3 WHERE id = 'pending'",
            "pending",
            "it is pending with hold 3, and waits for nothing",
        ),
        (
            "UPDATE tasks SET hold = 3, waiting_for = 'timer' WHERE id = 'running'",
            "running",
            "it is running with hold 3, and waits for timer",
        ),
        (
            "UPDATE tasks SET priority = 10 WHERE id = 'pending'",
            "pending",
            "its queue, priority or time is out of bounds",
        ),
    ],
}
"""By invariant: what somebody has done to the file, whose row is wrong then, and what is said of it."""


def world(plain: apsw.Connection) -> None:
    """A task in every state, a step, a log line and a message; and none of the rules that keep them so."""
    session(plain)
    task_in(plain, "pending", "pending", idempotency_key="i", unique_key="k")
    task_in(plain, "running", "running")
    task_in(plain, "completed", "done", progress=1.0)
    task_in(plain, "failed", "failed")
    task_in(plain, "cancelled", "cancelled")
    insert(plain, "steps", **{**STEP, "history_id": "running", "task_id": "running"})
    insert(plain, "logs", **{**LINE, "task_id": "running"})
    insert(plain, "messages", **{**MESSAGE, "history_id": "h", "write_key": "1"})


def without_rules(plain: apsw.Connection) -> None:
    """Whatever is written from now on, nothing refuses it."""
    names = plain.execute(
        "SELECT type, name FROM sqlite_schema WHERE type = 'trigger'"
        " OR name IN ('tasks_unique', 'tasks_idempotency', 'messages_write')"
    ).fetchall()
    for kind, name in names:
        plain.execute(f"DROP {kind} {name}")
    plain.execute("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")


async def breaches(db: Path) -> list[Breach]:
    """What does not hold."""
    async with open_store(db, writing=False) as store:
        return await Health(store.engine).invariants()


def test_every_invariant_is_broken_once() -> None:
    """No invariant is shipped that cannot be seen to fail."""
    assert list(BROKEN) == list(invariants().values())


CASES = [(statement, Breach(title, task, says)) for title, cases in BROKEN.items() for statement, task, says in cases]


@pytest.mark.parametrize(("statement", "breach"), CASES)
def test_a_breach_is_found(plain: apsw.Connection, db: Path, statement: str, breach: Breach) -> None:
    """Somebody writes past the rules: the invariant that it breaks names the row, and says what is wrong with it."""
    world(plain)
    without_rules(plain)
    plain.execute(statement)
    assert breach in anyio.run(breaches, db)


def test_a_sound_store_breaks_none(plain: apsw.Connection, db: Path) -> None:
    """Tasks in every state."""
    world(plain)
    assert anyio.run(breaches, db) == []


def test_a_full_store_breaks_none(plain: apsw.Connection, db: Path) -> None:
    """Rows of every kind, many of each."""
    fill(plain, 50)
    record_a_step_of_every_other(plain)
    plain.execute("UPDATE tasks SET parent_task_id = NULL")
    assert anyio.run(breaches, db) == []


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_keeps_them(db: Path, verb: str) -> None:
    """Whatever is done to a store by taskrunner itself, none is broken after it."""
    made = await build(db)
    async with open_store(db) as store:
        await VERBS[verb](store, made)
        assert await Health(store.engine).invariants() == []


@pytest.mark.parametrize("end_first", ["", "lost", "released", "retried", "failed"])
async def test_a_clock_that_was_set_back_breaks_none(db: Path, end_first: str) -> None:
    """A task that was due already is started by the clock of an hour ago: for the first time or again (I16)."""
    clock = StillClock()
    async with open_store(db, clock=clock) as store:
        await register(store, "me")
        await store.tasks.enqueue(new_task())
        if end_first:
            [task] = await claim(store)
            if end_first == "lost":
                await store.tasks.lose("me", [task.fence], "it fell")
            else:
                await end(store, task, end_first)
            if end_first == "failed":
                await store.tasks.retry(task.id)
        clock.moment -= timedelta(hours=1)
        assert len(await claim(store)) == 1
        assert await Health(store.engine).invariants() == []


@pytest.mark.parametrize("earlier", [0, 1])
async def test_one_that_is_started_before_its_time_is_found(db: Path, earlier: int) -> None:
    """A delayed task, and one whose retry has to wait, are started too early by somebody: I16 says so."""
    clock = StillClock()
    async with open_store(db, clock=clock) as store:
        await register(store, "me")
        if earlier:
            await store.tasks.enqueue(new_task())
            [task] = await claim(store)
            fail = store.tasks.fail(task.fence, error_type="E", error_message="why", retry_in=600.0)
            await store.tasks.end(task.fence, fail)
        else:
            await store.tasks.enqueue(new_task(run_at=clock.now() + timedelta(minutes=10)))
        sql(db, "UPDATE tasks SET hold = 0")
        assert len(await claim(store)) == 1
        assert [breach.invariant for breach in await Health(store.engine).invariants()] == ["I16 not before its time"]
