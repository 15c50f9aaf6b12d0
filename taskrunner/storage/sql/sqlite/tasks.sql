-- Every hot statement names its index: without statistics the planner would take the wrong one, and with those that
-- somebody's ANALYZE has taken of a young file it would read the whole table when the file has grown.
-- part: task_columns
id, seq, session_id, parent_task_id, type, queue, priority, status, waiting_for, unique_key, idempotency_key,
cancel_requested_at, input, output, error_type, error_message, progress, progress_message, attempt, losses, max_losses,
retry_count, max_retries, series, timeout, history_id, lease_owner, run_at, scheduled_for, started_at, completed_at,
created_at, updated_at

-- part: fenced
id = :task AND status = 'running' AND lease_owner = :owner AND attempt = :attempt

-- The slots that an owner has left.
-- part: free
:slots - (SELECT count(*) FROM tasks INDEXED BY tasks_running WHERE status = 'running' AND lease_owner = :owner)

-- Tasks that have lost their process twice in a row or more, and may be tried again here. One of a type that nobody knew
-- is for who knows it.
-- part: suspects
tasks INDEXED BY tasks_suspects WHERE status = 'pending' AND losses >= 2
  AND (hold = 4 OR (hold = 3 AND waiting_for = 'worker:' || type AND type IN (SELECT value FROM json_each(:known))))
  AND (:only IS NULL OR queue IN (SELECT value FROM json_each(:only)))
  AND coalesce((SELECT room FROM queue_room WHERE queue_room.name = tasks.queue), 1) > 0

-- A given value, else the one of the type's row (which is looked for only then), else the default.
-- part: insert_task
INSERT INTO tasks(id, session_id, parent_task_id, type, input, queue, priority, run_at, hold, unique_key, idempotency_key,
                  max_retries, timeout, max_losses, history_id, created_at, updated_at)
VALUES (:id, :session_id, :parent_task_id, :type, :input,
        coalesce(:queue, (SELECT queue FROM task_types WHERE name = :type), 'default'),
        coalesce(:priority, (SELECT priority FROM task_types WHERE name = :type), 5),
        :run_at, CASE WHEN :run_at > :now THEN 1 ELSE 0 END, :unique_key, :idempotency_key,
        coalesce(:max_retries, (SELECT max_retries FROM task_types WHERE name = :type), :default_retries),
        coalesce(:timeout, (SELECT timeout FROM task_types WHERE name = :type)),
        coalesce(:max_losses, (SELECT max_losses FROM task_types WHERE name = :type), :default_losses), :id, :now, :now)

-- Without a key there is nothing to conflict with.
-- name: enqueue
{insert_task}

-- The row that holds the key already is returned when the key may be reused; nothing is returned when it is refused.
-- A task that is found by its unique key takes the idempotency key on, so that it will be found by that one, too.
-- name: enqueue_keyed
{insert_task}
ON CONFLICT (type, idempotency_key) WHERE idempotency_key IS NOT NULL
DO UPDATE SET idempotency_key = excluded.idempotency_key
ON CONFLICT (type, unique_key) WHERE unique_key IS NOT NULL AND status IN ('pending', 'running')
DO UPDATE SET
  idempotency_key = coalesce(idempotency_key, excluded.idempotency_key),
  input = CASE WHEN :on_conflict = 'replace' THEN excluded.input ELSE input END,
  run_at = CASE WHEN :on_conflict = 'replace' THEN excluded.run_at ELSE run_at END,
  hold = CASE WHEN :on_conflict = 'replace' THEN excluded.hold ELSE hold END,
  priority = CASE WHEN :on_conflict = 'replace' THEN excluded.priority ELSE priority END,
  updated_at = CASE WHEN :on_conflict = 'replace' THEN excluded.updated_at ELSE updated_at END
WHERE :on_conflict = 'reuse' OR (:on_conflict = 'replace' AND status = 'pending' AND attempt = 0)
RETURNING id

-- name: task_by_unique_key
SELECT id FROM tasks INDEXED BY tasks_unique WHERE type = :type AND unique_key = :unique_key AND status IN ('pending', 'running')

-- Delayed and retried tasks whose time has come take their place in the line of their queue.
-- name: promote_due
UPDATE tasks INDEXED BY sqlite_autoindex_tasks_1 SET hold = 0
WHERE id IN (SELECT id FROM tasks INDEXED BY tasks_due WHERE status = 'pending' AND hold = 1 AND run_at <= :now ORDER BY run_at LIMIT 1000)
RETURNING 1

