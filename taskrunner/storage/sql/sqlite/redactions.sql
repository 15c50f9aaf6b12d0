-- Keys whose values the commands hide.

-- name: redactions
SELECT key FROM redactions ORDER BY key

-- name: redact
INSERT INTO redactions(key) VALUES (:key) ON CONFLICT (key) DO NOTHING
