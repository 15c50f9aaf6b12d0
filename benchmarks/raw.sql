-- The statements of the raw loop. They write the same rows as taskrunner does, with every value ready made.

-- name: insert_task
INSERT INTO tasks(id, type, input, queue, priority, run_at, max_retries, max_losses, history_id, created_at, updated_at)
VALUES (?1, ?2, ?3, 'default', 5, ?4, 3, 5, ?1, ?4, ?4)

-- name: insert_step
INSERT INTO steps(history_id, scope, name, occurrence, position, turn, digest, value, task_id, attempt, created_at)
VALUES (?1, '', ?2, ?3, ?3, ?3, ?4, ?5, ?1, 1, ?6)

-- name: claim
UPDATE tasks SET status = 'running', lease_owner = ?1, attempt = attempt + 1, started_at = ?2, updated_at = ?2
WHERE seq IN (SELECT seq FROM tasks INDEXED BY tasks_claim WHERE queue = 'default' AND status = 'pending' AND hold = 0
  ORDER BY priority, seq LIMIT ?3)
RETURNING id

-- name: complete
UPDATE tasks SET status = 'completed', outcome = 'completed', output = ?2, progress = 1.0, lease_owner = NULL, completed_at = ?3,
  updated_at = ?3
WHERE id = ?1

-- Finished rows for the claim to live beside, in the only order that the triggers allow: born, running, completed.
-- name: fill_born
WITH RECURSIVE numbers(number) AS (SELECT ?1 UNION ALL SELECT number + 1 FROM numbers WHERE number < ?2)
INSERT INTO tasks(id, type, input, queue, priority, run_at, max_retries, max_losses, history_id, created_at, updated_at)
SELECT printf('01900000-0000-7000-8000-%012x', number), 'noop', '{"number":' || number || '}', 'default', 5, ?3, 3, 5,
       printf('01900000-0000-7000-8000-%012x', number), ?3, ?3
FROM numbers

-- name: fill_running
UPDATE tasks SET status = 'running', lease_owner = 'filler', attempt = 1, started_at = ?3, updated_at = ?3
WHERE seq BETWEEN ?1 AND ?2

-- name: fill_completed
UPDATE tasks SET status = 'completed', outcome = 'completed', output = 'null', progress = 1.0, lease_owner = NULL,
  completed_at = ?3, updated_at = ?3
WHERE seq BETWEEN ?1 AND ?2