-- How a task is charged whose process died: `orphans` has its id, its losses from now on, and what is known of the death.
-- part: charge_orphans
UPDATE tasks INDEXED BY sqlite_autoindex_tasks_1 SET
  losses = orphans.losses,
  status = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN orphans.losses >= max_losses THEN 'failed' ELSE 'pending' END,
  outcome = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'lost' END,
  completed_at = CASE WHEN cancel_requested_at IS NOT NULL OR orphans.losses >= max_losses THEN :now END,
  error_type = CASE WHEN cancel_requested_at IS NULL THEN 'taskrunner.WorkerLost' END,
  error_message = CASE
    WHEN cancel_requested_at IS NOT NULL THEN cancel_reason
    WHEN orphans.losses >= max_losses THEN 'quarantined: its worker was lost ' || orphans.losses || ' times in a row without recording a step (max_losses '
      || max_losses || '); the last was ' || orphans.how
    ELSE 'worker lost: ' || orphans.how END,
  traceback = NULL, lease_owner = NULL, updated_at = :now,
  hold = CASE WHEN cancel_requested_at IS NULL AND orphans.losses >= 2 AND orphans.losses < max_losses THEN 4 ELSE 0 END
FROM orphans WHERE tasks.id IN (SELECT id FROM orphans) AND orphans.id = tasks.id
RETURNING tasks.id, type, queue, status, tasks.losses

-- An attempt that recorded a step was no poison, so it starts the count afresh.
-- part: charged_losses
CASE WHEN EXISTS (SELECT 1 FROM steps INDEXED BY sqlite_autoindex_steps_1 WHERE steps.history_id = t.history_id AND steps.attempt = t.attempt AND steps.task_id = t.id)
         THEN 1 ELSE min(t.losses + 1, t.max_losses) END AS losses

-- Running rows whose owner is gone: to be run again, at most max_losses times in a row. Each owner is looked at once, not
-- each of its tasks.
-- name: recover
WITH RECURSIVE owners(owner) AS (
  SELECT min(lease_owner) FROM tasks INDEXED BY tasks_running WHERE status = 'running'
  UNION ALL
  SELECT (SELECT min(lease_owner) FROM tasks INDEXED BY tasks_running WHERE status = 'running' AND lease_owner > owner)
  FROM owners WHERE owner IS NOT NULL),
orphans AS MATERIALIZED (
  SELECT t.id AS id, {charged_losses},
    'process ' || coalesce(s.pid, '?') || ' on ' || coalesce(s.host, '?') || ': ' || coalesce(s.ended_how, 'its row is gone') AS how
  FROM owners LEFT JOIN supervisors s ON s.id = owner
    CROSS JOIN tasks t INDEXED BY tasks_running ON t.status = 'running' AND t.lease_owner = owner
  WHERE s.id IS NULL OR s.ended_at IS NOT NULL LIMIT 1000)
{charge_orphans}

-- Tasks of a living owner whose own process died, as a JSON list of [id, attempt]: only the owner says so.
-- name: lose
WITH orphans AS MATERIALIZED (
  SELECT t.id AS id, {charged_losses}, :how AS how
  FROM json_each(:lost) AS lost CROSS JOIN tasks t INDEXED BY sqlite_autoindex_tasks_1
    ON t.id = lost.value ->> 0 AND t.attempt = lost.value ->> 1 AND t.status = 'running' AND t.lease_owner = :owner)
{charge_orphans}

-- Unfinished rows that hold text which is not UTF-8, written by something that is no taskrunner: a claim that met one
-- would come back empty-handed for ever. It looks at every unfinished row, so it is for that case alone.
-- name: set_aside_unreadable
UPDATE tasks SET
  status = CASE WHEN cancel_requested_at IS NULL THEN 'failed' ELSE 'cancelled' END,
  outcome = CASE WHEN status = 'running' THEN CASE WHEN cancel_requested_at IS NULL THEN 'failed' ELSE 'cancelled' END END,
  error_type = 'taskrunner.StoreError', error_message = 'its row is unreadable: it holds text that is not UTF-8', traceback = NULL,
  hold = 0, waiting_for = NULL, slot = NULL, lease_owner = NULL, completed_at = :now, updated_at = :now
