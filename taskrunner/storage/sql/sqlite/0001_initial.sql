-- The first schema. Times are UTC ISO 8601 text of one width, so the order of texts is the order of time;
-- only a supervisor's lease expiry is a number, in nanoseconds of CLOCK_MONOTONIC.
-- What the contract forbids, the triggers below refuse, whoever asks.

CREATE TABLE migrations(
  number INTEGER PRIMARY KEY,
  applied_at TEXT NOT NULL,
  version TEXT NOT NULL
);

CREATE TABLE sessions(
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  title TEXT NOT NULL DEFAULT '',
  status TEXT NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'archived', 'deleted')),
  model TEXT,
  system_prompt TEXT,
  token_usage INTEGER NOT NULL DEFAULT 0,
  created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL
);

CREATE TABLE messages(
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
  role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system', 'tool')),
  content TEXT NOT NULL,
  tool_calls TEXT NOT NULL DEFAULT '[]',
  tool_call_id TEXT,
  parent_msg_id TEXT,
  token_count INTEGER NOT NULL DEFAULT 0 CHECK (token_count >= 0),
  payload TEXT,
  history_id TEXT,
  write_key TEXT,
  created_at TEXT NOT NULL,
  CHECK ((history_id IS NULL) = (write_key IS NULL))
);

CREATE TABLE tasks(
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  session_id TEXT REFERENCES sessions(id) ON DELETE CASCADE,
  parent_task_id TEXT,
  type TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'completed', 'failed', 'cancelled')),
  input TEXT NOT NULL DEFAULT '{}',
  output TEXT,
  error_message TEXT,
  progress REAL NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
  retry_count INTEGER NOT NULL DEFAULT 0,
  max_retries INTEGER NOT NULL CHECK (max_retries >= 0),
  started_at TEXT,
  completed_at TEXT,
  created_at TEXT NOT NULL,
  updated_at TEXT NOT NULL,
  -- where and when it may run
  queue TEXT NOT NULL DEFAULT 'default',
  priority INTEGER NOT NULL DEFAULT 5 CHECK (priority BETWEEN 0 AND 9),
  run_at TEXT NOT NULL CHECK (length(run_at) = 27),
  hold INTEGER NOT NULL DEFAULT 0 CHECK (hold BETWEEN 0 AND 4), -- 0 claimable, 1 until run_at, 2 in the line of its key, 3 waits for waiting_for, 4 suspect
  waiting_for TEXT,
  scheduled_for TEXT,
  deadline TEXT,
  timeout REAL CHECK (timeout > 0),
  -- limits per key: reserved for the slot, which is a column of the task
  lane TEXT,
  concurrency_key TEXT,
  key_limit INTEGER NOT NULL DEFAULT 1,
  key_hold INTEGER NOT NULL DEFAULT 0,
  slot INTEGER CHECK (slot IS NULL OR (slot < key_limit AND status IN ('pending', 'running'))),
  -- identity
  unique_key TEXT,
  idempotency_key TEXT,
  history_id TEXT NOT NULL,
  root_id TEXT,
  -- the lease and the fence
  lease_owner TEXT,
  attempt INTEGER NOT NULL DEFAULT 0,
  losses INTEGER NOT NULL DEFAULT 0,
  max_losses INTEGER NOT NULL CHECK (max_losses >= 3),
  series INTEGER NOT NULL DEFAULT 0,
  -- how the last attempt ended
  outcome TEXT CHECK (outcome IN ('completed', 'failed', 'retried', 'released', 'lost', 'cancelled')),
  error_type TEXT,
  traceback TEXT,
  progress_message TEXT NOT NULL DEFAULT '',
  cancel_requested_at TEXT,
  cancel_reason TEXT,
  CHECK (retry_count BETWEEN 0 AND max_retries),
  CHECK (losses BETWEEN 0 AND max_losses),
  CHECK ((hold = 3) = (waiting_for IS NOT NULL)),
  CHECK ((status = 'running') = (lease_owner IS NOT NULL)),
  CHECK ((status IN ('completed', 'failed', 'cancelled')) = (completed_at IS NOT NULL)),
  CHECK ((status = 'completed') = (output IS NOT NULL)),
  CHECK (hold <> 4 OR losses >= 2),
  CHECK (cancel_requested_at IS NULL OR status IN ('running', 'cancelled')),
  CHECK (waiting_for IS NULL OR status = 'pending'),
  CHECK (status <> 'running' OR started_at IS NOT NULL),
  CHECK (typeof(id) = 'text' AND typeof(type) = 'text' AND typeof(queue) = 'text' AND typeof(history_id) = 'text')
);

