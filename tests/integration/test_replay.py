"""Replay: what an attempt finds recorded, and what happens to a body that no longer follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import LeaseLost, NonDeterministicStep, Retry, StepFailed, TaskContext
from tests.integration.machine import ended, quick

AGAIN = 0.01
"""Seconds."""


class Connection:
    """What has no JSON form: another one in each attempt."""


class OtherConnection:
    """Another type without a JSON form."""


async def test_recorded_steps_never_run_again(db: Path) -> None:
    """B12: one name in a loop with equal arguments is five steps, and a replay runs only what is missing."""
    runner = quick(db)
    ran: list[int] = []

    async def poll() -> int:
        ran.append(len(ran) + 1)
        return ran[-1]

    @runner.task
    async def polling(ctx: TaskContext) -> list[int]:
        got = []
        for number in range(5):
            if number == 3 and ctx.attempt == 1:
                raise Retry(after=0)
            got.append(await ctx.step("poll", poll))
        return got

    task = await ended(runner, polling.bind())
    assert (task.output, ran, task.attempt) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 2)


async def test_concurrent_steps_keep_their_numbers(db: Path) -> None:
    """A step's number is taken at its call: gather, a TaskGroup and `start_soon` with own names replay in any order."""
    runner = quick(db)
    ran: list[str] = []

    async def work(word: str, delay: float) -> str:
        await anyio.sleep(delay)
        ran.append(word)
        return word

    @runner.task
    async def wide(ctx: TaskContext) -> list[list[str]]:
        slow_first = ctx.attempt == 1
        delays = [0.06, 0.04, 0.0] if slow_first else [0.0, 0.04, 0.06]
        words = ["a", "b", "c"]
        gathered = await asyncio.gather(*(ctx.step("g", _later(work, delays.pop(0)), word) for word in words))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step("t", _later(work, 0.0), f"t{word}")) for word in words]
        named: list[str] = []

        async def own(word: str) -> None:
            named.append(await ctx.step(f"own {word}", _later(work, 0.0), f"o{word}"))

        async with anyio.create_task_group() as branches:
            for word in words if slow_first else reversed(words):
                branches.start_soon(own, word)
        if ctx.attempt < 3:
            raise Retry(after=0)
        return [gathered, [task.result() for task in tasks], sorted(named)]

    task = await ended(runner, wide.bind())
    assert task.output == [["a", "b", "c"], ["ta", "tb", "tc"], ["oa", "ob", "oc"]], task.error_message
    assert sorted(ran) == sorted(["a", "b", "c", "ta", "tb", "tc", "oa", "ob", "oc"])


def _later(work: Callable[[str, float], Awaitable[str]], delay: float) -> Callable[[str], Awaitable[str]]:
    async def later(word: str) -> str:
        return await work(word, delay)

    return later


@pytest.mark.parametrize("catch", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        (("a", 1), ("a", 2), "other arguments"),
        (("a", [1, {"k": 1}]), ("a", [1, {"k": 2}]), "other arguments"),
        (("a", 1), ("b", 1), "was recorded"),
        (("a", Connection()), ("a", OtherConnection()), "other arguments"),
    ],
)
async def test_a_body_that_takes_other_steps_is_stopped(
    db: Path, catch: bool, first: tuple[str, Any], second: tuple[str, Any], why: str
) -> None:
    """Another step or another argument at a recorded place ends the attempt, caught or not, and burns no retry."""
    runner = quick(db)
    ran: list[str] = []

    def note(name: str, value: object) -> str:
        ran.append(name)
        return name

    @runner.task(wait=AGAIN)
    async def changed(ctx: TaskContext) -> str:
        name, value = first if ctx.attempt == 1 else second
        try:
            await ctx.step(name, note, name, value)
        except BaseException:
            if not catch:
                raise
        if ctx.attempt == 1:
            raise Retry(after=0)
        try:
            await ctx.step("later", note, "later", 0)
        except BaseException:
            if not catch:
                raise
        return "finished"

    task = await ended(runner, changed.bind())
    assert (task.status, task.attempt, task.retry_count) == ("failed", 2, 1)
    assert task.error_type == "taskrunner.NonDeterministicStep"
    assert task.error_message is not None
    assert why in task.error_message
    assert ran == [first[0]]
    assert task.output is None


async def test_another_order_is_noticed(db: Path) -> None:
    """Two steps that change places are another program, although both are recorded."""
    runner = quick(db)

    @runner.task(wait=AGAIN)
    async def swapped(ctx: TaskContext) -> None:
        for name in ("a", "b") if ctx.attempt == 1 else ("b", "a"):
            await ctx.step(name, str.upper, "x")
        raise Retry(after=0)

    task = await ended(runner, swapped.bind())
    assert (task.status, task.attempt) == ("failed", 2)
    assert task.error_message is not None
    assert "'b' is called where 'a' was recorded" in task.error_message


