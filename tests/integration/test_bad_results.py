"""Results and arguments that cannot be stored as they are: refused once, with a sentence, and nobody is harmed."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from taskrunner import InvalidInput, InvalidResult, PayloadTooLarge, TaskContext, TaskFailed
from tests.integration.machine import ended, quick, sql


@dataclass
class Report:
    """A result."""

    title: str
    pages: int


@dataclass
class Strict:
    """A result that is never content."""

    n: int

    def __post_init__(self) -> None:
        """Refuse."""
        raise RuntimeError("no")


class Hostile:
    """An object whose every attribute is trouble."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
        raise RuntimeError("hands off")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def cycle() -> list[Any]:
    """A list that holds itself."""
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep() -> list[Any]:
    """A list of more levels than are kept."""
    value: list[Any] = []
    for _ in range(200):
        value = [value]
    return value


async def coroutine() -> None:
    """A coroutine that nobody awaits."""


BAD: dict[str, Any] = {
    "set": lambda: {1, 2},
    "tuple": lambda: (1, 2),
    "bytes": lambda: b"x",
    "decimal": lambda: Decimal("1.5"),
    "datetime": lambda: datetime.now(UTC),
    "dataclass": lambda: Report("a", 1),
    "file": lambda: io.StringIO("x"),
    "generator": lambda: (n for n in range(3)),
    "lock": threading.Lock,
    "cycle": cycle,
    "deep": deep,
    "nan": lambda: float("nan"),
    "infinity": lambda: [float("-inf")],
    "huge": lambda: 10**400,
    "2**63": lambda: {"n": 2**63},
    "surrogate": lambda: "a\ud800",
    "int keys": lambda: {1: 2},
    "class": lambda: Report,
    "function": lambda: deep,
    "hostile": Hostile,
    "nested": lambda: {"a": [1, {"b": object()}]},
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("plain", [False, True])
async def test_a_result_without_a_json_form_fails_once(db: Path, kind: str, plain: bool) -> None:
    """B30, B31: the work is not repeated, nothing is left running, and the error names the place and the type."""
    runner = quick(db)
    ran: list[int] = []

    def body():  # type: ignore[no-untyped-def]  # noqa: ANN202 - a result without annotation
        ran.append(1)
        return BAD[kind]()

    async def async_body():  # type: ignore[no-untyped-def]  # noqa: ANN202 - as above
        return body()  # type: ignore[no-untyped-call]

    runner.task(name="bad", wait=0.01)(body if plain else async_body)

    @runner.task
    async def next_one() -> int:
        return 1

    async with runner.working():
        handle = await runner.enqueue("bad")
        after = await next_one.enqueue()
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=5)
        assert await after.result(timeout=5) == 1
        task = await handle.task()
    assert failed.value.error_type == "taskrunner.InvalidResult"
    assert "the result" in failed.value.details
    assert len(failed.value.details) < 400
    assert (task.attempt, task.retry_count, len(ran)) == (1, 0, 1)


@pytest.mark.parametrize("kind", BAD)
async def test_an_argument_without_a_json_form_is_refused_at_the_door(db: Path, kind: str) -> None:
    """B30, B31: with the path of the bad value, and nothing is stored."""
    runner = quick(db)

    @runner.task
    async def takes(value, *, more=None) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    calls: list[tuple[list[Any], dict[str, Any]]] = [([BAD[kind]()], {}), ([1], {"more": {"k": [BAD[kind]()]}})]
    enqueue: Any = takes.enqueue
    async with runner:
        for args, kwargs in calls:
            with pytest.raises(InvalidInput) as refused:
                await enqueue(*args, **kwargs)
            assert refused.value.path.startswith(("value", 'more["k"][0]')), refused.value
            assert len(str(refused.value)) < 400
        assert await runner.tasks.list() == []


