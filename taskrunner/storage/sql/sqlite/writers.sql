-- name: mark_commit
INSERT INTO writers(id, token, opened_at) VALUES (:id, :token, :opened_at) ON CONFLICT (id) DO UPDATE SET token = excluded.token

-- name: last_commit
SELECT token FROM writers WHERE id = :id

-- name: forget_writer
DELETE FROM writers WHERE id = :id

-- A writer that crashed leaves its row; nobody can ask for it after a month.
-- name: forget_writers
DELETE FROM writers WHERE opened_at < :before

-- name: record_migration
INSERT INTO migrations(number, applied_at, version) VALUES (:number, :now, :version)
