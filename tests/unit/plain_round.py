"""A store full of rows, and a round of every hot statement, each about a handful of them."""

from __future__ import annotations

from typing import Final

import apsw

from taskrunner.storage.engine import Value, load_queries
from tests.stores import LATER, NOW

QUERIES: Final = load_queries("sqlite")

_FILL: Final = """
WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < :rows),
kinds(name, run_at, queue, hold, waiting_for) AS (VALUES
  ('done', :now, 'default', 0, NULL), ('run', :now, 'default', 0, NULL), ('else', :now, 'elsewhere', 0, NULL),
  ('late', '2999-01-01T00:00:00.000000Z', 'default', 1, NULL), ('wait', :now, 'default', 3, 'worker:unknown'))
INSERT INTO tasks(id, history_id, type, max_retries, max_losses, created_at, updated_at, session_id, parent_task_id,
                  run_at, queue, hold, waiting_for)
SELECT name || n, name || n, 'job', 3, 5, :now, :now, 't', 'parent', run_at, queue, hold, waiting_for FROM kinds, n;

WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < :rows)
INSERT INTO messages(id, session_id, role, content, created_at) SELECT 'm' || n, 't', 'user', '', :now FROM n;

UPDATE tasks SET status = 'running', lease_owner = 'living', attempt = 1, started_at = :now
WHERE id GLOB 'done*' OR id GLOB 'run*';
UPDATE tasks SET status = 'completed', outcome = 'completed', lease_owner = NULL, output = '1', progress = 1,
  completed_at = :now
WHERE id GLOB 'done*';

WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < :rows)
INSERT INTO steps(history_id, scope, name, occurrence, position, digest, value, task_id, attempt, created_at)
SELECT 'run1', '', 'x', n, n, '', '1', 'run1', 1, :now FROM n;

WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < :rows)
INSERT INTO logs(task_id, attempt, at, level, event, fields) SELECT 'run1', 1, :now, 'info', 'x', '{}' FROM n;

INSERT INTO tasks(id, history_id, type, max_retries, max_losses, created_at, updated_at, run_at, session_id)
SELECT column1, column1, 'job', 3, 5, :now, :now, :now, 's' FROM (VALUES ('a'), ('b'), ('c'), ('d'));
"""
_MORE: Final = """
WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < :rows)
INSERT INTO tasks(id, history_id, type, max_retries, max_losses, created_at, updated_at, run_at, hold)
SELECT 'more' || n, 'more' || n, 'job', 3, 5, :now, :now,
  CASE WHEN n % 11 = 0 THEN '2999-01-01T00:00:00.000000Z' ELSE :now END, CASE WHEN n % 11 = 0 THEN 1 ELSE 0 END FROM n;
UPDATE tasks SET status = 'running', lease_owner = 'living', attempt = 1, started_at = :now
WHERE id GLOB 'more*' AND hold = 0;
UPDATE tasks SET status = 'completed', outcome = 'completed', lease_owner = NULL, output = '1', progress = 1,
  completed_at = :now
WHERE id GLOB 'more*' AND hold = 0;
"""
_AROUND: Final = """
INSERT INTO supervisors(id, boot_id, pid, pid_namespace, start_time, host, lock_name, version, expires_at, started_at,
                        beat_at)
SELECT column1, 'boot', 1, '', 0, '', '', '', 9e18, :now, :now FROM (VALUES ('me'), ('living'), ('other'));
INSERT INTO sessions(id, created_at, updated_at) VALUES ('s', :now, :now), ('t', :now, :now);
"""


def fill(connection: apsw.Connection, rows: int) -> None:
    """So many tasks of every kind, steps, log lines and messages, around the four tasks and the session of `ROUND`.

    The running ones belong to a living owner; their first one has all the steps and lines.
    """
    with connection:
        connection.execute(_AROUND, {"now": NOW}).fetchall()
        connection.execute(_FILL, {"now": NOW, "rows": rows}).fetchall()


def add_finished_and_scheduled(connection: apsw.Connection, rows: int) -> None:
    """So many finished tasks more, and a tenth as many that are due in a far future."""
    with connection:
        connection.execute(_MORE, {"now": NOW, "rows": rows}).fetchall()


def record_a_step_of_every_other(connection: apsw.Connection) -> None:
    """Of the running tasks, half have recorded a step."""
    connection.execute(
        "INSERT INTO steps(history_id, scope, name, occurrence, position, digest, value, task_id, attempt, created_at) "
        "SELECT id, '', 'first', 0, 0, '', '1', id, 1, created_at FROM tasks WHERE status = 'running' AND seq % 2"
    )


_FENCE: dict[str, Value] = {"task": "a", "owner": "me", "attempt": 1, "now": LATER}
_NEW: dict[str, Value] = dict.fromkeys(QUERIES["enqueue_keyed"].names) | {
    "id": "new", "type": "job", "input": "{}", "run_at": NOW, "now": NOW, "default_retries": 3, "default_losses": 5,
}  # fmt: skip
_KEYED: dict[str, Value] = {**_NEW, "unique_key": "k", "idempotency_key": "i", "on_conflict": "reuse"}
_PAGE: dict[str, Value] = dict.fromkeys(QUERIES["tasks_by_status"].names) | {
    "limit": 5,
    "after": 4_000_000,
    "after_at": LATER,
}

