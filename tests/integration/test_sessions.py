"""Conversations inside tasks: each message once, in order, whatever becomes of the attempts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import InvalidInput, Message, NoSession, Retry, Session, StepFailed, TaskContext, TaskRunner
from tests.integration.machine import EffectLog, ended, program, quick, sql


async def contents(runner: TaskRunner, session_id: str, n: int = 100) -> list[str]:
    """The contents of a session's messages, oldest first."""
    async with runner:
        session = await runner.sessions.get(session_id)
        return [message.content for message in await session.recent(n)]


async def test_a_message_is_kept_as_it_is(db: Path) -> None:
    """Roles, tool calls, payload and token counts come back as they were; the sum of tokens is the session's."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create(title="talk", model="some-model", system_prompt="Be brief.")
        first = await session.add("user", "Hi \U0001f642 é", token_count=3)
        calls = [{"id": "c1", "name": "search", "arguments": {"q": ["a", None, 1.5]}}]
        second = await session.add("assistant", "", tool_calls=calls, token_count=4, payload={"raw": [1, {"x": None}]})
        third = await session.add("tool", "found", tool_call_id="c1", parent_msg_id=second.id)
        again = await runner.sessions.get(session.id)
        assert await again.recent(10) == [first, second, third]
        assert (again.title, again.model, again.system_prompt) == ("talk", "some-model", "Be brief.")
        assert (again.token_usage, again.status) == (7, "active")
        assert second.tool_calls == calls
        assert second.payload == {"raw": [1, {"x": None}]}
        assert (first.parent_msg_id, second.parent_msg_id, third.parent_msg_id) == (None, first.id, second.id)
        assert first.seq < second.seq < third.seq


async def test_recent_gives_the_newest_oldest_first(db: Path) -> None:
    """B66: the order is the order of adding at every read, also when many add at once; a limit cuts the oldest."""
    runner = quick(db)
    async with runner:
        session, other = await runner.sessions.create(), await runner.sessions.create()
        added: list[Message] = list(
            await asyncio.gather(*(session.add("user", str(number), token_count=number) for number in range(50)))
        )
        await other.add("user", "elsewhere")
        assert [message.content for message in await session.recent(50)] == [str(number) for number in range(50)]
        assert await session.recent(3) == added[-3:]
        assert [message.token_count for message in await session.recent(1000)] == list(range(50))
        assert (await runner.sessions.get(session.id)).token_usage == sum(range(50))
        for n in (0, -1, 1001, True, 1.5, "3"):
            with pytest.raises(InvalidInput) as refused:
                await session.recent(n)  # type: ignore[arg-type]
            assert refused.value.path == "n"


async def test_sessions_are_listed_newest_first(db: Path) -> None:
    """By pages; of one status."""
    runner = quick(db)
    async with runner:
        ids = [(await runner.sessions.create(title=str(number))).id for number in range(5)]
        page = await runner.sessions.list(limit=2)
        assert [one.id for one in page] == ids[:-3:-1]
        rest = await runner.sessions.list(after=page[-1].id)
        assert [one.id for one in rest] == ids[2::-1]
        assert await runner.sessions.list(status="archived") == []
        with pytest.raises(NoSession):
            await runner.sessions.get("nobody")


@pytest.mark.parametrize(
    ("role", "content", "options", "path"),
    [
        ("boss", "x", {}, "role"),
        ("user", None, {}, "content"),
        ("user", "a\x00b", {}, "content"),
        ("user", "a\ud800", {}, "content"),
        ("user", "x", {"token_count": -1}, "token_count"),
        ("user", "x", {"token_count": True}, "token_count"),
        ("user", "x", {"token_count": 2**63}, "token_count"),
        ("user", "x", {"payload": float("nan")}, "payload"),
        ("user", "x", {"payload": {"a": [object()]}}, 'payload["a"][0]'),
        ("user", "x", {"tool_calls": [{"n": float("inf")}]}, 'tool_calls[0]["n"]'),
        ("user", "x", {"tool_call_id": 7}, "tool_call_id"),
    ],
)
async def test_bad_messages_are_refused(db: Path, role: Any, content: Any, options: Any, path: str) -> None:  # noqa: ANN401
    """B31: one sentence that names the place, and nothing is stored."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()
        with pytest.raises(InvalidInput) as refused:
            await session.add(role, content, **options)
        assert refused.value.path == path
        assert await session.recent(1) == []