WHERE status IN ('pending', 'running') AND NOT is_utf8(CAST(concat_ws(' ', id, session_id, parent_task_id, type, queue, waiting_for,
  unique_key, idempotency_key, cancel_requested_at, input, output, error_type, error_message, progress_message, history_id, lease_owner,
  run_at, scheduled_for, started_at, created_at, updated_at) AS BLOB))

-- One claim per queue, in order of priority and enqueue; never more than the supervisor's free slots and the queue's room.
-- name: claim
UPDATE tasks INDEXED BY sqlite_autoindex_tasks_1
SET status = 'running', lease_owner = :owner, attempt = attempt + 1, outcome = NULL, started_at = :now, updated_at = :now
WHERE id IN (SELECT id FROM tasks INDEXED BY tasks_claim WHERE queue = :queue AND status = 'pending' AND hold = 0
  ORDER BY priority, seq
  LIMIT max(0, min(64, {free}, coalesce((SELECT room FROM queue_room WHERE name = :queue), 64))))
RETURNING {task_columns}

-- Tasks that were put back because nobody knew their type, by one who knows it.
-- name: claim_put_back
UPDATE tasks INDEXED BY sqlite_autoindex_tasks_1
SET status = 'running', lease_owner = :owner, attempt = attempt + 1, outcome = NULL, hold = 0, waiting_for = NULL,
  started_at = :now, updated_at = :now
WHERE id IN (
  SELECT id FROM (
    SELECT id, queue, row_number() OVER (PARTITION BY queue ORDER BY seq) AS place FROM (
      SELECT id, queue, seq FROM tasks INDEXED BY tasks_waiting
      WHERE waiting_for = :waiting_for AND status = 'pending' AND hold = 3 AND losses < 2
        AND (:queue IS NULL OR queue = :queue) AND run_at <= :now
        AND coalesce((SELECT room FROM queue_room WHERE queue_room.name = tasks.queue), 1) > 0
      ORDER BY seq LIMIT max(0, min(64, {free})))) AS waiting
  WHERE place <= coalesce((SELECT room FROM queue_room WHERE queue_room.name = waiting.queue), 64))
RETURNING {task_columns}

-- One suspect, when it is the suspects' turn.
-- name: claim_suspect
UPDATE tasks INDEXED BY sqlite_autoindex_tasks_1
SET status = 'running', lease_owner = :owner, attempt = attempt + 1, outcome = NULL, hold = 0, waiting_for = NULL,
  started_at = :now, updated_at = :now
WHERE id IN (SELECT id FROM {suspects} ORDER BY priority, seq LIMIT max(0, min(1, {free})))
RETURNING {task_columns}

-- Whether a suspect is in line that may be tried here, and whether any queue has a limit, so that an end makes room.
-- name: claim_signs
SELECT EXISTS (SELECT 1 FROM {suspects}), EXISTS (SELECT 1 FROM queues WHERE concurrency IS NOT NULL)

-- The queues in which something can be claimed, and that have room: one index seek for each.
-- name: claimable_queues
WITH RECURSIVE names(name) AS (
  SELECT min(queue) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0
  UNION ALL
  SELECT (SELECT min(queue) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0 AND queue > name) FROM names WHERE name IS NOT NULL)
SELECT name FROM names WHERE name IS NOT NULL AND coalesce((SELECT room FROM queue_room WHERE queue_room.name = names.name), 1) > 0

-- name: next_due
SELECT min(run_at) FROM tasks INDEXED BY tasks_due WHERE status = 'pending' AND hold = 1

-- name: complete
UPDATE tasks SET
  status = CASE WHEN cancel_requested_at IS NULL THEN 'completed' ELSE 'cancelled' END,
  outcome = CASE WHEN cancel_requested_at IS NULL THEN 'completed' ELSE 'cancelled' END,
  output = CASE WHEN cancel_requested_at IS NULL THEN :output END,
  progress = CASE WHEN cancel_requested_at IS NULL THEN 1.0 ELSE progress END,
  error_message = cancel_reason, error_type = NULL, traceback = NULL,
  lease_owner = NULL, slot = NULL, losses = 0, completed_at = :now, updated_at = :now
WHERE {fenced} RETURNING status