ROUND: Final[list[tuple[str, dict[str, Value]]]] = [
    ("claimable_queues", {}),
    ("next_due", {}),
    ("promote_due", {"now": NOW}),
    ("recover", {"now": NOW}),
    ("claim", {"owner": "me", "queue": "default", "slots": 3, "now": NOW}),
    ("claim_suspect", {"owner": "me", "slots": 9, "now": NOW, "known": "[]", "only": None}),
    ("claim_signs", {"known": "[]", "only": None}),
    ("claim_put_back", {"owner": "me", "queue": None, "slots": 9, "now": NOW, "waiting_for": "worker:job"}),
    ("cancel_requests", {"owner": "me"}),
    ("fence", _FENCE),
    ("progress", {**_FENCE, "progress": 0.5, "message": "half"}),
    ("record_step", {**_FENCE, "scope": "", "name": "x", "occurrence": 0, "position": 0, "turn": 0, "digest": "",
                     "value": "1", "error_type": None, "error": None}),
    ("add_log_lines", {**_FENCE, "lines": '[["2026", "info", "x", "{}"], ["2026", "info", "y", "{}"]]'}),
    ("log_lines_after", {"task": "a", "after": 0}),
    ("steps", {"history_id": "a"}),
    ("complete", {**_FENCE, "output": "1"}),
    ("fail", {**_FENCE, "task": "b", "error_type": "E", "error_message": "e", "traceback": None, "final": 0,
              "run_at": LATER}),
    ("attempts", {"task": "a"}),
    ("retry", {"task": "b", "now": LATER}),
    ("retries", {"task": "b"}),
    ("steps_after", {"history_id": "b", "after": 0}),
    ("release", {**_FENCE, "task": "c", "waiting_for": "worker:job"}),
    ("cancel", {"task": "c", "now": LATER, "reason": None}),
    ("enqueue", {**_NEW, "id": "plain"}),
    ("enqueue_keyed", _KEYED),
    ("enqueue_keyed", {**_KEYED, "id": "new 2"}),
    ("enqueue_keyed", {**_KEYED, "id": "new 3", "idempotency_key": None, "on_conflict": "replace"}),
    ("enqueue_keyed", {**_KEYED, "id": "new 4", "idempotency_key": None, "on_conflict": "reject"}),
    ("task_by_unique_key", {"type": "job", "unique_key": "k"}),
    ("task", {"id": "new"}),
    ("task_status", {"id": "new"}),
    ("beat", {"id": "me", "now": NOW, "expires_at": 1}),
    ("living_owner", {"owner": "me"}),
    ("bury_expired", {"now": NOW, "boot_id": "boot", "monotonic": 0, "self": "me"}),
    ("bury", {"id": "other", "now": NOW, "how": "gone"}),
    ("session", {"id": "s"}),
    ("add_message", dict.fromkeys(QUERIES["add_message"].names) | {
        "id": "m", "session_id": "s", "role": "user", "content": "", "tool_calls": "[]", "token_count": 1, "now": NOW}),
    ("recent_messages", {"session_id": "s", "limit": 5}),
    ("recent_messages", {"session_id": "t", "limit": 5}),
    ("tasks_newest", _PAGE),
    ("tasks_by_status", {**_PAGE, "status": "completed", "after": None}),
    ("task_ids_by_status", {**_PAGE, "status": "completed"}),
    ("task_standing", {"id": "d", "most": 5}),
    ("tasks_by_session", {**_PAGE, "session_id": "s"}),
    ("tasks_by_parent", {**_PAGE, "parent_task_id": "parent"}),
    ("finished_before", {"status": "completed", "before": LATER, "created_at": "", "seq": 0, "limit": 5, "most": 5}),
    ("remove_tasks", {"ids": '["done1", "done2", "done3"]', "before": LATER}),
    ("begin_removal", {"id": "done4", "before": LATER}),
    ("removals", {"limit": 5}),
    ("steps_to_remove", {"history_id": "run1", "limit": 5}),
    ("remove_steps", {"history_id": "run1", "limit": 5}),
    ("remove_log_lines", {"task": "run1", "limit": 5}),
    ("end_removal", {"id": "done4"}),
]  # fmt: skip

_SELF: dict[str, Value] = {
    **dict.fromkeys(QUERIES["register_supervisor"].names, ""), "id": "new", "pid": 1, "start_time": 0, "expires_at": 1,
    "now": NOW,
}  # fmt: skip
START_UP: Final[list[tuple[str, dict[str, Value]]]] = [
    ("forget_writers", {"before": NOW}),
    ("schema_version", {}),
    ("register_supervisor", _SELF),
    ("forget_supervisors", {"before": NOW}),
    ("register_type", {"name": "job", "queue": "default", "priority": 5, "max_retries": None, "timeout": None,
                       "max_losses": None, "now": NOW}),
    ("mark_commit", {"id": "w", "token": 1, "opened_at": NOW}),
    ("living_supervisors", {}),
    ("bury", {"id": "living", "how": "killed", "now": NOW}),
    ("bury_expired", {"now": NOW, "boot_id": "boot", "monotonic": 0, "self": "me"}),
    ("living_owner", {"owner": "me"}),
    ("promote_due", {"now": NOW}),
    ("recover", {"now": NOW}),
    ("claim", {"owner": "me", "queue": "default", "slots": 64, "now": NOW}),
    ("claimable_queues", {}),
    ("next_due", {}),
    ("cancel_requests", {"owner": "me"}),
    ("waiting_counts", {}),
    ("due_counts", {}),
    ("running_counts", {}),
    ("finished_before", {"status": "completed", "before": NOW, "created_at": "", "seq": 0, "limit": 5, "most": 5}),
]  # fmt: skip
"""What a supervisor does from its start to its first tasks, after another one has died, and what `stats` asks."""
