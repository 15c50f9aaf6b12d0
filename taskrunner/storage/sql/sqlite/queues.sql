-- Paused queues and their limits.

-- name: pause_queue
INSERT INTO queues(name, paused_at, updated_at) VALUES (:name, :now, :now)
ON CONFLICT (name) DO UPDATE SET paused_at = coalesce(paused_at, excluded.paused_at), updated_at = excluded.updated_at

-- name: resume_queue
UPDATE queues SET paused_at = NULL, updated_at = :now WHERE name = :name AND paused_at IS NOT NULL

-- Of a queue that is neither paused nor limited nothing is said.
-- name: forget_queue
DELETE FROM queues WHERE name = :name AND paused_at IS NULL AND concurrency IS NULL

-- Whether anybody has ever named it: a mistyped name is in no row, which takes a look at all tasks.
-- name: queue_is_known
SELECT EXISTS (SELECT 1 FROM queues WHERE name = :name) OR EXISTS (SELECT 1 FROM task_types WHERE queue = :name)
  OR EXISTS (SELECT 1 FROM tasks WHERE queue = :name)

-- What a supervisor's code says; NULL lifts a limit that an earlier version of it has set.
-- name: limit_queue
INSERT INTO queues(name, concurrency, updated_at) VALUES (:name, :concurrency, :now)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency, updated_at = excluded.updated_at
WHERE concurrency IS NOT excluded.concurrency

-- name: queues
SELECT name, paused_at, concurrency,
  (SELECT count(*) FROM tasks INDEXED BY tasks_running WHERE status = 'running' AND tasks.queue = queues.name)
FROM queues ORDER BY name
