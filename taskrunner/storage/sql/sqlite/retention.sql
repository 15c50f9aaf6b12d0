-- How finished tasks are removed: looked for by readers, a page at a time, and deleted in small commits.

-- Unfinished work stays, and so does a task whose children are still there, or whose parent may still ask for it.
-- part: removable
tasks.status IN ('completed', 'failed', 'cancelled') AND tasks.completed_at < :before
AND NOT EXISTS (SELECT 1 FROM tasks child INDEXED BY tasks_parent WHERE child.parent_task_id = tasks.id)
AND NOT EXISTS (SELECT 1 FROM tasks parent WHERE parent.id = tasks.parent_task_id AND parent.status IN ('pending', 'running'))

-- A page of the finished tasks of one status that were born before a moment, in the order of their birth, from a place
-- on; each with the work of removing it (rows, and 16 KiB of a step's value for one more), 0 for one that has to stay.
-- name: finished_before
SELECT seq, id, created_at, CASE WHEN {removable} THEN 1
    + (SELECT count(*) + coalesce(sum(octet_length(value)), 0) / 16384
       FROM (SELECT value FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE history_id = tasks.history_id LIMIT :most))
    + (SELECT count(*) FROM (SELECT 1 FROM attempts INDEXED BY sqlite_autoindex_attempts_1 WHERE task_id = tasks.id LIMIT :most))
    + (SELECT count(*) FROM (SELECT 1 FROM logs INDEXED BY logs_of_task WHERE task_id = tasks.id LIMIT :most))
  ELSE 0 END
FROM tasks INDEXED BY idx_tasks_status
WHERE status = :status AND (created_at, seq) > (:created_at, :seq) AND created_at < :before
ORDER BY created_at, seq LIMIT :limit

-- Their steps, ended attempts, log lines and retries go with them.
-- name: remove_tasks
DELETE FROM tasks INDEXED BY sqlite_autoindex_tasks_1 WHERE id IN (SELECT value FROM json_each(:ids)) AND {removable} RETURNING 1

-- name: begin_removal
INSERT INTO removals(task_id) SELECT id FROM tasks WHERE id = :id AND {removable} ON CONFLICT DO NOTHING

-- name: removals
SELECT id, history_id FROM removals CROSS JOIN tasks INDEXED BY sqlite_autoindex_tasks_1 ON id = task_id LIMIT :limit

-- The bytes of each of the first steps by the index, by which the next statement removes as many as it is told.
-- name: steps_to_remove
SELECT coalesce(octet_length(value), 0) FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE history_id = :history_id LIMIT :limit

-- name: remove_steps
DELETE FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE (history_id, scope, name, occurrence) IN (
  SELECT history_id, scope, name, occurrence FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE history_id = :history_id LIMIT :limit)
  AND task_id IN (SELECT task_id FROM removals)
RETURNING 1

-- name: remove_log_lines
DELETE FROM logs INDEXED BY logs_of_task WHERE (task_id, seq) IN (
  SELECT task_id, seq FROM logs INDEXED BY logs_of_task WHERE task_id = :task ORDER BY seq LIMIT :limit)
  AND task_id IN (SELECT task_id FROM removals)
RETURNING 1

-- Once its steps and its log are gone a task goes, too, whatever has become of the setting meanwhile; one that has got a
-- child by then stays for as long as that is there.
-- name: end_removal
DELETE FROM tasks WHERE id = :id AND id IN (SELECT task_id FROM removals)
  AND NOT EXISTS (SELECT 1 FROM tasks child INDEXED BY tasks_parent WHERE child.parent_task_id = tasks.id)
RETURNING 1
