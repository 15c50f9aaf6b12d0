"""Steps, the first time: what runs, where it runs, and what a step gives."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import anyio
import anyio.lowlevel
import msgspec
import pytest

from taskrunner import (
    AmbiguousStep,
    InvalidInput,
    InvalidResult,
    NotInStep,
    NotInTask,
    Retry,
    StepFailed,
    TaskContext,
)
from tests.integration.machine import ended, quick


@dataclass
class Plan:
    """A plain dataclass with nested data."""

    name: str
    weights: dict[int, float] = field(default_factory=dict)
    parent: Plan | None = None


class Found(TypedDict):
    """A typed dict."""

    title: str
    tags: list[str]


class Point(msgspec.Struct):
    """A Struct."""

    x: int
    y: int


def make_plan(name: str) -> Plan:
    """Make a plan."""
    return Plan(name, {1: 0.5}, Plan("parent"))


async def find(title: str) -> Found:
    """Find something."""
    return {"title": title, "tags": ["a", "b"]}


def point() -> Point:
    """Make a point."""
    return Point(1, 2)


def unique() -> set[int]:
    """Make a set."""
    return {3, 1, 2}


async def pair() -> tuple[int, str]:
    """Make a tuple."""
    return 1, "one"


def nothing() -> None:
    """Return nothing."""


def same(value: Any) -> Any:  # noqa: ANN401 - so that it is kept as plain JSON
    """Give back what came."""
    return value


class Client:
    """What has no JSON form: a client of some service."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def ask(self, question: str) -> str:
        """Answer."""
        return f"{question}!"

    async def ask_slowly(self, question: str) -> str:
        """Answer later."""
        await anyio.lowlevel.checkpoint()
        return f"{question}?"

    def __call__(self, number: int) -> int:
        """Be a function."""
        return number + 1


VALUES: list[Any] = [None, False, True, 0, "", 1.5, -0.0, [], {}, [None, {"a": [0, ""]}], {"k": {"k": None}}]
VALUES.append("\x00 é 🙂")


async def test_a_step_gives_what_every_replay_will_give(db: Path) -> None:
    """The first time too, a value is the one decoded from the record: by the annotation, with its own type."""
    runner = quick(db)
    seen: list[list[Any]] = []

    @runner.task
    async def all_types(ctx: TaskContext) -> None:
        seen.append(
            [
                await ctx.step("plan", make_plan, "a"),
                await ctx.step("find", find, "b"),
                await ctx.step("point", point),
                await ctx.step("set", unique),
                await ctx.step("tuple", pair),
                await ctx.step("none", nothing),
                *[await ctx.step("value", same, value) for value in VALUES],
                await ctx.options(returns=tuple[int, ...]).step("typed", lambda: [1, 2]),
            ]
        )
        if ctx.attempt == 1:
            raise Retry(after=0)

    assert (await ended(runner, all_types.bind())).status == "completed"
    first, again = seen
    expected = [make_plan("a"), {"title": "b", "tags": ["a", "b"]}, Point(1, 2), {1, 2, 3}, (1, "one"), None, *VALUES]
    assert first == again == [*expected, (1, 2)]
    assert [type(value) for value in first] == [type(value) for value in again]
    assert str(first[12]) == "-0.0"


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.step("s", lambda: "x"),
        lambda ctx: ctx.step("s", functools.partial(str.upper, "x")),
        lambda ctx: ctx.step("s", str.upper, "x"),
        lambda ctx: ctx.step("s", max, "w", "x"),
        lambda ctx: ctx.step("s", Client().ask, "x"),
        lambda ctx: ctx.step("s", functools.partial(Client().ask_slowly, "x")),
        lambda ctx: ctx.step("s", Client(), 1),
        lambda ctx: ctx.step("s", Plan, "x"),
        lambda ctx: ctx.step("s", Plan, name="x"),
        lambda ctx: ctx.step("s", lambda: find("x")),
        lambda ctx: ctx.step("s", functools.partial(find, title="x")),
    ],
)
async def test_whatever_can_be_called_is_a_step(db: Path, call: Callable[[TaskContext], Awaitable[object]]) -> None:
    """Lambdas, partials, methods, builtins, classes, callable objects, async lambdas: each runs once."""
    runner = quick(db)
    seen: list[Any] = []

    @runner.task
    async def one(ctx: TaskContext) -> None:
        seen.append(await call(ctx))
        if ctx.attempt == 1:
            raise Retry(after=0)

    assert (await ended(runner, one.bind())).status == "completed"
    assert seen[0] == seen[1]
    assert type(seen[0]) is type(seen[1])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1, 2}, ""),
        ((1, 2), ""),
        (Plan("x"), ""),
        ({"a": [1, (2,)]}, '["a"][1]'),
        ({1: "int key"}, ""),
        (float("nan"), ""),
        (2**63, ""),
        (b"bytes", ""),
        (threading.Lock(), ""),
        ("\ud800", ""),
    ],
)
async def test_a_value_that_would_come_back_as_another_is_refused_at_once(db: Path, value: object, path: str) -> None:
    """Without an annotation only plain JSON is taken (B30, B31): else the replay would see something else."""
    runner = quick(db)
    ran: list[int] = []

    def untyped():  # type: ignore[no-untyped-def]  # noqa: ANN202 - that is the point
        ran.append(1)
        return value

    @runner.task(wait=0.01)
    async def one(ctx: TaskContext) -> None:
        await ctx.step("make", untyped)

    task = await ended(runner, one.bind())
    assert (task.status, task.error_type) == ("failed", "taskrunner.InvalidResult")
    assert task.error_message is not None
    assert f"the result of step 'make'{path}" in task.error_message
    assert len(ran) == 1


