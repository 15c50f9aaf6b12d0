-- The record of a step, fenced: it is written only while this attempt holds the task.
-- name: record_step
INSERT INTO steps(history_id, scope, name, occurrence, position, turn, digest, value, error_type, error, task_id, attempt, created_at)
SELECT history_id, :scope, :name, :occurrence, :position, :turn, :digest, :value, :error_type, :error, id, attempt, :now
FROM tasks WHERE {fenced}

-- name: fence
SELECT 1 FROM tasks WHERE {fenced}

-- name: steps
SELECT scope, name, occurrence, position, turn, digest, value, error_type, error, attempt, created_at
FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE history_id = :history_id ORDER BY seq

-- name: attempts
SELECT attempt, owner, outcome, error_type, error_message, traceback, started_at, ended_at
FROM attempts INDEXED BY sqlite_autoindex_attempts_1 WHERE task_id = :task ORDER BY attempt

-- The steps that were recorded after the place :after.
-- name: steps_after
SELECT scope, name, occurrence, position, turn, digest, value, error_type, error, attempt, created_at, seq
FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE history_id = :history_id AND seq > :after ORDER BY seq

-- name: retries
SELECT series, from_status, error_message, retried_at
FROM retries INDEXED BY sqlite_autoindex_retries_1 WHERE task_id = :task ORDER BY series