CREATE TABLE steps(
  seq INTEGER PRIMARY KEY,
  history_id TEXT NOT NULL,
  scope TEXT NOT NULL,
  name TEXT NOT NULL,
  occurrence INTEGER NOT NULL,
  position INTEGER NOT NULL,
  turn INTEGER,
  digest TEXT NOT NULL,
  value TEXT,
  error_type TEXT,
  error TEXT,
  task_id TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  created_at TEXT NOT NULL,
  UNIQUE (history_id, scope, name, occurrence),
  CHECK ((value IS NULL) = (error IS NOT NULL))
);

-- One row for each ENDED attempt, written by the trigger tasks_attempt_ended; the open attempt is the task's own row.
CREATE TABLE attempts(
  seq INTEGER PRIMARY KEY,
  task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  series INTEGER NOT NULL,
  owner TEXT NOT NULL,
  started_at TEXT NOT NULL,
  ended_at TEXT NOT NULL,
  outcome TEXT NOT NULL,
  error_type TEXT,
  error_message TEXT,
  traceback TEXT,
  UNIQUE (task_id, attempt)
);

-- What bodies have logged, for who follows a task; it says nothing about how a task goes on.
CREATE TABLE logs(
  seq INTEGER PRIMARY KEY,
  task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  at TEXT NOT NULL,
  level TEXT NOT NULL,
  event TEXT NOT NULL,
  fields TEXT NOT NULL,
  CHECK (typeof(at) = 'text' AND typeof(level) = 'text' AND typeof(event) = 'text' AND typeof(fields) = 'text')
);

-- One row for each time that a finished task was retried by hand, written by the trigger tasks_retried.
CREATE TABLE retries(
  seq INTEGER PRIMARY KEY,
  task_id TEXT NOT NULL REFERENCES tasks(id) ON DELETE CASCADE,
  series INTEGER NOT NULL,
  from_status TEXT NOT NULL,
  error_message TEXT,
  retried_at TEXT NOT NULL,
  UNIQUE (task_id, series)
);

-- Finished tasks of so many steps that they are removed a part at a time: from now on they are not retried.
CREATE TABLE removals(
  task_id TEXT PRIMARY KEY REFERENCES tasks(id) ON DELETE CASCADE
) WITHOUT ROWID;

-- What each task type says of itself, written by supervisors: enqueue by name reads it.
CREATE TABLE task_types(
  name TEXT PRIMARY KEY,
  queue TEXT NOT NULL,
  priority INTEGER NOT NULL,
  max_retries INTEGER,
  timeout REAL,
  max_losses INTEGER,
  lane TEXT,
  concurrency_key TEXT,
  key_limit INTEGER,
  rate TEXT,
  updated_at TEXT NOT NULL
) WITHOUT ROWID;

-- What was said of a queue: that it is paused, and how many of its tasks may run at a time, whoever runs them.
CREATE TABLE queues(
  name TEXT PRIMARY KEY,
  paused_at TEXT,
  concurrency INTEGER CHECK (concurrency >= 1),
  updated_at TEXT NOT NULL,
  CHECK (typeof(name) = 'text')
) WITHOUT ROWID;

-- Keys whose values are hidden from people, as programs of this store have named them.
CREATE TABLE redactions(
  key TEXT PRIMARY KEY CHECK (typeof(key) = 'text')
) WITHOUT ROWID;

-- One row for each run of a supervisor process; its lease covers every task that it runs.
CREATE TABLE supervisors(
  id TEXT PRIMARY KEY,
  boot_id TEXT NOT NULL,
  pid INTEGER NOT NULL,
  pid_namespace TEXT NOT NULL,
  start_time INTEGER NOT NULL,
  host TEXT NOT NULL,
  lock_name TEXT NOT NULL,
  bell TEXT CHECK (bell IS NULL OR typeof(bell) = 'text' AND bell NOT GLOB '*[^-._0-9A-Za-z]*'), -- NULL: it has none
  children TEXT NOT NULL DEFAULT '[]', -- its child processes, as a JSON list of [pid, start time]
  version TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  started_at TEXT NOT NULL,
  beat_at TEXT NOT NULL,
  ended_at TEXT,
  ended_how TEXT,
  CHECK ((ended_at IS NULL) = (ended_how IS NULL)),
  CHECK (typeof(pid) = 'integer' AND typeof(start_time) = 'integer' AND typeof(expires_at) = 'integer' AND typeof(lock_name) = 'text')
) WITHOUT ROWID;

