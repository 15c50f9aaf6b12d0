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

-- Running tasks by the supervisor that runs them.
-- name: running_counts
SELECT lease_owner, count(*) FROM tasks INDEXED BY tasks_running WHERE status = 'running' GROUP BY lease_owner
