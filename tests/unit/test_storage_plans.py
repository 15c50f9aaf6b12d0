"""How SQLite goes about the hot statements: by an index, however many rows there are, with statistics and without."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from taskrunner.storage.engine import Value
from taskrunner.storage.health import invariants
from tests.stores import NOW, bare, claim, open_store, sql
from tests.unit.plain_round import (
    QUERIES,
    ROUND,
    START_UP,
    add_finished_and_scheduled,
    fill,
    record_a_step_of_every_other,
)

BY_ID = "tasks USING COVERING INDEX sqlite_autoindex_tasks_1 (id=?)"
INDEX: dict[str, list[str]] = {
    "claim": ["INDEX tasks_claim (queue=?)", "INDEX tasks_running (lease_owner=?)", BY_ID],
    "claim_suspect": ["INDEX tasks_suspects", "INDEX tasks_running (lease_owner=?)", BY_ID],
    "claim_signs": ["INDEX tasks_suspects"],
    "suspect_count": ["INDEX tasks_suspects"],
    "limit_queue": [],
    "pause_queue": [],
    "resume_queue": ["queues USING PRIMARY KEY (name=?)"],
    "claim_put_back": ["INDEX tasks_waiting (waiting_for=?)", "INDEX tasks_running (lease_owner=?)", BY_ID],
    "promote_due": ["INDEX tasks_due (run_at<?)", BY_ID],
    "recover": ["INDEX tasks_running (lease_owner=?)", "INDEX sqlite_autoindex_steps_1", "tasks_1 (id=?)"],
    "claimable_queues": ["INDEX tasks_claim"],
    "next_due": ["INDEX tasks_due"],
    "cancel_requests": ["INDEX tasks_running (lease_owner=?)"],
    "steps": ["sqlite_autoindex_steps_1 (history_id=?)"],
    "attempts": ["sqlite_autoindex_attempts_1 (task_id=?)"],
    "enqueue": [],
    "enqueue_keyed": [],
    "task_by_unique_key": ["INDEX tasks_unique (type=? AND unique_key=?)"],
    "tasks_newest": ["tasks USING INTEGER PRIMARY KEY"],
    "tasks_by_status": ["INDEX idx_tasks_status (status=?"],
    "task_ids_by_status": ["INDEX idx_tasks_status (status=?"],
    "task_at": ["tasks USING INTEGER PRIMARY KEY"],
    "task_standing": ["sqlite_autoindex_tasks_1 (id=?)", "INDEX tasks_claim (queue=?"],
    "retry": ["sqlite_autoindex_tasks_1 (id=?)", "INDEX tasks_unique (type=? AND unique_key=?)"],
    "add_log_lines": ["sqlite_autoindex_tasks_1 (id=?)"],
    "log_lines_after": ["INDEX logs_of_task (task_id=? AND seq>?)"],
    "retries": ["sqlite_autoindex_retries_1 (task_id=?)"],
    "steps_after": ["sqlite_autoindex_steps_1 (history_id=?)"],
    "stats_statuses": ["COVERING INDEX idx_tasks_status (status=?)", "COVERING INDEX idx_tasks_status (status>?)"],
    "stats_types": ["INDEX idx_tasks_status (status=?)"],
    "stats_due": ["COVERING INDEX tasks_claim (queue=?)", "COVERING INDEX tasks_claim (queue>?)"],
    "stats_running": ["INDEX tasks_running"],
    "stats_delayed": ["COVERING INDEX tasks_due"],
    "stats_waiting": ["COVERING INDEX tasks_waiting"],
    "stats_oldest": ["INDEX idx_tasks_status (status=?)"],
    "tasks_by_session": ["INDEX idx_tasks_session (session_id=?)"],
    "tasks_by_parent": ["INDEX tasks_parent (parent_task_id=?"],
    "recent_messages": ["INDEX messages_order (session_id=?)"],
    "add_message": ["INDEX messages_order (session_id=?)"],
    "session": ["sqlite_autoindex_sessions_1 (id=?)"],
    "beat": ["PRIMARY KEY (id=?)"],
    "bury": ["PRIMARY KEY (id=?)"],
    "bury_expired": [],
    "living_owner": [],
    "waiting_counts": ["INDEX tasks_waiting"],
    "due_counts": ["INDEX tasks_claim"],
    "due_since": ["INDEX tasks_claim (queue=? AND priority=?)", "INDEX tasks_due (run_at<?)"],
    "running_counts": ["INDEX tasks_running"],
    "task_counts": ["COVERING INDEX idx_tasks_status"],
    "finished_before": [
        *("INDEX idx_tasks_status (status=? AND ", "INDEX tasks_parent (parent_task_id=?)", "tasks_1 (id=?)"),
        *("sqlite_autoindex_steps_1 (history_id=?)", "sqlite_autoindex_attempts_1 (task_id=?)"),
        "COVERING INDEX logs_of_task (task_id=?)",
    ],
    "remove_tasks": [
        "INDEX tasks_parent (parent_task_id=?)",
        "SEARCH tasks USING INDEX sqlite_autoindex_tasks_1 (id=?)",
    ],
    "begin_removal": ["tasks_1 (id=?)"],
    "removals": ["SCAN removals", "tasks_1 (id=?)"],
    "steps_to_remove": ["sqlite_autoindex_steps_1 (history_id=?)"],
    "remove_steps": ["sqlite_autoindex_steps_1 (history_id=? AND scope=? AND name=? AND occurrence=?)"],
    "remove_log_lines": ["INDEX logs_of_task (task_id=? AND seq=?)"],
    "end_removal": ["tasks_1 (id=?)"],
    **{
        name: ["sqlite_autoindex_tasks_1 (id=?)"]
        for name in (
            *("complete", "fail", "release", "cancelled", "progress", "cancel", "record_step", "fence"),
            *("task", "task_status", "task_place", "task_raw", "unretried"),
        )
    },
}
"""What a statement has to go by."""

SMALL = re.compile(
    r"SCAN (supervisors|queues|names|priorities|heads|owners|orphans|removals|waiting|json_each|"
    r"\(subquery|(\d+ )?CONSTANT ROWS?)"
)
"""Scans of what is small by nature: a row for each supervisor or queue, and results of the statement itself."""

PARTIAL = re.compile(
    r"SCAN tasks USING (COVERING )?INDEX (tasks_(running|claim|due|waiting|suspects)|idx_tasks_status)$"
)
"""Scans of a partial index that holds just the rows that are asked for, and the count of all of them."""

BY_TRIGGER = {"remove_tasks", "end_removal"}
"""What triggers and cascades delete for them goes by the statistics; `doctor` says when these are out of date."""

FEW, MANY = 5, 4_000


@pytest.mark.parametrize("rows", [0, 1, FEW, MANY])
@pytest.mark.parametrize("analyzed", [False, True])
def test_hot_statements_go_by_their_index(plain: apsw.Connection, rows: int, analyzed: bool) -> None:
    """Every statement of the loops goes by the index made for it, and none scans tasks, steps or messages."""
    if rows:
        fill(plain, rows)
    if analyzed:
        plain.execute("ANALYZE").fetchall()
    for name, indexes in INDEX.items():
        query = QUERIES[name]
        plan = plain.execute(f"EXPLAIN QUERY PLAN {query.sql}", [None] * len(query.names)).fetchall()
        lines = [str(row[3]) for row in plan]
        for index in indexes:
            assert any(index in line for line in lines), f"{name}: {lines} without {index}"
        scans = [line for line in lines if line.startswith("SCAN ")]
        wrong = [line for line in scans if not SMALL.match(line) and not PARTIAL.match(line)]
        assert not wrong, f"{name}: {wrong}"
        assert not any("AUTOMATIC" in line and "orphans" not in line for line in lines), f"{name}: {lines}"


def test_every_statement_is_known_to_these_tests() -> None:
    """A new statement has to say here how it goes about its work."""
    cold = {
        "create_session", "foreign_key_check", "forget_queue", "forget_supervisors", "forget_writer",
        "forget_writers", "has_statistics", "integrity_check", "last_commit", "left_children", "living_supervisors",
        "lose", "mark_commit", "queue_is_known", "queues", "record_children", "record_migration",
        "redact", "redactions",
        "register_supervisor", "register_type", "schema_objects", "schema_version", "sessions_newest",
        "set_aside_unreadable", "statistics", "supervisors", "table_sizes", "task_ids", *invariants(),
    }  # fmt: skip
    assert set(QUERIES) == set(INDEX) | cold


def effort(connection: apsw.Connection, round_: list[tuple[str, dict[str, Value]]]) -> dict[str, int]:
    """How many steps SQLite's machine takes for each statement of a round, its triggers' included."""
    steps: dict[str, int] = {}
    seen: list[int] = []

    def traced(event: dict[str, Any]) -> None:
        seen.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, traced)
    for number, (name, params) in enumerate(round_):
        query = QUERIES[name]
        seen.clear()
        connection.execute(query.sql, query.bind(params)).fetchall()
        steps[f"{name} {number}"] = seen[-1]
    connection.trace_v2(0, None)
    return steps


@pytest.mark.parametrize("analyzed", [None, "full", "when young"])
def test_hot_statements_cost_the_same_among_few_and_many_rows(tmp_path: Path, analyzed: str | None) -> None:
    """The steps that SQLite takes for a round of work do not grow with what else the file holds."""
    efforts = []
    for rows in (FEW, MANY):
        connection = bare(tmp_path / f"{rows}.db")
        if analyzed == "when young":
            fill(connection, 1)
            connection.execute("ANALYZE; DELETE FROM tasks WHERE status <> 'running'").fetchall()
            connection.execute(
                "UPDATE tasks SET status = 'failed', outcome = 'failed', completed_at = updated_at, lease_owner = NULL"
            )
            connection.execute("DELETE FROM tasks; DELETE FROM messages; DELETE FROM sessions; DELETE FROM supervisors")
        fill(connection, rows)
        if analyzed == "full":
            connection.execute("ANALYZE").fetchall()
        round_ = [each for each in ROUND if analyzed != "when young" or each[0] not in BY_TRIGGER]
        efforts.append(effort(connection, round_))
        connection.close()
    few, many = efforts
    assert {name: (few[name], many[name]) for name in few if many[name] > 1.5 * few[name] + 100} == {}


@pytest.mark.parametrize("analyzed", [False, True])
def test_start_up_and_recovery_do_not_look_at_what_is_finished(tmp_path: Path, analyzed: bool) -> None:
    """Beside many finished and many scheduled tasks a start, a recovery and a claim take as many steps (B48)."""
    efforts = []
    for rows in (1, 11_000):
        connection = bare(tmp_path / f"{rows}.db")
        fill(connection, 10)
        add_finished_and_scheduled(connection, rows)
        if analyzed:
            connection.execute("ANALYZE").fetchall()
        efforts.append(effort(connection, START_UP))
        connection.close()
    few, many = efforts
    assert {name: (few[name], many[name]) for name in few if many[name] > 1.5 * few[name] + 100} == {}


async def test_five_thousand_orphans_are_put_back_in_chunks_of_milliseconds(db: Path) -> None:
    """After the death of a large supervisor the next claims bring its tasks back, a thousand at a time."""
    connection = bare(db)
    fill(connection, 5_000)
    record_a_step_of_every_other(connection)
    connection.execute("UPDATE tasks SET losses = 2 WHERE status = 'running'")
    connection.execute("UPDATE supervisors SET ended_at = ?, ended_how = 'killed' WHERE id = 'living'", (NOW,))
    connection.close()
    found: list[int] = [-1]
    took: list[float] = []
    async with open_store(db) as store:
        while found[-1]:
            began = time.perf_counter()
            found.append(len((await store.tasks.claim("me", ["none"], 1)).recovered))
            took.append(time.perf_counter() - began)
        assert len(await claim(store)) == 64
    assert found[1:] == [*[1_000] * 5, 0]
    assert max(took) < 1, took  # 25 ms on a quiet machine
    assert sql(
        db, "SELECT losses, count(*) FROM tasks WHERE attempt > 0 AND status <> 'completed' GROUP BY losses"
    ) == [
        [1, 2_500],
        [3, 2_500],
    ]
    assert sql(db, "SELECT outcome, count(*), count(DISTINCT task_id) FROM attempts GROUP BY outcome") == [
        ["completed", 5_000, 5_000],
        ["lost", 5_000, 5_000],
    ]
