-- Paused queues and their limits. A row stays when nothing is said any more: it costs nothing.

-- name: pause_queue
INSERT INTO queues(name, paused_at, updated_at) VALUES (:name, :now, :now)
ON CONFLICT (name) DO UPDATE SET paused_at = coalesce(paused_at, excluded.paused_at), updated_at = excluded.updated_at

-- name: resume_queue
UPDATE queues SET paused_at = NULL, updated_at = :now WHERE name = :name AND paused_at IS NOT NULL

-- What a supervisor's code says; NULL lifts a limit that an earlier version of it has set.
-- name: limit_queue
INSERT INTO queues(name, concurrency, updated_at) VALUES (:name, :concurrency, :now)
ON CONFLICT (name) DO UPDATE SET concurrency = excluded.concurrency, updated_at = excluded.updated_at
WHERE concurrency IS NOT excluded.concurrency

-- name: queues
SELECT name, paused_at, concurrency,
  (SELECT count(*) FROM tasks INDEXED BY tasks_running WHERE status = 'running' AND tasks.queue = queues.name)
FROM queues ORDER BY name
