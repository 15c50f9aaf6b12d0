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

-- The ids of the newest tasks as bytes: for a page on which some row holds text that is none.
-- name: task_ids
SELECT CAST(id AS BLOB), CAST(status AS BLOB) FROM tasks
WHERE seq < coalesce((SELECT seq FROM tasks WHERE id = :after), 9223372036854775807)
  AND (:status IS NULL OR status = :status) AND (:type IS NULL OR type = :type) AND (:queue IS NULL OR queue = :queue)
  AND (:session_id IS NULL OR session_id = :session_id)
ORDER BY seq DESC LIMIT :limit
