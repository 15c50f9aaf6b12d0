-- part: session_columns
id, seq, title, status, model, system_prompt, token_usage, created_at, updated_at

-- part: message_columns
id, seq, session_id, role, content, tool_calls, tool_call_id, parent_msg_id, token_count, payload, created_at

-- name: create_session
INSERT INTO sessions(id, title, model, system_prompt, created_at, updated_at)
VALUES (:id, :title, :model, :system_prompt, :now, :now) RETURNING {session_columns}

-- name: session
SELECT {session_columns} FROM sessions WHERE id = :id

-- name: sessions_newest
SELECT {session_columns} FROM sessions
WHERE (:status IS NULL OR status = :status) AND seq < coalesce((SELECT seq FROM sessions WHERE id = :after), 9223372036854775807)
ORDER BY seq DESC LIMIT :limit

-- A message hangs on the newest of its session, if it is not told another parent. A write of a task has a key in the
-- task's history: the first write wins, and a repeated one is told what was written.
-- name: add_message
INSERT INTO messages(id, session_id, role, content, tool_calls, tool_call_id, parent_msg_id, token_count, payload, history_id, write_key, created_at)
VALUES (:id, :session_id, :role, :content, :tool_calls, :tool_call_id,
        coalesce(:parent_msg_id, (SELECT id FROM messages INDEXED BY messages_order WHERE session_id = :session_id ORDER BY seq DESC LIMIT 1)),
        :token_count, :payload, :history_id, :write_key, :now)
ON CONFLICT (history_id, write_key) WHERE write_key IS NOT NULL DO UPDATE SET write_key = excluded.write_key
RETURNING {message_columns}

-- name: recent_messages
SELECT {message_columns} FROM messages INDEXED BY messages_order WHERE session_id = :session_id ORDER BY seq DESC LIMIT :limit
