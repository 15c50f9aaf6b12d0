"""What a person sees after all has ended: the last progress, the names of errors, and one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrunner import Fail, StoreBusy, TaskContext, Tasks, UnknownTask
from taskrunner.cli import main
from taskrunner.storage.engine import Statement
from taskrunner.storage.store import Store
from tests.integration.machine import ended, quick


async def test_the_last_progress_is_kept_when_the_body_returns_at_once(db: Path) -> None:
    """A task that says "3 of 3" and returns is shown with these words, not with those of its last step."""
    runner = quick(db)

    @runner.task
    async def count(ctx: TaskContext) -> None:
        for done in (1, 2, 3):
            await ctx.step("count", int, done)
            await ctx.progress(done / 3, f"{done} of 3")

    task = await ended(runner, count.bind())
    assert (task.status, task.progress, task.progress_message) == ("completed", 1.0, "3 of 3")


async def test_the_last_progress_is_kept_when_the_body_raises_at_once(db: Path) -> None:
    """How far a task had come is part of how it failed."""
    runner = quick(db)

    @runner.task
    async def stumble(ctx: TaskContext) -> None:
        await ctx.progress(0.5, "half way")
        raise Fail("the road ends here")

    task = await ended(runner, stumble.bind())
    assert (task.status, task.progress, task.progress_message) == ("failed", 0.5, "half way")


@pytest.mark.parametrize(
    ("error", "name"),
    [(Fail("no"), "taskrunner.Fail"), (StoreBusy("no"), "taskrunner.StoreBusy"), (KeyError("no"), "KeyError")],
)
async def test_our_errors_are_named_as_users_import_them(db: Path, error: Exception, name: str) -> None:
    """Stored texts say `taskrunner.Fail`: where the class is defined is nobody's business."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def stumble() -> None:
        raise error

    task = await ended(runner, stumble.bind())
    assert task.error_type == name
    assert str(task.error_message).startswith(f"{name}: ")


async def test_a_look_at_a_stopped_store_leaves_the_one_file_it_found(db: Path) -> None:
    """Who only reads leaves no `-wal` and no `-shm` beside the store."""
    runner = quick(db)
    async with runner:
        pass
    async with Store.open(runner.settings, runner._clock, writing=False) as store:
        assert await store.engine.read(Statement("schema_version", {})) == [(1,)]
    assert [path.name for path in db.parent.iterdir()] == [db.name]


async def test_no_name_of_a_step_swallows_the_message_of_another(db: Path) -> None:
    """The second step `a` and the first step `a#1` are two: each adds its message."""
    runner = quick(db)

    async def say(word: str) -> None:
        await TaskContext.current().session.add("assistant", word)

    @runner.task
    async def talk(ctx: TaskContext) -> None:
        await ctx.step("a", say, "one")
        await ctx.step("a", say, "two")
        await ctx.step("a#1", say, "three")
        await ctx.options(key="b").step("a", say, "four")
        await ctx.step("a[b]", say, "five")

    async with runner:
        session = await runner.sessions.create()
        await talk.options(session_id=session.id).enqueue()
        await runner.drain()
        assert [message.content for message in await session.recent(9)] == ["one", "two", "three", "four", "five"]


async def test_a_task_that_was_defined_too_late_is_told_so(db: Path) -> None:
    """`include` takes what is defined by then: the error of a later task says what to do."""
    late = Tasks()
    runner = quick(db)
    runner.include(late)

    @late.task
    async def greet() -> None: ...

    async with runner:
        with pytest.raises(UnknownTask, match=r"in no runner: call runner.include.* after it is defined"):
            await greet.enqueue()


def test_steps_are_shown_with_their_keys(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What tells two steps of one name apart is seen by `show`."""
    runner = quick(db)

    @runner.task
    async def resize(ctx: TaskContext) -> None:
        for key in ("small", "large"):
            await ctx.options(key=key).step("resize", str.upper, key)

    with runner.sync as wait:
        handle = wait(resize.enqueue())
        wait(runner.drain())
    assert main(["--db", str(db), "show", handle.id]) == 0
    shown = capsys.readouterr().out
    assert 'resize[small]  attempt 1  "SMALL"' in shown
    assert 'resize[large]  attempt 1  "LARGE"' in shown