async def test_a_value_that_does_not_fit_its_annotation_is_refused(db: Path) -> None:
    """What a step gives must be what its function says, or what `returns=` says; the body may catch that and go on."""
    runner = quick(db)
    caught: list[str] = []

    def wrong() -> int:
        return "text"  # type: ignore[return-value]

    @runner.task
    async def one(ctx: TaskContext) -> str:
        for call in (ctx.step("wrong", wrong), ctx.options(returns=list[int]).step("list", lambda: ["a"])):
            try:
                await call
            except InvalidResult as error:
                caught.append(error.path)
        return await ctx.options(returns=str).step("right", lambda: "fine")

    task = await ended(runner, one.bind())
    assert (task.status, task.output) == ("completed", "fine")
    assert caught == ["the result of step 'wrong'", "the result of step 'list'[0]"]


async def test_plain_functions_run_beside_the_loop(db: Path) -> None:
    """A plain function of a step runs in a thread: it blocks nobody, and still knows its task."""
    runner = quick(db)
    ticks: list[float] = []
    knew: list[str] = []

    def slow() -> None:
        time.sleep(0.4)
        knew.append(TaskContext.current().task.id)

    async def tick() -> None:
        while True:
            await anyio.sleep(0.02)
            ticks.append(time.monotonic())

    @runner.task
    async def two(ctx: TaskContext) -> float:
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            began = time.monotonic()
            await asyncio.gather(ctx.step("slow", slow), ctx.step("slow", slow))
            group.cancel_scope.cancel()
        return time.monotonic() - began

    task = await ended(runner, two.bind())
    assert task.output < 0.75  # both at the same time
    assert len(ticks) > 5
    assert knew == [task.id, task.id]


async def test_one_name_from_two_async_tasks_is_refused(db: Path) -> None:
    """Their numbers would be taken by chance: `AmbiguousStep` names the step, and a key for each solves it."""
    runner = quick(db)

    @runner.task
    async def wide(ctx: TaskContext, *, keys: bool, same_key: bool = False) -> list[str]:
        found: list[str] = []

        async def branch(word: str) -> None:
            steps = ctx.options(key="one" if same_key else word) if keys else ctx
            found.append(await steps.step("search", str.upper, word))
            found.append(await steps.step("search", str.lower, word))

        async with anyio.create_task_group() as group:
            group.start_soon(branch, "Ab")
            group.start_soon(branch, "Cd")
        return sorted(found)

    assert (await ended(runner, wide.bind(keys=True))).output == ["AB", "CD", "ab", "cd"]
    once = wide.options(max_retries=0)
    for bound in (once.bind(keys=False), once.bind(keys=True, same_key=True)):
        task = await ended(runner, bound)
        assert task.status == "failed"
        assert task.error_message is not None
        assert "search" in task.error_message
        assert "several async tasks" in task.error_message


async def test_a_step_inside_a_step_is_refused(db: Path) -> None:
    """A replay would skip the outer one with the inner one: `AmbiguousStep` says so, in async and plain functions."""
    runner = quick(db)

    async def outer(ctx: TaskContext) -> str:
        return await ctx.step("inner", str.upper, "x")

    def plain(ctx: TaskContext) -> str:
        return ctx.sync(ctx.step("inner", str.upper, "x"))

    @runner.task
    async def nested(ctx: TaskContext) -> list[str]:
        told = []
        for fn in (outer, plain):
            with pytest.raises(StepFailed) as failure:
                await ctx.step("outer", fn, ctx)
            assert isinstance(failure.value.__cause__, AmbiguousStep)
            told.append(failure.value.details)
        return told

    task = await ended(runner, nested.bind())
    assert task.status == "completed", task.error_message
    assert all("inside another step" in text for text in task.output)


async def test_what_is_no_step_is_refused_in_one_sentence(db: Path) -> None:
    """A name that cannot be stored, a result in place of a function, options out of bounds."""
    runner = quick(db)

    @runner.task
    async def wrong(ctx: TaskContext) -> list[str]:
        told = []
        anything: Any = ctx
        for call in (
            lambda: ctx.step("", str.upper, "x"),
            lambda: ctx.step("n" * 201, str.upper, "x"),
            lambda: ctx.step("a\nb", str.upper, "x"),
            lambda: anything.step(7, str.upper, "x"),
            lambda: anything.step("s", "result"),
            lambda: ctx.options(max_retries=-1),
            lambda: ctx.options(timeout=0),
            lambda: ctx.options(key=""),
            lambda: ctx.options(wait=-1.0),
            lambda: anything.options(retry="often"),
        ):
            with pytest.raises(InvalidInput) as refused:
                call()
            told.append(refused.value.path)
        return told

    task = await ended(runner, wrong.bind())
    paths = ["name", "name", "name", "name", "fn", "max_retries", "timeout", "key", "wait", "retry"]
    assert task.output == paths, task.error_message


async def test_outside_of_a_task_there_is_no_context(db: Path) -> None:
    """`TaskContext.current()` and `idempotency_key` say where they work."""
    runner = quick(db)

    @runner.task
    async def one(ctx: TaskContext) -> bool:
        with pytest.raises(NotInStep):
            _ = ctx.idempotency_key
        return TaskContext.current() is ctx

    assert (await ended(runner, one.bind())).output is True
    with pytest.raises(NotInTask):
        TaskContext.current()