async def test_a_result_is_what_its_annotation_says(db: Path) -> None:
    """A dataclass, a set, a tuple, Decimal, datetime, bytes: kept and given back by type; -0.0 exactly."""
    runner = quick(db)

    async def report() -> Report:
        return Report("a", 1)

    async def many() -> dict[str, set[int]]:
        return {"a": {1, 2}}

    async def money() -> tuple[Decimal, datetime, bytes]:
        return Decimal("1.10"), datetime(2030, 1, 2, tzinfo=UTC), b"\x00\xff"

    async def zero() -> float:
        return -0.0

    async def nothing() -> None: ...

    expected: dict[str, Any] = {
        "report": Report("a", 1),
        "many": {"a": {1, 2}},
        "money": (Decimal("1.10"), datetime(2030, 1, 2, tzinfo=UTC), b"\x00\xff"),
        "zero": -0.0,
        "nothing": None,
    }
    tasks = {fn.__name__: runner.task(fn) for fn in (report, many, money, zero, nothing)}
    async with runner.working():
        for name, value in expected.items():
            handle = await tasks[name].enqueue()
            result = await handle.result(timeout=5)
            assert (repr(result), type(result)) == (repr(value), type(value))
            assert repr(await tasks[name].handle(handle.id).result()) == repr(value)


@pytest.mark.parametrize("value", ["text", {"title": "a"}, {"title": "a", "pages": "x"}, None, Report("a", "x")])  # type: ignore[arg-type]
async def test_a_result_that_does_not_fit_its_annotation_fails_once(db: Path, value: object) -> None:
    """What `result()` promised to its callers is kept, or the task fails."""
    runner = quick(db)

    @runner.task(wait=0.01)
    async def report() -> Report:
        return value  # type: ignore[return-value]

    task = await ended(runner, report.bind())
    assert (task.status, task.error_type, task.attempt) == ("failed", "taskrunner.InvalidResult", 1)


async def test_a_type_that_raises_when_it_is_made_fails_once(db: Path) -> None:
    """A result type's own code may raise anything."""
    runner = quick(db)

    @runner.task(wait=0.01)
    async def strict(ctx: TaskContext) -> str:
        with pytest.raises(InvalidResult):
            await ctx.options(returns=Strict).step("make", dict, n=1)
        return "fine"

    assert (await ended(runner, strict.bind())).output == "fine"


async def test_sizes_are_bounded(db: Path) -> None:
    """`max_payload` holds for inputs, results and steps; the error says both sizes, and nothing is stored."""
    runner = quick(db, max_payload=1_000)

    @runner.task(max_retries=0)
    async def echo(ctx: TaskContext, text: str, *, step: bool = False) -> str:
        return await ctx.step("echo", str.__add__, text, text) if step else text + text

    async with runner:
        with pytest.raises(PayloadTooLarge, match=r"1,0\d\d bytes .* 1,000"):
            await echo.enqueue("x" * 1_000)
        with pytest.raises(PayloadTooLarge):
            await runner.enqueue("echo", {"text": "é" * 500})
    for step in (False, True):
        task = await ended(runner, echo.bind("x" * 600, step=step))
        assert (task.status, task.error_type, task.attempt) == ("failed", "taskrunner.InvalidResult", 1)
        assert "1,000" in str(task.error_message)


async def test_every_answer_is_strict_json(db: Path) -> None:
    """B31: what the API stores, any strict JSON reader takes, in SQL too."""
    runner = quick(db)

    @runner.task
    async def echo(ctx: TaskContext, value: list[float | int | str | None]) -> list[float | int | str | None]:
        await ctx.progress(-0.0)
        return value

    values: list[float | int | str | None] = [-0.0, 1e308, 5e-324, 2**63 - 1, -(2**63), "NaN", "Infinity", "\x00", None]
    task = await ended(runner, echo.bind(values))
    assert repr(task.output) == repr(values)
    ((text, valid),) = sql(db, "SELECT output, json_valid(output) AND json_valid(input) FROM tasks")
    assert valid == 1
    assert repr(json.loads(text, parse_constant=pytest.fail)) == repr(values)


@pytest.mark.parametrize("fraction", [float("nan"), float("inf"), -0.1, 1.1, 2, -1, "half", None, True, 10**400])
async def test_progress_is_a_number_from_0_to_1(db: Path, fraction: Any) -> None:  # noqa: ANN401 - anything
    """B31: NaN never gets to be a percentage."""
    runner = quick(db)

    @runner.task
    async def one(ctx: TaskContext) -> str:
        with pytest.raises(InvalidInput) as refused:
            await ctx.progress(fraction)
        assert refused.value.path == "fraction"
        with pytest.raises(InvalidInput):
            await ctx.progress(0.5, fraction if not isinstance(fraction, str) else b"x")  # type: ignore[arg-type]
        return "fine"

    task = await ended(runner, one.bind())
    assert (task.output, task.progress) == ("fine", 1.0), task.error_message
