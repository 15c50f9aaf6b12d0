-- What `stats` asks, again and again while people watch: each goes by an index and stops at a bound, however many rows
-- there are. Names are cut and are bytes, for something else than taskrunner may have written them.

-- part: most_names
LIMIT 1000

-- How many tasks there are of each status, up to :most.
-- name: stats_statuses
WITH RECURSIVE names(name) AS (
  SELECT min(status) FROM tasks INDEXED BY idx_tasks_status
  UNION ALL
  SELECT (SELECT min(status) FROM tasks INDEXED BY idx_tasks_status WHERE status > name) FROM names WHERE name IS NOT NULL {most_names})
SELECT CAST(substr(name, 1, 200) AS BLOB),
  (SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY idx_tasks_status WHERE status = name LIMIT :most))
FROM names WHERE name IS NOT NULL

-- The types of the :most newest tasks of a status.
-- name: stats_types
SELECT CAST(substr(type, 1, 200) AS BLOB) AS name, count(*) FROM (
  SELECT type FROM tasks INDEXED BY idx_tasks_status WHERE status = :status ORDER BY created_at DESC LIMIT :most)
GROUP BY name ORDER BY count(*) DESC {most_names}

-- How many tasks could be claimed now, by queue, each up to :most.
-- name: stats_due
WITH RECURSIVE names(name) AS (
  SELECT min(queue) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0
  UNION ALL
  SELECT (SELECT min(queue) FROM tasks INDEXED BY tasks_claim WHERE status = 'pending' AND hold = 0 AND queue > name) FROM names WHERE name IS NOT NULL {most_names})
SELECT CAST(substr(name, 1, 200) AS BLOB),
  (SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY tasks_claim WHERE queue = name AND status = 'pending' AND hold = 0 LIMIT :most))
FROM names WHERE name IS NOT NULL

-- Running tasks by queue: there are as many rows as there are slots.
-- name: stats_running
SELECT CAST(substr(queue, 1, 200) AS BLOB) AS name, count(*) FROM (
  SELECT queue FROM tasks INDEXED BY tasks_running WHERE status = 'running' LIMIT :most)
GROUP BY name {most_names}

-- Tasks that are not due yet, up to :most.
-- name: stats_delayed
SELECT count(*) FROM (SELECT 1 FROM tasks INDEXED BY tasks_due WHERE status = 'pending' AND hold = 1 LIMIT :most)

-- What tasks wait for, when it is not their turn: of the first :most of them.
-- name: stats_waiting
SELECT CAST(substr(waiting_for, 1, 200) AS BLOB) AS name, count(*) FROM (
  SELECT waiting_for FROM tasks INDEXED BY tasks_waiting WHERE status = 'pending' AND hold = 3 LIMIT :most)
GROUP BY name {most_names}

-- name: stats_oldest
SELECT CAST(id AS BLOB), CAST(substr(type, 1, 200) AS BLOB), CAST(substr(created_at, 1, 200) AS BLOB)
FROM tasks INDEXED BY idx_tasks_status WHERE status = 'pending' ORDER BY created_at, seq LIMIT 1