async def test_a_task_adds_each_message_once(db: Path) -> None:
    """B69: outside and inside of steps, by `ctx.session` and by a session of its own, over three retries."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()
        notes = await runner.sessions.create()

    async def answer(ctx: TaskContext, question: str) -> str:
        await ctx.session.add("assistant", f"thinking about {question}")
        await ctx.session.add("assistant", f"answer to {question}", token_count=2)
        return question

    @runner.task(wait=0.01)
    async def talk(ctx: TaskContext) -> int:
        own = await runner.sessions.get(notes.id)
        for question in ("a", "b"):
            told = await ctx.session.add("user", question, token_count=1)
            assert told.content == question
            assert told.seq > 0
            await ctx.step("answer", answer, ctx, question)
            await own.add("system", f"noted {question}")
        if ctx.attempt < 4:
            raise ConnectionError
        return len(await ctx.session.recent(100))

    task = await ended(runner, talk.options(session_id=session.id).bind())
    assert task.output == 6, task.error_message
    expected = ["a", "thinking about a", "answer to a", "b", "thinking about b", "answer to b"]
    assert await contents(runner, session.id) == expected
    assert await contents(runner, notes.id) == ["noted a", "noted b"]
    async with runner:
        assert (await runner.sessions.get(session.id)).token_usage == 6


async def test_the_first_write_wins(db: Path) -> None:
    """Outside of steps a re-run gets the message as it was written, even if the body would say something else now."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()

    @runner.task
    async def talk(ctx: TaskContext) -> str:
        told = await ctx.session.add("assistant", f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise Retry(after=0)
        return told.content

    assert (await ended(runner, talk.options(session_id=session.id).bind())).output == "attempt 1"
    assert await contents(runner, session.id) == ["attempt 1"]


async def test_messages_of_a_step_share_its_fate(db: Path) -> None:
    """They are written with the step's record or not at all: a try that failed leaves none behind."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()
    tries: list[int] = []

    async def flaky(ctx: TaskContext) -> str:
        tries.append(1)
        told = await ctx.session.add("assistant", f"try {len(tries)}")
        assert (told.content, told.seq) == (f"try {len(tries)}", 0)
        assert f"try {len(tries)}" not in [message.content for message in await ctx.session.recent(9)]
        if len(tries) in {1, 3}:
            raise ConnectionError
        return "ok"

    @runner.task
    async def talk(ctx: TaskContext) -> str:
        await ctx.options(max_retries=1, wait=0.01).step("flaky", flaky, ctx)
        with pytest.raises(StepFailed):
            await ctx.step("flaky", flaky, ctx)
        return "done"

    assert (await ended(runner, talk.options(session_id=session.id).bind())).output == "done"
    assert await contents(runner, session.id) == ["try 2"]


async def test_steps_of_any_name_keep_their_messages(db: Path) -> None:
    """Names that look like numbers and keys of other steps: no message takes another one's place."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()

    async def note(ctx: TaskContext, text: str) -> None:
        await ctx.session.add("system", text)

    @runner.task
    async def talk(ctx: TaskContext) -> None:
        names = [("a", None), ("a", None), ("a#1", None), ("a[b]", None), ("a", "b"), ("a", "b"), ("a[b]#1", None)]
        for name, key in names:
            await ctx.options(key=key).step(name, note, ctx, f"{name} {key}")
        for name in ("session.add", "session.add#0"):
            await ctx.session.add("system", f"before {name}")
            await ctx.step(name, note, ctx, name)

    task = await ended(runner, talk.options(session_id=session.id).bind())
    assert task.status == "completed", task.error_message
    assert len(await contents(runner, session.id)) == 11


async def test_messages_from_several_branches(db: Path) -> None:
    """Outside of steps their order would be by chance, so it is refused in one sentence; inside of steps it works."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()

    async def note(ctx: TaskContext, text: str) -> None:
        await ctx.session.add("system", text)

    @runner.task(max_retries=0)
    async def talk(ctx: TaskContext, *, steps: bool) -> None:
        async def branch(text: str) -> None:
            if steps:
                await ctx.step(f"note {text}", note, ctx, text)
            else:
                await ctx.session.add("system", text)

        async with anyio.create_task_group() as group:
            group.start_soon(branch, "a")
            group.start_soon(branch, "b")

    task = await ended(runner, talk.options(session_id=session.id).bind(steps=False))
    assert task.status == "failed"
    assert "session.add is called from several async tasks" in str(task.error_message)
    assert (await ended(runner, talk.options(session_id=session.id).bind(steps=True))).status == "completed"
    assert {"a", "b"} <= set(await contents(runner, session.id))


async def test_a_task_without_a_session_says_so(db: Path) -> None:
    """`ctx.session` is never None: it raises."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def one(ctx: TaskContext) -> None:
        with pytest.raises(NoSession, match="session_id"):
            _ = ctx.session

    assert (await ended(runner, one.bind())).status == "completed"
    async with runner:
        with pytest.raises(NoSession):
            await one.options(session_id="nobody").enqueue()


@pytest.mark.parametrize("where", ["client", "body", "step"])
async def test_an_unknown_parent_is_refused(db: Path, where: str) -> None:
    """`parent_msg_id` has to be a message's id, wherever the message is added."""
    runner = quick(db)

    async def note(session: Session) -> None:
        await session.add("system", "x", parent_msg_id="nobody")

    @runner.task(max_retries=0)
    async def one(ctx: TaskContext) -> None:
        await (note(ctx.session) if where == "body" else ctx.step("note", note, ctx.session))

    async with runner:
        session = await runner.sessions.create()
        with pytest.raises(InvalidInput) as refused:
            await note(session)
        assert refused.value.path == "parent_msg_id"
        if where != "client":
            handle = await one.options(session_id=session.id).enqueue()
            await runner.drain()
            assert (await handle.task()).error_type == "taskrunner.InvalidInput"
        assert await session.recent(9) == []


@pytest.mark.parametrize("where", ["body", "step"])
async def test_a_deleted_session_takes_no_messages(db: Path, where: str) -> None:
    """A task that writes to it gets `NoSession`, and nothing is left half written."""
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()

    async def note(ctx: TaskContext) -> None:
        await ctx.session.add("system", "too late")

    @runner.task(max_retries=0)
    async def one(ctx: TaskContext) -> None:
        await anyio.to_thread.run_sync(sql, db, "UPDATE sessions SET status = 'deleted'")
        if where == "step":
            await ctx.step("note", note, ctx)
        else:
            await note(ctx)

    task = await ended(runner, one.options(session_id=session.id).bind())
    assert (task.status, task.error_type) == ("failed", "taskrunner.NoSession")
    assert "deleted" in str(task.error_message)
    assert sql(db, "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM steps)") == [[0, 0]]


TALK = """
@runner.task
async def talk(ctx: TaskContext) -> None:
    for number in range(20):
        await ctx.session.add("user", f"question {number}")
        await ctx.step("answer", answer, ctx, number)
        effect("turn", number)

async def answer(ctx, number):
    await ctx.session.add("assistant", f"answer {number}")
    await ctx.session.add("tool", f"proof {number}")

anyio.run(runner.run)
"""


async def test_a_killed_conversation_has_each_message_once(db: Path, tmp_path: Path) -> None:
    """B69: SIGKILL again and again, between a message and its step: each message once, in order."""
    log = EffectLog(tmp_path / "effects")
    runner = quick(db)
    async with runner:
        session = await runner.sessions.create()
        handle = await runner.enqueue("talk", session_id=session.id)
        for turns in (3, 8, 8, 15):
            with program(db, log, TALK) as supervisor:
                await anyio.to_thread.run_sync(log.wait_for, turns)
                supervisor.kill(9)
        with program(db, log, TALK) as supervisor:
            await handle.result(timeout=10)
            supervisor.kill(15)
            assert supervisor.wait()[0] == 0
        messages = await session.recent(1000)
    expected = [f"{kind} {number}" for number in range(20) for kind in ("question", "answer", "proof")]
    assert [message.content for message in messages] == expected
