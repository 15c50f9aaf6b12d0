-- What `doctor` asks. Each looks at a part of the file that an index covers, except for the check of the whole.

-- Every page and every row, without comparing the indexes with their tables; the first 20 troubles, or `ok`.
-- name: quick_check
PRAGMA quick_check(20)

-- name: schema_version
PRAGMA user_version

-- What pending tasks wait for, when it is not their turn.
-- name: waiting_counts
SELECT waiting_for, count(*) FROM tasks INDEXED BY tasks_waiting WHERE status = 'pending' AND hold = 3 GROUP BY waiting_for

-- Tasks that could be claimed now, by queue.
-- name: due_counts
SELECT queue, count(*) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0 GROUP BY queue

-- Since when the task that is due and waits has done so, by queue: of those that are first in line, for their queue and
-- priority, and of those whose time has come and whom nobody has put in line. A few index seeks, however many wait.
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
SELECT queue, min(since) FROM heads WHERE since IS NOT NULL GROUP BY queue

-- Running tasks by the supervisor that runs them.
-- name: running_counts
SELECT lease_owner, count(*) FROM tasks INDEXED BY tasks_running WHERE status = 'running' GROUP BY lease_owner