async def test_objects_without_a_json_form_count_by_their_type(db: Path) -> None:
    """A client or a connection is another object in each attempt: only its type is compared."""
    runner = quick(db)
    seen: list[object] = []

    def use(connection: Connection, number: int) -> int:
        seen.append(connection)
        return number

    @runner.task
    async def one(ctx: TaskContext) -> int:
        got = await ctx.step("use", use, Connection(), 1)
        if ctx.attempt == 1:
            raise Retry(after=0)
        return got

    task = await ended(runner, one.bind())
    assert (task.output, len(seen)) == (1, 1), task.error_message


async def test_a_recorded_result_that_fits_its_type_no_more_is_another_program(db: Path) -> None:
    """A step's return annotation that changed between two attempts: the record is not bent into it."""
    runner = quick(db)

    def number() -> int:
        return 7

    def text() -> str:
        return "seven"

    @runner.task(wait=AGAIN)
    async def one(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            await ctx.step("make", number)
            raise Retry(after=0)
        await ctx.step("make", text)

    task = await ended(runner, one.bind())
    assert (task.status, task.error_type) == ("failed", "taskrunner.NonDeterministicStep")


async def test_time_and_chance_are_the_same_on_replay(db: Path) -> None:
    """`ctx.now`, `ctx.random` and `ctx.uuid` outside of steps: what a recorded step may depend on never changes."""
    runner = quick(db)
    seen: list[tuple[Any, ...]] = []
    inside: list[Any] = []

    def use(*given: str) -> str:
        inside.append(TaskContext.current().now())
        return " ".join(given)

    @runner.task
    async def one(ctx: TaskContext) -> str:
        values = (ctx.now(), ctx.random(), ctx.uuid(), ctx.now(), ctx.random(), ctx.uuid())
        seen.append(values)
        used = await ctx.step("use", use, *map(str, values))
        if ctx.attempt < 3:
            raise Retry(after=0)
        return used

    task = await ended(runner, one.bind())
    assert task.status == "completed", task.error_message
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 6
    assert seen[0][0].tzinfo is not None
    assert 0 <= seen[0][1] < 1
    assert task.output == " ".join(map(str, seen[0]))
    assert len(inside) == 1
    assert inside[0] > seen[0][3]  # inside a step it is the time itself


async def test_a_key_that_left_with_a_step_that_died_is_the_same_again(db: Path) -> None:
    """`ctx.uuid()` handed to a service by a step that was not recorded: the next attempt hands over the same one."""
    runner = quick(db)
    keys: list[tuple[str, float]] = []

    def charge(key: str, chance: float) -> None:
        keys.append((key, chance))
        if len(keys) < 3:
            raise Retry(after=0)

    @runner.task
    async def one(ctx: TaskContext) -> None:
        await ctx.step("charge", charge, ctx.uuid(), ctx.random())

    assert (await ended(runner, one.bind())).status == "completed"
    assert (await ended(runner, one.bind())).status == "completed"
    assert keys[0] == keys[1] == keys[2] != keys[3]


async def test_the_idempotency_key_is_stable(db: Path) -> None:
    """The same for every try and every attempt of one step, and another for every other step and task."""
    runner = quick(db)
    keys: dict[str, list[str]] = {}

    async def pay(name: str) -> str:
        context = TaskContext.current()
        tried = keys.setdefault(f"{context.task.id} {name}", [])
        tried.append(context.idempotency_key)
        if len(tried) < 4:
            raise ConnectionError(name)
        return context.idempotency_key

    @runner.task(wait=AGAIN)
    async def paying(ctx: TaskContext) -> list[str]:
        steps = ctx.options(max_retries=1, wait=AGAIN)
        keyed = ctx.options(max_retries=1, wait=AGAIN, key="second")
        return [await steps.step("pay", pay, "a"), await steps.step("pay", pay, "b"), await keyed.step("pay", pay, "c")]

    one = await ended(runner, paying.options(max_retries=9).bind())
    two = await ended(runner, paying.options(max_retries=9).bind())
    assert one.status == two.status == "completed"
    assert all(len(tried) == 4 and len(set(tried)) == 1 for tried in keys.values())
    assert len({*one.output, *two.output}) == 6


async def test_what_ends_an_attempt_is_no_exception() -> None:
    """`except Exception` in a body must not see it, for every saga compensates there."""
    assert not issubclass(NonDeterministicStep, Exception)
    assert not issubclass(LeaseLost, Exception)


async def test_a_step_fails_with_its_cause_the_first_time(db: Path) -> None:
    """`StepFailed` carries the original as `__cause__` when it happens; on replay there is its type and text."""
    runner = quick(db)
    failures: list[StepFailed] = []

    def charge() -> None:
        raise ConnectionError("no route")

    @runner.task
    async def paying(ctx: TaskContext) -> str:
        try:
            await ctx.step("charge", charge)
        except StepFailed as failure:
            failures.append(failure)
        released = await ctx.step("release", str.upper, "released")
        if ctx.attempt == 1:
            raise Retry(after=0)
        return released

    task = await ended(runner, paying.bind())
    assert task.output == "RELEASED"
    first, again = failures
    assert isinstance(first.__cause__, ConnectionError)
    assert again.__cause__ is None
    for failure in failures:
        assert (failure.step, failure.error_type) == ("charge", "ConnectionError")
        assert "no route" in failure.details