-- The last commit of each writer: how a commit that ended in an error is looked up.
CREATE TABLE writers(
  id TEXT PRIMARY KEY,
  token INTEGER NOT NULL,
  opened_at TEXT NOT NULL
) WITHOUT ROWID;

CREATE VIEW leases AS
  SELECT tasks.id AS task_id, tasks.type AS type, tasks.attempt AS attempt, tasks.lease_owner AS owner,
         supervisors.expires_at AS expires_at, supervisors.beat_at AS beat_at
  FROM tasks LEFT JOIN supervisors ON supervisors.id = tasks.lease_owner
  WHERE tasks.status = 'running';

-- How many more tasks of a queue may run now: counted from the running rows, so nothing leaks when somebody is killed.
-- A queue of which nobody has said anything has no row, and as much room as there are slots.
CREATE VIEW queue_room AS
  SELECT name, CASE WHEN paused_at IS NOT NULL THEN 0 ELSE max(0, concurrency
    - (SELECT count(*) FROM tasks INDEXED BY tasks_running WHERE tasks.status = 'running' AND tasks.queue = queues.name)) END AS room
  FROM queues WHERE paused_at IS NOT NULL OR concurrency IS NOT NULL;

CREATE INDEX idx_messages_session ON messages(session_id, created_at);
CREATE UNIQUE INDEX messages_order ON messages(session_id, seq);
CREATE UNIQUE INDEX messages_write ON messages(history_id, write_key) WHERE write_key IS NOT NULL;
CREATE INDEX idx_tasks_session ON tasks(session_id, status);
CREATE INDEX idx_tasks_status ON tasks(status, created_at);
CREATE INDEX tasks_claim ON tasks(queue, priority, seq) WHERE status = 'pending' AND hold = 0;
CREATE INDEX tasks_due ON tasks(run_at) WHERE status = 'pending' AND hold = 1;
CREATE INDEX tasks_waiting ON tasks(waiting_for, seq) WHERE status = 'pending' AND hold = 3;
CREATE INDEX tasks_suspects ON tasks(priority, seq) WHERE status = 'pending' AND losses >= 2;
CREATE INDEX tasks_running ON tasks(lease_owner, queue) WHERE status = 'running';
CREATE INDEX logs_of_task ON logs(task_id, seq);
CREATE INDEX supervisors_living ON supervisors(bell) WHERE ended_at IS NULL;
CREATE INDEX tasks_parent ON tasks(parent_task_id) WHERE parent_task_id IS NOT NULL;
CREATE UNIQUE INDEX tasks_unique ON tasks(type, unique_key) WHERE unique_key IS NOT NULL AND status IN ('pending', 'running');
CREATE UNIQUE INDEX tasks_idempotency ON tasks(type, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- The life of a task: a row is born pending, and moves only as the table of allowed moves says.
CREATE TRIGGER tasks_born BEFORE INSERT ON tasks
WHEN NEW.status <> 'pending' OR NEW.attempt <> 0 OR NEW.series <> 0
BEGIN SELECT RAISE(ABORT, 'a task is born pending, before its first attempt'); END;

-- INSERT OR REPLACE deletes the old row without asking any trigger but those of the insert.
CREATE TRIGGER tasks_kept BEFORE INSERT ON tasks
WHEN EXISTS (SELECT 1 FROM tasks WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM tasks WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'a task is not replaced by another of its id'); END;

CREATE TRIGGER tasks_move BEFORE UPDATE OF status ON tasks
WHEN OLD.status <> NEW.status AND NOT (
  (OLD.status = 'pending' AND NEW.status IN ('failed', 'cancelled'))
  OR (OLD.status = 'pending' AND NEW.status = 'running' AND OLD.hold IN (0, 3, 4) AND NEW.attempt = OLD.attempt + 1)
  OR (OLD.status = 'running' AND NEW.status IN ('pending', 'completed', 'failed', 'cancelled'))
  OR (OLD.status IN ('failed', 'cancelled') AND NEW.status = 'pending' AND NEW.series = OLD.series + 1))
BEGIN SELECT RAISE(ABORT, 'a task may not make this move'); END;

CREATE TRIGGER tasks_fence BEFORE UPDATE OF attempt, lease_owner, series ON tasks
WHEN NEW.attempt < OLD.attempt
  OR (NEW.attempt <> OLD.attempt AND NOT (OLD.status = 'pending' AND NEW.status = 'running'))
  OR (OLD.status = 'running' AND NEW.status = 'running' AND NEW.lease_owner IS NOT OLD.lease_owner)
  OR (NEW.series <> OLD.series AND NOT (OLD.status IN ('failed', 'cancelled') AND NEW.status = 'pending'))
BEGIN SELECT RAISE(ABORT, 'an attempt, its owner and its series change only with a claim, an end or a retry'); END;

CREATE TRIGGER tasks_final BEFORE UPDATE OF input, output, error_type, error_message, completed_at, progress ON tasks
WHEN OLD.status IN ('completed', 'failed', 'cancelled') AND NEW.series = OLD.series AND (
  NEW.input IS NOT OLD.input OR NEW.output IS NOT OLD.output OR NEW.error_type IS NOT OLD.error_type
  OR NEW.error_message IS NOT OLD.error_message OR NEW.completed_at IS NOT OLD.completed_at OR NEW.progress IS NOT OLD.progress)
BEGIN SELECT RAISE(ABORT, 'a finished task is final'); END;

CREATE TRIGGER tasks_identity BEFORE UPDATE OF seq, id, type, created_at ON tasks
WHEN NEW.seq IS NOT OLD.seq OR NEW.id IS NOT OLD.id OR NEW.type IS NOT OLD.type OR NEW.created_at IS NOT OLD.created_at
BEGIN SELECT RAISE(ABORT, 'a task keeps its id, its place, its type and its birth'); END;

CREATE TRIGGER tasks_progress BEFORE UPDATE OF progress ON tasks
WHEN NEW.progress < OLD.progress AND NEW.series = OLD.series
BEGIN SELECT RAISE(ABORT, 'progress never falls'); END;

CREATE TRIGGER tasks_cancelling BEFORE UPDATE OF cancel_requested_at ON tasks
WHEN OLD.cancel_requested_at IS NOT NULL AND NEW.cancel_requested_at IS NOT OLD.cancel_requested_at AND NEW.series = OLD.series
BEGIN SELECT RAISE(ABORT, 'an acknowledged cancel is not taken back'); END;

CREATE TRIGGER tasks_retry_clean BEFORE UPDATE OF series ON tasks
WHEN NEW.series <> OLD.series AND (
  NEW.output IS NOT NULL OR NEW.error_message IS NOT NULL OR NEW.completed_at IS NOT NULL OR NEW.cancel_requested_at IS NOT NULL
  OR NEW.waiting_for IS NOT NULL OR NEW.retry_count <> 0 OR NEW.losses <> 0
  OR NEW.input IS NOT OLD.input OR NEW.history_id IS NOT OLD.history_id)
BEGIN SELECT RAISE(ABORT, 'a retried task starts clean, with its own input and recorded steps'); END;

CREATE TRIGGER tasks_being_removed BEFORE UPDATE OF series ON tasks
WHEN EXISTS (SELECT 1 FROM removals WHERE task_id = OLD.id)
BEGIN SELECT RAISE(ABORT, 'this task is being removed, and is not retried any more'); END;

CREATE TRIGGER tasks_retried AFTER UPDATE OF series ON tasks WHEN NEW.series <> OLD.series
BEGIN
  INSERT INTO retries(task_id, series, from_status, error_message, retried_at)
  VALUES (NEW.id, NEW.series, OLD.status, OLD.error_message, NEW.updated_at);
END;

CREATE TRIGGER tasks_attempt_ended AFTER UPDATE OF status ON tasks WHEN OLD.status = 'running' AND NEW.status <> 'running'
BEGIN
  INSERT INTO attempts(task_id, attempt, series, owner, started_at, ended_at, outcome, error_type, error_message, traceback)
  VALUES (OLD.id, OLD.attempt, OLD.series, OLD.lease_owner, OLD.started_at, NEW.updated_at, NEW.outcome,
          NEW.error_type, NEW.error_message, NEW.traceback)
  ON CONFLICT (task_id, attempt) DO NOTHING; -- somebody wrote it by hand: that must not keep the task from ending
END;

CREATE TRIGGER tasks_running_stays BEFORE DELETE ON tasks WHEN OLD.status = 'running'
BEGIN SELECT RAISE(ABORT, 'a running task is not deleted: cancel it first'); END;

CREATE TRIGGER tasks_deleted AFTER DELETE ON tasks
BEGIN
  DELETE FROM steps WHERE history_id = OLD.history_id;
END;

CREATE TRIGGER tasks_deleted_session BEFORE INSERT ON tasks
WHEN NEW.session_id IS NOT NULL AND EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id AND status = 'deleted')
BEGIN SELECT RAISE(ABORT, 'the session is deleted: it takes no new tasks'); END;

