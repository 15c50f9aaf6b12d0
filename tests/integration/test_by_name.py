"""Enqueueing by name from a program that does not know the task, and whose settings count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskrunner import InvalidInput, NoSession, PayloadTooLarge, TaskRunner
from tests.integration.machine import ended, quick, sql


async def test_a_types_own_settings_are_in_the_store(db: Path) -> None:
    """A supervisor writes what its types say of themselves: a client that does not know them enqueues accordingly."""
    runner, stranger = quick(db), TaskRunner(db)

    @runner.task(queue="slow", priority=2, max_retries=7, timeout="2m", max_losses=4)
    async def careful() -> None: ...

    async with stranger:
        before = await (await stranger.enqueue("careful")).task()
        assert (before.queue, before.priority, before.max_retries, before.timeout) == ("default", 5, 3, None)
        async with runner.working(queues=["nothing"]):
            pass
        after = await (await stranger.enqueue("careful")).task()
        assert (after.queue, after.priority, after.max_retries, after.timeout) == ("slow", 2, 7, 120.0)
        assert after.max_losses == 4
        given = await (await stranger.enqueue("careful", queue="q", priority=9, max_retries=0, timeout=5)).task()
        assert (given.queue, given.priority, given.max_retries, given.timeout) == ("q", 9, 0, 5.0)
    async with runner:
        own = await (await careful.options(max_retries=1).enqueue()).task()
        assert (own.queue, own.priority, own.max_retries, own.timeout, own.max_losses) == ("slow", 2, 1, 120.0, 4)


async def test_a_changed_type_is_written_anew(db: Path) -> None:
    """The next supervisor's word counts."""
    for priority in (1, 8):
        runner = quick(db)

        @runner.task(priority=priority)
        async def one() -> None: ...

        async with runner.working():
            pass
    assert sql(db, "SELECT priority FROM task_types WHERE name = 'one'") == [[8]]


async def test_options_of_an_enqueue(db: Path) -> None:
    """Each ends up in the row."""
    runner = quick(db)

    @runner.task
    async def one(n: int = 1) -> None: ...

    moment = datetime(2100, 1, 1, tzinfo=UTC)
    async with runner:
        session = await runner.sessions.create()
        options: dict[str, Any] = {
            "priority": 0, "queue": "q", "session_id": session.id, "unique_key": "u", "idempotency_key": "i",
            "max_retries": 0, "timeout": "1m", "run_at": moment,
        }  # fmt: skip
        typed = await (await one.options(**options).enqueue(n=2)).task()
        options |= {"unique_key": "u2", "idempotency_key": "i2", "run_at": None, "delay": timedelta(hours=1)}
        named = await (await runner.enqueue("other", {"n": 2}, **options)).task()
        for task in (typed, named):
            assert (task.priority, task.queue, task.session_id, task.max_retries) == (0, "q", session.id, 0)
            assert (task.timeout, task.input, task.status) == (60.0, {"n": 2}, "pending")
        assert (typed.unique_key, typed.idempotency_key, typed.run_at) == ("u", "i", moment)
        assert abs((named.run_at - named.created_at).total_seconds() - 3600) < 1


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"delay": -1}, "delay"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": 1, "run_at": datetime(2100, 1, 1, tzinfo=UTC)}, "run_at"),
        ({"run_at": datetime(2100, 1, 1)}, "run_at"),  # noqa: DTZ001 - that is the point
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 2**63}, "max_retries"),
        ({"unique_key": ""}, "unique_key"),
        ({"unique_key": "a\x00"}, "unique_key"),
        ({"idempotency_key": "x" * 201}, "idempotency_key"),
        ({"queue": "\ud800"}, "queue"),
        ({"on_conflict": "maybe", "unique_key": "u"}, "on_conflict"),
        ({"on_conflict": "reject"}, "on_conflict"),
    ],
)
async def test_bad_options_are_refused(db: Path, options: dict[str, Any], path: str) -> None:
    """One sentence that names the option, by name and by task, and nothing is stored."""
    runner = quick(db)

    @runner.task
    async def one() -> None: ...

    async with runner:
        with pytest.raises(InvalidInput) as refused:
            await runner.enqueue("one", {}, **options)
        assert refused.value.path == path
        with pytest.raises(InvalidInput) as refused:
            one.options(**options)
        assert refused.value.path == path
        assert "\n" not in str(refused.value)
        assert await runner.tasks.list() == []


@pytest.mark.parametrize("given", [[1], "text", {"a": float("nan")}, {"a": object()}, {"a": 2**63}, {"\ud800": 1}, 7])
async def test_bad_inputs_are_refused(db: Path, given: Any) -> None:  # noqa: ANN401 - anything
    """By name only JSON and size are checked: an object of JSON values it has to be."""
    runner = quick(db, max_payload="1kB")
    async with runner:
        with pytest.raises(InvalidInput):
            await runner.enqueue("one", given)
        with pytest.raises(PayloadTooLarge):
            await runner.enqueue("one", {"a": "x" * 1_000})
        with pytest.raises(NoSession):
            await runner.enqueue("one", session_id="nobody")
        assert await runner.tasks.list() == []


async def test_another_database_for_tests(tmp_path: Path) -> None:
    """`override` counts for the next opening, before what the code says, and is over with its block."""
    runner = TaskRunner(tmp_path / "production.db")

    @runner.task
    async def one() -> int:
        return 1

    with runner.override(db=tmp_path / "test.db", max_retries=0):
        task = await ended(runner, one.bind())
        assert (task.status, task.max_retries) == ("completed", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["test.db"]
    assert runner.settings.db == str(tmp_path / "production.db")
    assert runner.settings.max_retries == 3


async def test_a_list_is_paged_and_filtered(db: Path) -> None:
    """Newest first; by status, type, queue and session; `after` is the last id of the page before."""
    runner = quick(db)

    @runner.task
    async def a(n: int) -> None: ...

    @runner.task(queue="other")
    async def b(n: int) -> None: ...

    async with runner:
        session = await runner.sessions.create()
        ids = [
            (await (a if n % 2 else b).options(session_id=session.id if n < 4 else None).enqueue(n)).id
            for n in range(9)
        ]
        listed = [task.id for task in await runner.tasks.list(limit=4)]
        assert listed == ids[:4:-1]
        rest = [task.id for task in await runner.tasks.list(after=listed[-1])]
        assert rest == ids[4::-1]
        assert [task.input["n"] for task in await runner.tasks.list(type="a")] == [7, 5, 3, 1]
        assert [task.input["n"] for task in await runner.tasks.list(queue="other", limit=2)] == [8, 6]
        assert [task.input["n"] for task in await runner.tasks.list(session_id=session.id)] == [3, 2, 1, 0]
        await runner.handle(ids[0]).cancel()
        assert [task.id for task in await runner.tasks.list(status="cancelled")] == [ids[0]]
        assert len(await runner.tasks.list(status="pending", session_id=session.id, type="b")) == 1
        wrongs: list[dict[str, Any]] = [{"limit": 0}, {"limit": 1_001}, {"status": "done"}]
        for wrong in wrongs:
            with pytest.raises(InvalidInput):
                await runner.tasks.list(**wrong)
