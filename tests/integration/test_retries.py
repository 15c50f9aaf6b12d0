"""Retries: how often, after which errors, and after how long, all of it in the database."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import tenacity

from taskrunner import (
    Fail,
    InvalidInput,
    Retry,
    StepFailed,
    StoreError,
    TaskContext,
    TaskFailed,
    TaskHandle,
    TaskRunner,
)
from taskrunner.storage.engine import Rows, Statement
from tests.integration.machine import Heard, ended, quick, sql, until

AGAIN = 0.01
"""Seconds."""


async def test_a_task_is_tried_again_until_its_retries_are_used_up(db: Path) -> None:
    """`max_retries` more attempts, each on record with its error; then the task is failed with the last one."""
    runner = quick(db)
    heard = Heard(runner)

    @runner.task(max_retries=2, wait=AGAIN)
    async def broken(ctx: TaskContext) -> None:
        raise ConnectionError(f"attempt {ctx.attempt}")

    async with runner.working():
        handle = await broken.enqueue()
        with pytest.raises(Exception, match="attempt 3"):
            await handle.result(timeout=10)
        info = await handle.info()
    assert (info.task.status, info.task.attempt, info.task.retry_count) == ("failed", 3, 2)
    assert [(one.outcome, one.error_message) for one in info.attempts] == [
        ("retried", "ConnectionError: attempt 1"),
        ("retried", "ConnectionError: attempt 2"),
        ("failed", "ConnectionError: attempt 3"),
    ]
    assert all(one.traceback and 'raise ConnectionError(f"attempt' in one.traceback for one in info.attempts)
    assert [event["error"] for event in heard.of("task.retried")] == [
        "ConnectionError: attempt 1",
        "ConnectionError: attempt 2",
    ]
    assert len(heard.of("task.failed")) == 1


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (ConnectionError, {"ConnectionResetError": 2, "ValueError": 1}),
        ((ConnectionError, ValueError), {"ConnectionResetError": 2, "ValueError": 2}),
        (tenacity.retry_if_exception_type(OSError), {"ConnectionResetError": 2, "ValueError": 1}),
        (tenacity.retry_if_exception_message(match="again"), {"ConnectionResetError": 2, "ValueError": 2}),
        (
            tenacity.retry_if_exception_type(OSError) & tenacity.retry_if_exception(lambda error: "no" in str(error)),
            {"ConnectionResetError": 1, "ValueError": 1},
        ),
        (None, {"ConnectionResetError": 2, "ValueError": 2}),
    ],
)
async def test_which_errors_are_tried_again(
    db: Path, retry: type[Exception] | tenacity.retry_base | None, expected: dict[str, int]
) -> None:
    """Exception types and tenacity predicates, also for what a step raised: the step's own error is looked at."""
    runner = quick(db)

    def fail(kind: str) -> None:
        raise {"ConnectionResetError": ConnectionResetError, "ValueError": ValueError}[kind]("again")

    @runner.task(retry=retry, wait=AGAIN, max_retries=1)
    async def direct(ctx: TaskContext, kind: str) -> None:
        fail(kind)

    @runner.task(retry=retry, wait=AGAIN, max_retries=1)
    async def by_step(ctx: TaskContext, kind: str) -> None:
        await ctx.step("fail", fail, kind)

    @runner.task(retry=retry, wait=AGAIN, max_retries=1)
    async def in_a_group(ctx: TaskContext, kind: str) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("fail", fail, kind))

    for kind, attempts in expected.items():
        for task in (direct, by_step, in_a_group):
            row = await ended(runner, task.bind(kind))
            assert (row.status, row.attempt) == ("failed", attempts), (task.name, kind, row.error_message)


async def test_retry_says_when(db: Path) -> None:
    """`Retry(after=…)` takes seconds, a text, a timedelta or a moment; the row says when, and it is not run earlier."""
    runner = quick(db)
    starts: list[float] = []

    @runner.task(max_retries=9)
    async def later(ctx: TaskContext) -> int:
        starts.append(time.monotonic())
        if ctx.attempt <= 4:
            moment = datetime.now(UTC) + timedelta(seconds=0.3)
            moments: list[Any] = [0.3, "300ms", timedelta(seconds=0.3), moment]
            raise Retry("not yet", after=moments[ctx.attempt - 1])
        return ctx.attempt

    task = await ended(runner, later.bind())
    assert (task.output, task.retry_count) == (5, 4)
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert all(0.28 < gap < 0.9 for gap in gaps), gaps


