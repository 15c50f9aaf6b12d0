-- What holds in every store, as far as its rows can tell: each query finds nothing, or one row for each breach, with the
-- id of what is wrong and a sentence about it. The names begin with the number in the list of invariants. Most are what
-- the schema's own rules refuse: a breach means that something has written past them, or that the file is damaged.
--
-- Not asked, for rows alone cannot tell: whether what was acknowledged is there (I1, I3), which functions ran (I6),
-- whether an owner was dead (I13, I14), what a follower saw (I29), and what is between processes (I31 to I33). Nor what
-- this version does not promise: calls and results of tools in pairs, turns, schedules, limits by key (I21, I22, I25, I27).

-- Of a type, one task only has an idempotency key, and one unfinished task only a unique key.
-- name: i2_one_task_for_a_key
SELECT min(id), 'its idempotency_key is held by ' || count(*) || ' tasks of type ' || type
FROM tasks WHERE idempotency_key IS NOT NULL GROUP BY type, idempotency_key HAVING count(*) > 1
UNION ALL
SELECT min(id), 'its unique_key is held by ' || count(*) || ' unfinished tasks of type ' || type
FROM tasks WHERE unique_key IS NOT NULL AND status IN ('pending', 'running') GROUP BY type, unique_key HAVING count(*) > 1

-- name: i4_ended_once
SELECT id, 'it is ' || status || ', and completed_at is ' || coalesce(completed_at, 'empty')
FROM tasks WHERE (completed_at IS NOT NULL) <> (status IN ('completed', 'failed', 'cancelled'))
UNION ALL
SELECT task_id, 'it has ended ' || count(*) || ' times in its series ' || series
FROM attempts WHERE outcome IN ('completed', 'failed', 'cancelled') GROUP BY task_id, series HAVING count(*) > 1

-- An end is final but for a retry by hand, which begins a new series and leaves its record.
-- name: i5_the_end_is_final
SELECT task_id, 'its attempt ' || attempt || ' began after it had ended in the same series'
FROM attempts later WHERE EXISTS (SELECT 1 FROM attempts ended WHERE ended.task_id = later.task_id AND ended.series = later.series
  AND ended.attempt < later.attempt AND ended.outcome IN ('completed', 'failed', 'cancelled'))
UNION ALL
SELECT id, 'it is ' || status || ' again after it had ended in the same series'
FROM tasks WHERE status IN ('pending', 'running') AND EXISTS (SELECT 1 FROM attempts ended WHERE ended.task_id = tasks.id
  AND ended.series = tasks.series AND ended.outcome IN ('completed', 'failed', 'cancelled'))
UNION ALL
SELECT id, 'it is in series ' || series || ', and there is a record of ' || (SELECT count(*) FROM retries WHERE task_id = tasks.id) || ' retries'
FROM tasks WHERE series <> (SELECT count(*) FROM retries WHERE task_id = tasks.id)

-- name: i7_a_step_has_one_result
SELECT task_id, 'its step ' || name || ' has ' || CASE WHEN error IS NULL THEN 'neither a value nor an error' ELSE 'a value and an error' END
FROM steps WHERE (value IS NULL) = (error IS NULL)
UNION ALL
SELECT task_id, 'the value of its step ' || name || ' is no JSON' FROM steps WHERE value IS NOT NULL AND NOT json_valid(value)

-- name: i8_completed_with_a_result
SELECT id, 'it is ' || status || ', and its output is ' || CASE WHEN output IS NULL THEN 'missing' ELSE 'there' END
FROM tasks WHERE (status = 'completed') <> (output IS NOT NULL)
UNION ALL
SELECT id, 'its output is no JSON' FROM tasks WHERE output IS NOT NULL AND NOT json_valid(output)
UNION ALL
SELECT id, 'it is completed, and no attempt of its was'
FROM tasks WHERE status = 'completed' AND NOT EXISTS (SELECT 1 FROM attempts WHERE task_id = tasks.id AND attempt = tasks.attempt AND outcome = 'completed')

-- The open attempt is the task's own row, so there is one at most; it has not ended yet.
-- name: i9_one_open_attempt
SELECT id, 'its attempt ' || attempt || ' is running, and has ended'
FROM tasks WHERE status = 'running' AND EXISTS (SELECT 1 FROM attempts WHERE task_id = tasks.id AND attempt = tasks.attempt)

-- name: i10_running_has_an_owner
SELECT id, 'it is ' || status || ', and its owner is ' || coalesce(lease_owner, 'nobody')
FROM tasks WHERE (status = 'running') <> (lease_owner IS NOT NULL)
UNION ALL
SELECT id, 'it is running, and has not started' FROM tasks WHERE status = 'running' AND (started_at IS NULL OR attempt = 0)

-- name: i11_every_attempt_has_its_row
SELECT id, 'it is ' || status || ' at attempt ' || attempt || ', and ' || (SELECT count(*) FROM attempts WHERE task_id = tasks.id)
  || ' attempts have ended, the last of them number ' || (SELECT coalesce(max(attempt), 0) FROM attempts WHERE task_id = tasks.id)
FROM tasks WHERE attempt - (status = 'running') <> (SELECT count(*) FROM attempts WHERE task_id = tasks.id)
  OR attempt - (status = 'running') <> (SELECT coalesce(max(attempt), 0) FROM attempts WHERE task_id = tasks.id)