-- Steps, ended attempts, log lines and retries are written once, and go with their task only.
CREATE TRIGGER steps_once BEFORE INSERT ON steps
WHEN EXISTS (SELECT 1 FROM steps WHERE seq = NEW.seq) OR EXISTS (SELECT 1 FROM steps
  WHERE history_id = NEW.history_id AND scope = NEW.scope AND name = NEW.name AND occurrence = NEW.occurrence)
BEGIN SELECT RAISE(ABORT, 'this step is recorded already'); END;

CREATE TRIGGER steps_immutable BEFORE UPDATE ON steps
BEGIN SELECT RAISE(ABORT, 'a recorded step never changes'); END;

CREATE TRIGGER steps_kept BEFORE DELETE ON steps
WHEN EXISTS (SELECT 1 FROM tasks WHERE id = OLD.task_id AND status IN ('pending', 'running'))
BEGIN SELECT RAISE(ABORT, 'the steps of an unfinished task are not deleted'); END;

CREATE TRIGGER attempts_immutable BEFORE UPDATE ON attempts
BEGIN SELECT RAISE(ABORT, 'an ended attempt never changes'); END;

CREATE TRIGGER attempts_kept BEFORE DELETE ON attempts WHEN EXISTS (SELECT 1 FROM tasks WHERE id = OLD.task_id)
BEGIN SELECT RAISE(ABORT, 'the attempts of a task are not deleted'); END;

