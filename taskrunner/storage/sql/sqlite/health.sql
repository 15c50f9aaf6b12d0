-- What `doctor` asks. Each looks at a part of the file that an index covers, except for the check of the whole.

-- Every page and every row, and each index against its table; the first 50 troubles, or `ok`.
-- name: integrity_check
PRAGMA integrity_check(50)

-- name: foreign_key_check
PRAGMA foreign_key_check

-- name: schema_version
PRAGMA user_version

-- What the file is made of, but for what SQLite makes by itself.
-- name: schema_objects
SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY type, name

-- name: has_statistics
SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat1'

-- How many rows a table had when somebody's ANALYZE looked at it.
-- name: statistics
SELECT tbl, max(CAST(stat AS INTEGER)) FROM sqlite_stat1 WHERE tbl IN ('tasks', 'steps', 'messages', 'attempts', 'logs') GROUP BY tbl

-- name: table_sizes
SELECT 'tasks', count(*) FROM tasks UNION ALL SELECT 'steps', count(*) FROM steps
UNION ALL SELECT 'messages', count(*) FROM messages UNION ALL SELECT 'attempts', count(*) FROM attempts
UNION ALL SELECT 'logs', count(*) FROM logs
-- What pending tasks wait for, when it is not their turn.
-- name: waiting_counts
SELECT waiting_for, count(*) FROM tasks INDEXED BY tasks_waiting WHERE status = 'pending' AND hold = 3 GROUP BY waiting_for

-- Tasks that could be claimed now, by queue.
-- name: due_counts
SELECT queue, count(*) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0 GROUP BY queue

-- Since when the task that is due and waits has done so, by queue: of those that are first in line, for their queue and
-- priority, and of those whose time has come and whom nobody has put in line. Those of a paused queue are to wait. A few
-- index seeks, however many there are.
-- name: due_since
WITH RECURSIVE names(name) AS (
  SELECT min(queue) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0
  UNION ALL
  SELECT (SELECT min(queue) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0 AND queue > name) FROM names WHERE name IS NOT NULL),
priorities(priority) AS (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)),
heads(queue, since) AS (
  SELECT name, (SELECT max(run_at, updated_at) FROM tasks INDEXED BY tasks_claim
    WHERE status = 'pending' AND hold = 0 AND queue = name AND tasks.priority = priorities.priority ORDER BY seq LIMIT 1)
  FROM names, priorities WHERE name IS NOT NULL
  UNION ALL
  SELECT * FROM (SELECT queue, run_at FROM tasks INDEXED BY tasks_due WHERE status = 'pending' AND hold = 1 AND run_at <= :now ORDER BY run_at LIMIT 1))
SELECT queue, min(since) FROM heads WHERE since IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM queues WHERE name = heads.queue AND paused_at IS NOT NULL) GROUP BY queue

-- Tasks that have lost their process twice in a row or more, and wait for their turn.
-- name: suspect_count
SELECT count(*) FROM tasks INDEXED BY tasks_suspects WHERE status = 'pending' AND losses >= 2

-- Running tasks by the supervisor that runs them.
-- name: running_counts
SELECT lease_owner, count(*) FROM tasks INDEXED BY tasks_running WHERE status = 'running' GROUP BY lease_owner
