-- part: supervisor_columns
id, boot_id, pid, pid_namespace, start_time, host, lock_name, bell, expires_at, started_at, beat_at, ended_at, ended_how

-- name: register_supervisor
INSERT INTO supervisors(id, boot_id, pid, pid_namespace, start_time, host, lock_name, bell, version, expires_at, started_at, beat_at)
VALUES (:id, :boot_id, :pid, :pid_namespace, :start_time, :host, :lock_name, :bell, :version, :expires_at, :now, :now)

-- name: register_type
INSERT INTO task_types(name, queue, priority, max_retries, timeout, max_losses, updated_at)
VALUES (:name, :queue, :priority, :max_retries, :timeout, :max_losses, :now)
ON CONFLICT (name) DO UPDATE SET queue = excluded.queue, priority = excluded.priority, max_retries = excluded.max_retries,
  timeout = excluded.timeout, max_losses = excluded.max_losses, updated_at = excluded.updated_at
WHERE (queue, priority, max_retries, timeout, max_losses)
  IS NOT (excluded.queue, excluded.priority, excluded.max_retries, excluded.timeout, excluded.max_losses)

-- name: beat
UPDATE supervisors SET expires_at = :expires_at, beat_at = :now WHERE id = :id AND ended_at IS NULL

-- A guard: who was taken for dead may not claim, or its claim would be an orphan at once.
-- name: living_owner
SELECT 1 FROM supervisors WHERE id = :owner AND ended_at IS NULL

-- A row that holds text which is not UTF-8 was written by something that is no taskrunner: it must not hide the others.
-- name: living_supervisors
SELECT {supervisor_columns} FROM supervisors INDEXED BY supervisors_living WHERE ended_at IS NULL
  AND is_utf8(CAST(concat_ws(' ', id, boot_id, pid_namespace, host, lock_name, started_at, beat_at) AS BLOB))

-- name: supervisors
SELECT {supervisor_columns} FROM supervisors
WHERE is_utf8(CAST(concat_ws(' ', id, boot_id, pid_namespace, host, lock_name, started_at, beat_at, ended_at, ended_how) AS BLOB))
ORDER BY started_at DESC, id LIMIT :limit

-- An owner that was judged dead by its lock or its process.
-- name: bury
UPDATE supervisors SET ended_at = :now, ended_how = :how WHERE id = :id AND ended_at IS NULL RETURNING id, ended_how

-- Owners whose lease has run out by the clock of this boot. The clock is read before the wait for the write lock, so a
-- sweep that had to wait is late and never early. An id that is not UTF-8 must not undo the end of all the others.
-- name: bury_expired
UPDATE supervisors SET ended_at = :now, ended_how = 'its lease ran out'
WHERE ended_at IS NULL AND boot_id = :boot_id AND expires_at <= :monotonic AND id <> :self
RETURNING CASE WHEN is_utf8(CAST(id AS BLOB)) THEN id ELSE 'x' || hex(id) END, ended_how

-- name: forget_supervisors
DELETE FROM supervisors WHERE ended_at < :before
  AND NOT EXISTS (SELECT 1 FROM tasks INDEXED BY tasks_running WHERE status = 'running' AND lease_owner = supervisors.id)

-- name: record_children
UPDATE supervisors SET children = :children WHERE id = :id

-- name: left_children
SELECT {supervisor_columns}, children FROM supervisors WHERE ended_at IS NOT NULL AND children <> '[]'
  AND is_utf8(CAST(concat_ws(' ', id, boot_id, pid_namespace, host, lock_name, children, started_at, beat_at, ended_at, ended_how) AS BLOB))