CREATE TRIGGER logs_once BEFORE INSERT ON logs WHEN EXISTS (SELECT 1 FROM logs WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'a line of a log is not replaced by another'); END;

CREATE TRIGGER logs_immutable BEFORE UPDATE ON logs
BEGIN SELECT RAISE(ABORT, 'a line of a log never changes'); END;

CREATE TRIGGER logs_kept BEFORE DELETE ON logs
WHEN EXISTS (SELECT 1 FROM tasks WHERE id = OLD.task_id AND status IN ('pending', 'running'))
BEGIN SELECT RAISE(ABORT, 'the log of an unfinished task is not deleted'); END;

CREATE TRIGGER retries_immutable BEFORE UPDATE ON retries
BEGIN SELECT RAISE(ABORT, 'the record of a retry never changes'); END;

CREATE TRIGGER retries_kept BEFORE DELETE ON retries WHEN EXISTS (SELECT 1 FROM tasks WHERE id = OLD.task_id)
BEGIN SELECT RAISE(ABORT, 'the retries of a task are not deleted'); END;

-- Conversations only grow, and their sum of tokens is kept here, so that nobody can forget it.
CREATE TRIGGER messages_parent BEFORE INSERT ON messages
WHEN NEW.parent_msg_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM messages WHERE id = NEW.parent_msg_id)
BEGIN SELECT RAISE(ABORT, 'no message has the id of parent_msg_id'); END;

CREATE TRIGGER messages_deleted_session BEFORE INSERT ON messages
WHEN EXISTS (SELECT 1 FROM sessions WHERE id = NEW.session_id AND status = 'deleted')
BEGIN SELECT RAISE(ABORT, 'the session is deleted: it takes no new messages'); END;

CREATE TRIGGER messages_counted AFTER INSERT ON messages
BEGIN
  UPDATE sessions SET token_usage = token_usage + NEW.token_count, updated_at = max(updated_at, NEW.created_at)
  WHERE id = NEW.session_id;
END;

CREATE TRIGGER messages_uncounted AFTER DELETE ON messages
BEGIN
  UPDATE sessions SET token_usage = token_usage - OLD.token_count WHERE id = OLD.session_id;
END;

CREATE TRIGGER messages_once BEFORE INSERT ON messages
WHEN EXISTS (SELECT 1 FROM messages WHERE id = NEW.id) OR EXISTS (SELECT 1 FROM messages WHERE seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'a message is not replaced by another of its id'); END;

CREATE TRIGGER messages_immutable BEFORE UPDATE ON messages
WHEN NEW.seq IS NOT OLD.seq OR NEW.id IS NOT OLD.id OR NEW.session_id IS NOT OLD.session_id OR NEW.role IS NOT OLD.role
  OR NEW.content IS NOT OLD.content OR NEW.tool_calls IS NOT OLD.tool_calls OR NEW.tool_call_id IS NOT OLD.tool_call_id
  OR NEW.parent_msg_id IS NOT OLD.parent_msg_id OR NEW.token_count IS NOT OLD.token_count OR NEW.payload IS NOT OLD.payload
  OR NEW.history_id IS NOT OLD.history_id OR NEW.write_key IS NOT OLD.write_key OR NEW.created_at IS NOT OLD.created_at
BEGIN SELECT RAISE(ABORT, 'a message never changes'); END;