-- name: fail
UPDATE tasks SET
  status = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN :final OR retry_count >= max_retries THEN 'failed' ELSE 'pending' END,
  outcome = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled' WHEN :final OR retry_count >= max_retries THEN 'failed' ELSE 'retried' END,
  completed_at = CASE WHEN cancel_requested_at IS NOT NULL OR :final OR retry_count >= max_retries THEN :now END,
  retry_count = retry_count + CASE WHEN cancel_requested_at IS NOT NULL OR :final OR retry_count >= max_retries THEN 0 ELSE 1 END,
  hold = CASE WHEN cancel_requested_at IS NOT NULL OR :final OR retry_count >= max_retries OR :run_at <= :now THEN 0 ELSE 1 END,
  run_at = CASE WHEN cancel_requested_at IS NOT NULL OR :final OR retry_count >= max_retries THEN run_at ELSE :run_at END,
  error_type = :error_type, error_message = :error_message, traceback = :traceback,
  lease_owner = NULL, slot = NULL, losses = 0, updated_at = :now
WHERE {fenced} RETURNING status, retry_count, max_retries

-- Handed back unharmed: no retry and no loss is charged. With waiting_for it waits for somebody who knows its type.
-- name: release
UPDATE tasks SET
  status = CASE WHEN cancel_requested_at IS NULL THEN 'pending' ELSE 'cancelled' END,
  outcome = CASE WHEN cancel_requested_at IS NULL THEN 'released' ELSE 'cancelled' END,
  completed_at = CASE WHEN cancel_requested_at IS NULL THEN NULL ELSE :now END,
  hold = CASE WHEN cancel_requested_at IS NOT NULL THEN 0 WHEN :waiting_for IS NOT NULL THEN 3 WHEN losses >= 2 THEN 4 ELSE 0 END,
  waiting_for = CASE WHEN cancel_requested_at IS NULL THEN :waiting_for END,
  error_message = cancel_reason, error_type = NULL, traceback = NULL,
  lease_owner = NULL, updated_at = :now
WHERE {fenced} RETURNING status

-- name: cancelled
UPDATE tasks SET status = 'cancelled', outcome = 'cancelled', error_message = cancel_reason, error_type = NULL, traceback = NULL,
  lease_owner = NULL, slot = NULL, completed_at = :now, updated_at = :now
WHERE {fenced} AND cancel_requested_at IS NOT NULL RETURNING status

-- name: progress
UPDATE tasks SET progress = max(progress, :progress), progress_message = :message, updated_at = :now WHERE {fenced}

-- name: cancel
UPDATE tasks SET
  status = CASE status WHEN 'pending' THEN 'cancelled' ELSE status END,
  completed_at = CASE status WHEN 'pending' THEN :now END,
  error_message = CASE status WHEN 'pending' THEN coalesce(:reason, error_message) ELSE error_message END,
  hold = CASE status WHEN 'pending' THEN 0 ELSE hold END,
  waiting_for = NULL, slot = CASE status WHEN 'pending' THEN NULL ELSE slot END,
  cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_reason = coalesce(cancel_reason, :reason), updated_at = :now
WHERE id = :task AND status IN ('pending', 'running') RETURNING status

-- A failed or cancelled task is run again by hand, as a new series: with its input, its recorded steps, its progress and
-- the numbers of its attempts. Nothing is returned where an unfinished task has its unique key by now.
-- name: retry
UPDATE tasks SET status = 'pending', series = series + 1, retry_count = 0, losses = 0, run_at = :now, hold = 0,
  output = NULL, outcome = NULL, error_type = NULL, error_message = NULL, traceback = NULL, completed_at = NULL,
  cancel_requested_at = NULL, cancel_reason = NULL, waiting_for = NULL, updated_at = :now
WHERE id = :task AND status IN ('failed', 'cancelled') AND (unique_key IS NULL OR NOT EXISTS (
  SELECT 1 FROM tasks other INDEXED BY tasks_unique
  WHERE other.type = tasks.type AND other.unique_key = tasks.unique_key AND other.status IN ('pending', 'running')))
RETURNING status

-- Why a task was not retried.
-- name: unretried
SELECT status, type, unique_key FROM tasks WHERE id = :task

-- name: cancel_requests
SELECT id, attempt FROM tasks INDEXED BY tasks_running WHERE lease_owner = :owner AND status = 'running' AND cancel_requested_at IS NOT NULL