async def test_fail_ends_at_once(db: Path) -> None:
    """`Fail` says that no retry helps, however it comes out: raised, from a step, or from a branch of a group."""
    runner = quick(db)

    def refuse() -> None:
        raise Fail("wrong key")

    @runner.task(max_retries=5, wait=AGAIN)
    async def failing(ctx: TaskContext, how: str) -> None:
        if how == "raise":
            refuse()
        elif how == "step":
            await ctx.step("refuse", refuse)
        elif how == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("refuse", refuse))
                group.create_task(asyncio.sleep(5))
        else:
            async with anyio.create_task_group() as branches:
                branches.start_soon(ctx.step, "refuse", refuse)

    for how in ("raise", "step", "group", "anyio"):
        task = await ended(runner, failing.bind(how))
        assert (task.status, task.attempt, task.retry_count) == ("failed", 1, 0), how
        assert "wrong key" in str(task.error_message)


async def test_retry_from_a_branch(db: Path) -> None:
    """`Retry` in a branch of a task group is still the task's word, with its moment."""
    runner = quick(db)

    def ask() -> None:
        raise Retry("busy", after=AGAIN)

    @runner.task(retry=ValueError, max_retries=5)
    async def one(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("ask", ask))
        return "done"

    assert (await ended(runner, one.bind(), within=5)).output == "done"


