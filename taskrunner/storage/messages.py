"""The verbs of conversations: sessions and their messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskrunner.core.durations import stamp
from taskrunner.core.errors import InvalidInput, NoSession
from taskrunner.core.places import shown
from taskrunner.storage.engine import Rejected, Statement, Unit
from taskrunner.storage.rows import message_of, session_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskrunner.core.clock import Clock
    from taskrunner.core.model import Message, SessionRow
    from taskrunner.core.states import Role, SessionStatus
    from taskrunner.storage.engine import Engine, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to be added: checked and encoded. `write_key` numbers the writes of one history of a task."""

    id: str
    session_id: str
    role: Role
    content: str
    tool_calls: str = "[]"
    tool_call_id: str | None = None
    parent_msg_id: str | None = None
    token_count: int = 0
    payload: str | None = None
    history_id: str | None = None
    write_key: str | None = None


class MessageStore:
    """Sessions and messages."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def new_id(self) -> str:
        """An id for a message that is to be added."""
        return self._clock.new_id()

    async def create_session(
        self, *, title: str, model: str | None, system_prompt: str | None, session_id: str | None = None
    ) -> SessionRow:
        """Store a new conversation, with a new id unless one is given; durable when it returns."""
        params = {
            "id": session_id or self.new_id(),
            "title": title,
            "model": model,
            "system_prompt": system_prompt,
            "now": stamp(self._clock.now()),
        }
        results = await self._engine.write(Unit((Statement("create_session", params, expect_rows=1),)))
        return session_of(results[0][0])

    async def session(self, session_id: str) -> SessionRow:
        """One session.

        Raises:
            NoSession: no session has this id.
        """
        rows = await self._engine.read(Statement("session", {"id": session_id}))
        if not rows:
            message = f"no session has the id {shown(session_id)}"
            raise NoSession(message)
        return session_of(rows[0])

    async def sessions(self, *, status: SessionStatus | None, limit: int, after: str | None) -> list[SessionRow]:
        """The newest sessions first; `after` is the last id of the page before."""
        params: dict[str, Value] = {"status": status, "limit": limit, "after": after}
        return [session_of(row) for row in await self._engine.read(Statement("sessions_newest", params))]

    def add(self, new: NewMessage) -> Statement:
        """The statement that adds a message to its session, or finds the one that its write key has added."""
        return Statement(
            "add_message",
            {
                "id": new.id,
                "session_id": new.session_id,
                "role": new.role,
                "content": new.content,
                "tool_calls": new.tool_calls,
                "tool_call_id": new.tool_call_id,
                "parent_msg_id": new.parent_msg_id,
                "token_count": new.token_count,
                "payload": new.payload,
                "history_id": new.history_id,
                "write_key": new.write_key,
                "now": stamp(self._clock.now()),
            },
            expect_rows=1,
        )

    async def write(self, statements: Sequence[Statement]) -> Message:
        """Commit statements of which the last adds a message, and return that message.

        Raises:
            NoSession: there is no such session, or it is deleted.
        """
        try:
            results = await self._engine.write(Unit(tuple(statements)))
        except Rejected as rejected:
            raise refusal(rejected) from None
        return message_of(results[-1][0])

    async def recent(self, session_id: str, limit: int) -> list[Message]:
        """The newest `limit` messages of a session, oldest first."""
        params: dict[str, Value] = {"session_id": session_id, "limit": limit}
        return [message_of(row) for row in reversed(await self._engine.read(Statement("recent_messages", params)))]


def refusal(rejected: Rejected) -> Exception:
    """What the database's own words mean for who wanted to add a message."""
    if "FOREIGN KEY" in rejected.reason:
        return NoSession("no session has the id that this message names")
    if "session is deleted" in rejected.reason:
        return NoSession("the session is deleted: it takes no new messages")
    if "parent_msg_id" in rejected.reason:
        return InvalidInput("parent_msg_id: no message has this id", path="parent_msg_id")
    return rejected