-- name: task
SELECT {task_columns} FROM tasks WHERE id = :id

-- name: task_status
SELECT status FROM tasks WHERE id = :id

-- name: task_at
SELECT {task_columns} FROM tasks WHERE seq = :seq

-- name: task_place
SELECT seq, CAST(created_at AS BLOB) FROM tasks WHERE id = :id

-- Which tasks are meant.
-- part: chosen
(:type IS NULL OR type = :type) AND (:queue IS NULL OR queue = :queue) AND (:session_id IS NULL OR session_id = :session_id)
  AND (:parent_task_id IS NULL OR parent_task_id = :parent_task_id)
  AND (:since IS NULL OR created_at >= :since) AND (:until IS NULL OR created_at < :until)

-- From the newest one, or from the one before the place (:after_at, :after), to the oldest. Bytes are greater than any text.
-- part: chosen_by_status
status = :status AND created_at >= coalesce(:since, '')
  AND (created_at, seq) < (coalesce(:after_at, :until, x'ffffffffffff'), coalesce(:after, 9223372036854775807))

-- name: tasks_newest
SELECT {task_columns} FROM tasks WHERE seq < coalesce(:after, 9223372036854775807) AND {chosen}
ORDER BY seq DESC LIMIT :limit

-- name: tasks_by_status
SELECT {task_columns} FROM tasks INDEXED BY idx_tasks_status WHERE {chosen_by_status} AND {chosen}
ORDER BY created_at DESC, seq DESC LIMIT :limit

-- name: tasks_by_session
SELECT {task_columns} FROM tasks INDEXED BY idx_tasks_session
WHERE session_id = :session_id AND seq < coalesce(:after, 9223372036854775807) AND {chosen}
ORDER BY seq DESC LIMIT :limit

-- name: tasks_by_parent
SELECT {task_columns} FROM tasks INDEXED BY tasks_parent
WHERE parent_task_id = :parent_task_id AND seq < coalesce(:after, 9223372036854775807) AND {chosen}
ORDER BY seq DESC LIMIT :limit

-- Ids as bytes, for rows that hold text which is none.
-- name: task_ids
SELECT CAST(id AS BLOB), seq, CAST(created_at AS BLOB), CAST(status AS BLOB) FROM tasks
WHERE seq < coalesce(:after, 9223372036854775807) AND (:status IS NULL OR status = :status) AND {chosen}
ORDER BY seq DESC LIMIT :limit

-- name: task_ids_by_status
SELECT CAST(id AS BLOB), seq, CAST(created_at AS BLOB), CAST(status AS BLOB) FROM tasks INDEXED BY idx_tasks_status WHERE {chosen_by_status} AND {chosen}
ORDER BY created_at DESC, seq DESC LIMIT :limit

-- What can be shown of a row that cannot be read.
-- name: task_raw
SELECT CAST(substr(id, 1, :longest) AS BLOB), CAST(substr(status, 1, :longest) AS BLOB), CAST(substr(type, 1, :longest) AS BLOB),
  CAST(substr(queue, 1, :longest) AS BLOB), CAST(substr(input, 1, :longest) AS BLOB), CAST(substr(output, 1, :longest) AS BLOB),
  CAST(substr(error_type, 1, :longest) AS BLOB), CAST(substr(error_message, 1, :longest) AS BLOB), CAST(substr(run_at, 1, :longest) AS BLOB),
  CAST(substr(started_at, 1, :longest) AS BLOB), CAST(substr(completed_at, 1, :longest) AS BLOB), CAST(substr(created_at, 1, :longest) AS BLOB),
  CAST(substr(updated_at, 1, :longest) AS BLOB)
FROM tasks WHERE id = :id

-- Where a pending task stands: its hold, and how many tasks of its queue come before it, up to :most.
-- name: task_standing
SELECT hold, (SELECT count(*) FROM (SELECT 1 FROM tasks AS other INDEXED BY tasks_claim
  WHERE other.queue = tasks.queue AND other.status = 'pending' AND other.hold = 0
    AND (other.priority, other.seq) < (tasks.priority, tasks.seq) LIMIT :most))
FROM tasks WHERE id = :id AND status = 'pending'

-- name: task_counts
SELECT status, count(*) FROM tasks INDEXED BY idx_tasks_status GROUP BY status
