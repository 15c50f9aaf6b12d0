"""Conversations: sessions and their messages.

A message that is added inside a task goes through the task (`Sink`): inside a step it joins the step's commit, outside
of steps it is numbered, so that no attempt adds it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput
from taskrunner.core.model import JSON, Message, SessionRow
from taskrunner.core.places import shown
from taskrunner.core.states import ROLES, Role, SessionStatus
from taskrunner.storage.messages import NewMessage

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from taskrunner.storage.store import Store

MAX_LIST = 1_000
"""Rows of one page at most."""

MAX_TOKENS = 2**53
"""The largest `token_count`: sums of it stay exact in every JSON reader."""


class Sink(Protocol):
    """Where messages go that are added inside a task."""

    async def add_message(self, new: NewMessage) -> Message:
        """Write the message once for all attempts of the task."""
        ...


current_sink: ContextVar[Sink | None] = ContextVar("current_sink", default=None)
"""The task in whose body this code runs: the runtime says so."""


class Sessions:
    """The store's conversations."""

    def __init__(self, store_of: Callable[[], Store]) -> None:
        self._store_of = store_of

    async def create(self, *, title: str = "", model: str | None = None, system_prompt: str | None = None) -> Session:
        """Begin a conversation; it is durable when this returns.

        Raises:
            InvalidInput: a text cannot be stored (a lone surrogate, U+0000).
        """
        row = await self._store_of().messages.create_session(
            title=_text(title, "title"),
            model=None if model is None else _text(model, "model"),
            system_prompt=None if system_prompt is None else _text(system_prompt, "system_prompt"),
        )
        return Session(row, self._store_of)

    async def get(self, session_id: str, /) -> Session:
        """One conversation.

        Raises:
            NoSession: no session has this id.
        """
        return Session(await self._store_of().messages.session(session_id), self._store_of)

    async def list(
        self, *, status: SessionStatus | None = "active", limit: int = 50, after: str | None = None
    ) -> list[Session]:
        """The newest conversations first, at most `limit` (1 to 1,000); `after` is the last id of the page before.

        Raises:
            InvalidInput: the limit is out of its bounds.
        """
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_LIST:
            message = f"limit={shown(limit)}: a number from 1 to {MAX_LIST:,} is wanted"
            raise InvalidInput(message, path="limit")
        rows = await self._store_of().messages.sessions(status=status, limit=limit, after=after)
        return [Session(row, self._store_of) for row in rows]


class Session:
    """One conversation, as it stood when it was read, and what can be done to it."""

    def __init__(self, row: SessionRow, store_of: Callable[[], Store]) -> None:
        self.id: str = row.id
        self.title: str = row.title
        self.status: SessionStatus = row.status
        self.model: str | None = row.model
        self.system_prompt: str | None = row.system_prompt
        self.token_usage: int = row.token_usage
        self.created_at: datetime = row.created_at
        self.updated_at: datetime = row.updated_at
        self._store_of = store_of

    def __repr__(self) -> str:
        return f"<session {self.id} {self.title!r}>"

    async def add(
        self,
        role: Role,
        content: str,
        /,
        *,
        tool_calls: Sequence[JSON] = (),
        tool_call_id: str | None = None,
        parent_msg_id: str | None = None,
        token_count: int | None = None,
        payload: JSON = None,
    ) -> Message:
        """Add a message; it is durable when this returns.

        Inside a step it joins the step's commit instead; elsewhere in a task it is written once, however often the task
        is run again. `parent_msg_id` is the message that it answers (default: the newest of the session);
        `token_count` adds to the session's `token_usage` (default 0); `payload` is any JSON, kept as it is.

        Raises:
            InvalidInput: a value is of the wrong kind or cannot be stored; `path` names it.
            NoSession: the session is gone or deleted.
        """
        new = _message(
            self._store_of().messages.new_id(), self.id, role, content,
            {"tool_calls": tool_calls, "tool_call_id": tool_call_id, "parent_msg_id": parent_msg_id,
             "token_count": token_count, "payload": payload},
        )  # fmt: skip
        sink = current_sink.get()
        if sink is not None:
            return await sink.add_message(new)
        messages = self._store_of().messages
        return await messages.write([messages.add(new)])

    async def recent(self, n: int, /) -> list[Message]:
        """The newest `n` messages (1 to 1,000), oldest first.

        Raises:
            InvalidInput: n is out of its bounds.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_LIST:
            message = f"n={shown(n)}: a number from 1 to {MAX_LIST:,} is wanted"
            raise InvalidInput(message, path="n")
        return await self._store_of().messages.recent(self.id, n)


def _message(message_id: str, session_id: str, role: Role, content: str, given: dict[str, Any]) -> NewMessage:
    if not isinstance(role, str) or role not in ROLES:
        message = f"role={shown(role)}: one of {', '.join(ROLES)} is wanted"
        raise InvalidInput(message, path="role")
    tokens = 0 if given["token_count"] is None else given["token_count"]
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= MAX_TOKENS:
        message = f"token_count={shown(tokens)}: a number from 0 to 2**53 is wanted"
        raise InvalidInput(message, path="token_count")
    if not isinstance(given["tool_calls"], list | tuple):
        message = f"tool_calls={shown(given['tool_calls'])}: a list is wanted"
        raise InvalidInput(message, path="tool_calls")
    call_id, parent = given["tool_call_id"], given["parent_msg_id"]
    return NewMessage(
        id=message_id,
        session_id=session_id,
        role=role,
        content=_text(content, "content"),
        tool_calls=payload.encode(given["tool_calls"], name="tool_calls", error=InvalidInput),
        tool_call_id=None if call_id is None else _text(call_id, "tool_call_id"),
        parent_msg_id=None if parent is None else _text(parent, "parent_msg_id"),
        token_count=tokens,
        payload=None
        if given["payload"] is None
        else payload.encode(given["payload"], name="payload", error=InvalidInput),
    )


def _text(value: object, name: str) -> str:
    """A text that the store can hold as a column."""
    if not isinstance(value, str):
        message = f"{name}={shown(value)}: a text is wanted"
        raise InvalidInput(message, path=name)
    if "\x00" in value:
        message = f"{name}: a text with U+0000 at {value.index(chr(0))} cannot be stored"
        raise InvalidInput(message, path=name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{name}: a lone surrogate at {error.start} has no place in UTF-8"
        raise InvalidInput(message, path=name) from None
    return value