@pytest.mark.parametrize("after", [-1, float("nan"), "soon", datetime(2030, 1, 1), object()])  # noqa: DTZ001
async def test_a_retry_that_says_nonsense_is_still_a_retry(db: Path, after: object) -> None:
    """A moment without a time zone, a negative wait: the task's own `wait` counts, and the traceback says why."""
    runner = quick(db)

    @runner.task(wait=AGAIN)
    async def one(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            raise Retry("busy", after=after)  # type: ignore[arg-type]
        return "done"

    async with runner.working():
        handle = await one.enqueue()
        assert await handle.result(timeout=5) == "done"
        (first,) = [one for one in (await handle.info()).attempts if one.outcome == "retried"]
    assert "busy" in str(first.error_message)
    assert "after=" in str(first.traceback)


async def test_no_retries(db: Path) -> None:
    """`max_retries=0`: one attempt, and even `Retry` fails then."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def one(ctx: TaskContext) -> None:
        raise Retry("once more", after=0)

    task = await ended(runner, one.bind())
    assert (task.status, task.attempt, task.retry_count) == ("failed", 1, 0)
    assert "once more" in str(task.error_message)


async def test_the_default_wait_grows_with_the_retries(db: Path) -> None:
    """Without `wait=` it is exponential with jitter, from a second on: it stands in the row, not in a process."""
    runner = quick(db)

    @runner.task
    async def broken() -> None:
        raise ConnectionError

    async with runner:
        handle = await broken.enqueue()
        before = datetime.now(UTC)
        assert await runner.drain() == 0
        task = await handle.task()
        assert (task.status, task.retry_count, task.max_retries) == ("pending", 1, 3)
        assert 0.9 < (task.run_at - before).total_seconds() < 3
        assert await runner.drain() == 0
        assert (await handle.task()).attempt == 1


async def retried(handle: TaskHandle[Any]) -> bool:
    """Whether a task has used a retry."""
    return (await handle.task()).retry_count > 0


async def test_a_wait_outlives_the_supervisor(db: Path) -> None:
    """A retry that waits is a row: another supervisor, started meanwhile, runs it when it is due, and not before."""
    ran: list[tuple[str, float]] = []

    def machine(name: str) -> TaskRunner:
        runner = quick(db)

        @runner.task(name="once_more")
        async def once_more(ctx: TaskContext) -> str:
            ran.append((name, time.monotonic()))
            if ctx.attempt == 1:
                raise Retry(after=0.8)
            return name

        return runner

    first = machine("first")
    async with first.working():
        handle = await first.enqueue("once_more")
        await until(lambda: retried(first.handle(handle.id)))
    second = machine("second")
    async with second.working():
        assert await second.handle(handle.id).result(timeout=5) == "second"
    assert [name for name, _ in ran] == ["first", "second"]
    assert ran[1][1] - ran[0][1] > 0.75


@pytest.mark.parametrize("retry_count", [16, 47, 1_100])
async def test_back_off_never_overflows(db: Path, retry_count: int) -> None:
    """B26: after 16, 47 or 1,100 retries the next one comes after the wait's own maximum; the task is still there."""
    runner = quick(db)
    waits = {
        "default": (None, 300.0),
        "steep": (tenacity.wait_exponential(multiplier=1, exp_base=5, min=1, max=60), 60.0),
        "endless": (tenacity.wait_exponential(multiplier=2), 300.0),
        "jittered": (tenacity.wait_exponential_jitter(initial=1, exp_base=5, max=60, jitter=2), 60.0),
    }

    async def broken() -> None:
        raise ConnectionError

    for name, (wait, _cap) in waits.items():
        runner.task(name=name, wait=wait, max_retries=5_000)(broken)
    async with runner:
        handles = [await runner.enqueue(name) for name in waits]
    sql(db, "UPDATE tasks SET retry_count = ?", retry_count)
    async with runner:
        before = datetime.now(UTC)
        assert await runner.drain() == 0
        for handle, (name, (_wait, cap)) in zip(handles, waits.items(), strict=True):
            task = await handle.task()
            assert (task.status, task.retry_count) == ("pending", retry_count + 1), name
            delay = (task.run_at - before).total_seconds()
            enough = cap if retry_count > 16 else min(cap, 300)
            if name == "endless" and delay > 300:
                assert delay <= 100 * 366 * 86_400  # what the user's own formula says, as long as it is a date
            else:
                assert enough - 1 < delay < cap + 5, (name, delay)


@pytest.mark.parametrize(
    "wait", [0, -1, float("inf"), float("nan"), "0s", tenacity.wait_fixed(0), tenacity.wait_fixed(-1), object()]
)
async def test_waits_that_cannot_be_are_refused_at_the_door(db: Path, wait: object) -> None:
    """B26: zero, negative and infinite waits are refused when the task is defined, in one sentence."""
    runner = quick(db)
    with pytest.raises(InvalidInput) as refused:
        runner.task(wait=wait)(lambda: None)  # type: ignore[call-overload]
    assert refused.value.path == "wait"
    assert str(refused.value).startswith("wait")


async def test_a_replayed_failure_is_known_by_its_type(db: Path) -> None:
    """`retry=` still sees what the step raised when its recorded failure is raised again."""
    runner = quick(db)

    def charge() -> None:
        raise ConnectionResetError("gone")

    @runner.task(retry=ConnectionResetError, wait=AGAIN, max_retries=2)
    async def one(ctx: TaskContext) -> None:
        try:
            await ctx.step("charge", charge)
        except StepFailed:
            await ctx.step("undo", str.upper, "x")
            raise

    assert (await ended(runner, one.bind())).attempt == 3


# ── what is known of a failure ────────────────────────────────────────────────────────────────────────────────────────


def look_up(key: str) -> int:
    """What a body calls, in a step or itself."""
    return {"a": 1}[key]


async def in_a_step(ctx: TaskContext) -> int:
    """A body whose step fails."""
    return await ctx.step("look up", look_up, "b")


async def by_itself(ctx: TaskContext) -> int:
    """A body on the event loop that fails."""
    return look_up("b")


def in_a_thread(ctx: TaskContext) -> int:
    """A plain body, in a thread."""
    return look_up("b")


@pytest.mark.parametrize("body", [in_a_step, by_itself, in_a_thread])
async def test_a_traceback_tells_of_the_users_code(db: Path, body: Any) -> None:  # noqa: ANN401 - three kinds of body
    """Its first line is the body's and not ours, and the line that raised is there, also when a step was around it."""
    runner = quick(db)
    task = runner.task(max_retries=0)(body)
    async with runner.working():
        handle = await task.enqueue()
        with pytest.raises(TaskFailed):
            await handle.result(timeout=10)
        text = (await handle.info()).attempts[0].traceback or ""
    places = [line.strip() for line in text.splitlines() if line.lstrip().startswith("File ")]
    assert all(__file__ in place for place in places[:1]), text
    assert 'return {"a": 1}[key]' in text
    assert f"in {body.__name__}" in text


async def test_an_input_that_does_not_fit_is_one_sentence(db: Path) -> None:
    """Where no code of the user ran, there is no code of ours to be read either."""
    runner = quick(db)
    runner.task(name="typed")(look_up)
    async with runner.working():
        handle = await runner.enqueue("typed", {"key": 5})
        with pytest.raises(TaskFailed):
            await handle.result(timeout=10)
        text = (await handle.info()).attempts[0].traceback
    assert text == "taskrunner.InvalidInput: key=5: expected str, got int\n"


async def test_a_store_that_cannot_be_read_for_a_moment_fails_no_task(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an attempt has recorded cannot be read when it begins, as with a disk that fails: it is tried again."""
    runner = quick(db)
    left = 2

    @runner.task(wait=0.01, retry=LookupError)
    async def job(ctx: TaskContext) -> int:
        await ctx.step("first", lambda: 1)
        if ctx.attempt == 1:
            raise LookupError
        return ctx.attempt

    async with runner.working():
        read = runner.store.engine.read

        async def failing(statement: Statement) -> Rows:
            nonlocal left
            if statement.name == "steps" and left:
                left -= 1
                message = "the disk failed"
                raise StoreError(message)
            return await read(statement)

        monkeypatch.setattr(runner.store.engine, "read", failing)
        handle = await job.enqueue()
        assert await handle.result(timeout=10) == 4
        info = await handle.info()
    assert [attempt.outcome for attempt in info.attempts] == ["retried", "retried", "retried", "completed"]
    assert [attempt.error_type for attempt in info.attempts[1:3]] == ["taskrunner.StoreError"] * 2