-- name: i12_nothing_from_a_foreign_attempt
SELECT steps.task_id, 'its step ' || name || ' was recorded by attempt ' || steps.attempt || ', and it is at attempt ' || tasks.attempt
FROM steps JOIN tasks ON tasks.id = steps.task_id WHERE steps.attempt > tasks.attempt OR steps.attempt < 1
UNION ALL
SELECT DISTINCT logs.task_id, 'its log has lines of attempt ' || logs.attempt || ', and it is at attempt ' || tasks.attempt
FROM logs JOIN tasks ON tasks.id = logs.task_id WHERE logs.attempt > tasks.attempt OR logs.attempt < 1
UNION ALL
SELECT task_id, 'two of its attempts, ' || attempt || ' and another, have one number'
FROM attempts GROUP BY task_id, attempt HAVING count(*) > 1

-- name: i15_retries_and_losses_within_bounds
SELECT id, 'it was retried ' || retry_count || ' times, and may be ' || max_retries || ' times'
FROM tasks WHERE NOT retry_count BETWEEN 0 AND max_retries
UNION ALL
SELECT id, 'it has ' || losses || ' losses, and may have ' || max_losses FROM tasks WHERE NOT losses BETWEEN 0 AND max_losses
UNION ALL
SELECT id, 'it is pending after ' || losses || ' losses, the most that it may have' FROM tasks WHERE status = 'pending' AND losses >= max_losses

-- Within a minute: who claims has read the clock before it waited for the lock. Asked of those only who had to wait when
-- they came into line: of a task whose attempt was lost or handed back, of one that was due at once, and of one that was
-- retried by hand, a started_at before run_at says that the wall clock was set back.
-- name: i16_not_before_its_time
SELECT id, 'it was started at ' || tasks.started_at || ', and was due at ' || run_at
FROM tasks LEFT JOIN attempts ON task_id = id AND attempts.attempt = tasks.attempt - 1
WHERE status = 'running' AND julianday(run_at) - julianday(tasks.started_at) > 1.0 / 1440
  AND coalesce(attempts.outcome, '') NOT IN ('lost', 'released') AND run_at > coalesce(attempts.ended_at, created_at)
  AND run_at <> coalesce((SELECT retried_at FROM retries WHERE retries.task_id = tasks.id AND retries.series = tasks.series), '')

-- name: i17_progress_within_bounds
SELECT id, 'it is ' || status || ' with a progress of ' || progress
FROM tasks WHERE NOT progress BETWEEN 0 AND 1 OR (status = 'completed' AND progress <> 1)

-- name: i18_cancelled_never_completes
SELECT id, 'it is ' || status || ', and its cancel was acknowledged at ' || cancel_requested_at
FROM tasks WHERE cancel_requested_at IS NOT NULL AND status NOT IN ('running', 'cancelled')

-- A conversation hangs together, and its sum of tokens is right.
-- name: i19_messages_hang_together
SELECT id, 'its parent_msg_id ' || parent_msg_id || ' is no earlier message' FROM messages
WHERE parent_msg_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM messages parent WHERE parent.id = messages.parent_msg_id AND parent.seq < messages.seq)
UNION ALL
SELECT id, 'its token_usage is ' || token_usage || ', and its messages have '
  || (SELECT coalesce(sum(token_count), 0) FROM messages WHERE session_id = sessions.id)
FROM sessions WHERE token_usage <> (SELECT coalesce(sum(token_count), 0) FROM messages WHERE session_id = sessions.id)

-- name: i20_a_message_is_written_once
SELECT min(id), 'it was written ' || count(*) || ' times under one key of its task'
FROM messages WHERE write_key IS NOT NULL GROUP BY history_id, write_key HAVING count(*) > 1

-- name: i23_a_child_has_its_parent
SELECT id, 'its parent_task_id ' || parent_task_id || ' is no task'
FROM tasks WHERE parent_task_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM tasks parent WHERE parent.id = tasks.parent_task_id)

-- What belongs to a task or a session goes with it, and not before.
-- name: i26_nothing_is_left_behind
SELECT DISTINCT task_id, 'steps of it are there, and the task is not' FROM steps WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE id = steps.task_id)
UNION ALL
SELECT DISTINCT task_id, 'attempts of it are there, and the task is not' FROM attempts WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE id = attempts.task_id)
UNION ALL
SELECT DISTINCT task_id, 'lines of its log are there, and the task is not' FROM logs WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE id = logs.task_id)
UNION ALL
SELECT DISTINCT task_id, 'retries of it are there, and the task is not' FROM retries WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE id = retries.task_id)
UNION ALL
SELECT DISTINCT session_id, 'messages of it are there, and the session is not' FROM messages WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE id = messages.session_id)
UNION ALL
SELECT id, 'its session_id ' || session_id || ' is no session' FROM tasks
WHERE session_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = tasks.session_id)
UNION ALL
SELECT task_id, 'it is being removed, and has not ended' FROM removals
WHERE EXISTS (SELECT 1 FROM tasks WHERE id = removals.task_id AND status IN ('pending', 'running'))

-- Who waits says for what; who is held is not in the line.
-- name: i28_everyone_stands_in_one_line
SELECT id, 'it is ' || status || ' with hold ' || hold || ', and waits for ' || coalesce(waiting_for, 'nothing')
FROM tasks WHERE (hold = 3) <> (waiting_for IS NOT NULL) OR (waiting_for IS NOT NULL AND status <> 'pending')
UNION ALL
SELECT id, 'its queue, priority or time is out of bounds' FROM tasks
WHERE NOT priority BETWEEN 0 AND 9 OR length(run_at) <> 27 OR queue = '' OR typeof(queue) <> 'text'
