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

-- Lines of an attempt's log, fenced like its steps: a JSON list of [when, level, event, fields].
-- name: add_log_lines
INSERT INTO logs(task_id, attempt, at, level, event, fields)
SELECT held.id, held.attempt, value ->> 0, value ->> 1, value ->> 2, value ->> 3
FROM (SELECT id, attempt FROM tasks INDEXED BY sqlite_autoindex_tasks_1 WHERE {fenced}) AS held CROSS JOIN json_each(:lines)

-- The lines that were written after the place :after.
-- name: log_lines_after
SELECT attempt, at, level, event, fields, seq
FROM logs INDEXED BY logs_of_task WHERE task_id = :task AND seq > :after ORDER BY seq
