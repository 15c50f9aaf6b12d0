-- Who is to be rung after the commit is asked within it: who registers later than that looks at the store by itself.
-- name: mark_commit
INSERT INTO writers(id, token, opened_at) VALUES (:id, :token, :opened_at) ON CONFLICT (id) DO UPDATE SET token = excluded.token
RETURNING (SELECT group_concat(bell, ' ') FROM supervisors INDEXED BY supervisors_living WHERE ended_at IS NULL)

-- name: last_commit
SELECT token FROM writers WHERE id = :id

-- name: forget_writer
DELETE FROM writers WHERE id = :id

-- A writer that crashed leaves its row; nobody can ask for it after a month.
-- name: forget_writers
DELETE FROM writers WHERE opened_at < :before

-- name: record_migration
INSERT INTO migrations(number, applied_at, version) VALUES (:number, :now, :version)
