"""Sessions and messages: durable, in order, written once, summed up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from taskrunner.core.errors import InvalidInput, NoSession
from taskrunner.core.model import Message, SessionRow
from taskrunner.storage.engine import Rejected
from taskrunner.storage.messages import NewMessage
from taskrunner.storage.store import Store
from tests.stores import StillClock, sql


@pytest.fixture
async def session(store: Store) -> SessionRow:
    """A conversation."""
    return await store.messages.create_session(title="A talk", model="m", system_prompt="Be brief.")


def new(store: Store, session: SessionRow, content: str = "hello", **fields: Any) -> NewMessage:  # noqa: ANN401
    """A message to be added."""
    given: dict[str, Any] = {"role": "user", "content": content, **fields}
    return NewMessage(id=store.messages.new_id(), session_id=session.id, **given)


async def add(store: Store, message: NewMessage) -> Message:
    """Add a message."""
    return await store.messages.write([store.messages.add(message)])


async def test_a_message_comes_back_as_it_was_added(store: Store, session: SessionRow) -> None:
    """Every field of it, and what was added is what is read."""
    call = '[{"id": "c", "args": {"x": null}}]'
    said = await add(store, new(store, session, "", role="assistant", tool_calls=call, payload='{"deep": [1, {}]}'))
    answer = await add(store, new(store, session, "ü\U0001f600", role="tool", tool_call_id="c", token_count=7))
    assert (said.content, said.tool_calls, said.payload) == ("", [{"id": "c", "args": {"x": None}}], {"deep": [1, {}]})
    assert (answer.content, answer.tool_call_id, answer.token_count, answer.payload) == ("ü\U0001f600", "c", 7, None)
    assert (said.parent_msg_id, answer.parent_msg_id) == (None, said.id)
    assert await store.messages.recent(session.id, 9) == [said, answer]


async def test_recent_is_the_newest_oldest_first(store: Store, session: SessionRow) -> None:
    """In the order of the adding, however many come at once and whatever the clock says."""
    other = await store.messages.create_session(title="", model=None, system_prompt=None)
    for number in range(20):
        await add(store, new(store, session, str(number)))
        await add(store, new(store, other, "elsewhere"))
    assert [message.content for message in await store.messages.recent(session.id, 5)] == ["15", "16", "17", "18", "19"]
    await asyncio.gather(*(add(store, new(store, session, f"at once {number}")) for number in range(200)))
    newest = await store.messages.recent(session.id, 200)
    assert [message.content for message in newest] == [f"at once {number}" for number in range(200)]
    assert await store.messages.recent("nobody", 5) == []


async def test_a_message_hangs_on_the_newest_or_on_the_one_it_names(store: Store, session: SessionRow) -> None:
    """`parent_msg_id` makes the conversation a tree; a parent that is not there is refused."""
    first = await add(store, new(store, session, "first"))
    second = await add(store, new(store, session, "second"))
    branch = await add(store, new(store, session, "branch", parent_msg_id=first.id))
    assert (second.parent_msg_id, branch.parent_msg_id) == (first.id, first.id)
    assert (await add(store, new(store, session))).parent_msg_id == branch.id
    with pytest.raises(InvalidInput, match="parent_msg_id: no message has this id"):
        await add(store, new(store, session, parent_msg_id="nobody"))


async def test_a_write_of_a_task_is_added_once(store: Store, session: SessionRow) -> None:
    """The first write under a key wins; a repeated one is told what was written, and counts no tokens (I20)."""
    first = await add(store, new(store, session, "first", history_id="h", write_key="k", token_count=5))
    again = await add(store, new(store, session, "again", history_id="h", write_key="k", token_count=9))
    assert again == first
    other = await add(store, new(store, session, "other", history_id="h2", write_key="k"))
    assert [message.id for message in await store.messages.recent(session.id, 9)] == [first.id, other.id]
    assert (await store.messages.session(session.id)).token_usage == 5


async def test_token_usage_is_the_sum(store: Store, session: SessionRow, clock: StillClock) -> None:
    """Of all that was added, together with the time of the last message (G5)."""
    clock.advance(10)
    messages = [new(store, session, token_count=number) for number in range(100)]
    await asyncio.gather(*(add(store, message) for message in messages))
    with pytest.raises(Rejected):
        await store.messages.write(
            [store.messages.add(message) for message in (new(store, session, token_count=9), messages[0])]
        )
    now = await store.messages.session(session.id)
    assert (now.token_usage, now.updated_at) == (4_950, clock.now())
    assert now.created_at < now.updated_at


async def test_sessions_are_listed_newest_first_in_pages(store: Store, db: Path) -> None:
    """By status, `after` the last one of the page before."""
    made = [
        await store.messages.create_session(title=str(number), model=None, system_prompt=None) for number in range(7)
    ]
    sql(db, f"UPDATE sessions SET status = 'archived' WHERE id = '{made[3].id}'")  # noqa: S608 - a test's own text
    pages, after = [], None
    while page := await store.messages.sessions(status="active", limit=4, after=after):
        pages.append([session.title for session in page])
        after = page[-1].id
    assert pages == [["6", "5", "4", "2"], ["1", "0"]]
    assert len(await store.messages.sessions(status=None, limit=9, after=None)) == 7
    assert [session.title for session in await store.messages.sessions(status="archived", limit=9, after=None)] == ["3"]


async def test_a_session_that_is_not_there_or_deleted(store: Store, session: SessionRow, db: Path) -> None:
    """Both are named in one sentence, and nothing is written."""
    with pytest.raises(NoSession, match="no session has the id 'nobody'"):
        await store.messages.session("nobody")
    nobody = NewMessage(id="m", session_id="nobody", role="user", content="")
    with pytest.raises(NoSession, match="no session has the id that this message names"):
        await add(store, nobody)
    sql(db, "UPDATE sessions SET status = 'deleted'")
    with pytest.raises(NoSession, match="the session is deleted: it takes no new messages"):
        await add(store, new(store, session))
    assert await store.messages.recent(session.id, 1) == []
