"""Signatures: a call becomes an input, and the input the same call again."""

from __future__ import annotations

import functools
import inspect
import json
import math
import timeit
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrunner.authoring.signature import Signature
from taskrunner.core.errors import InvalidInput
from tests.unit.functions import Tool, loose, plain, research, rich, strict
from tests.unit.samples import Answer, Colour, Pair, Query

MICROSECONDS = 60.0
"""A bound that a slow, busy machine keeps too; measured at 3 µs on an idle one."""


def by_call(fn: Callable[..., Any], *args: object, **kwargs: object) -> dict[str, Any]:
    """What a call's arguments are stored as."""
    stored: dict[str, Any] = json.loads(Signature(fn).encode(args, kwargs), parse_constant=pytest.fail)
    return stored


def and_back(fn: Callable[..., Any], *args: object, **kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the body is called with, after the store."""
    return Signature(fn).decode(by_call(fn, *args, **kwargs))


def refused(fn: Callable[..., Any], *args: object, **kwargs: object) -> InvalidInput:
    """The one sentence that says why a call is not taken."""
    with pytest.raises(InvalidInput) as caught:
        Signature(fn).encode(args, kwargs)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "stored"),
    [
        (research, ("tea",), {}, {"topic": "tea"}),
        (research, ("tea", 3), {}, {"topic": "tea", "depth": 3}),
        (research, (), {"depth": 3, "topic": "tea"}, {"topic": "tea", "depth": 3}),
        (plain, (1,), {}, {"a": 1}),
        (
            plain,
            (1, "x", "y"),
            {"flag": True, "z": 1.5},
            {"a": 1, "rest": ["x", "y"], "flag": True, "extra": {"z": 1.5}},
        ),
        (plain, (), {"a": 1, "rest": 2.0}, {"a": 1, "extra": {"rest": 2.0}}),
        (strict, (1,), {"d": 5}, {"a": 1, "d": 5}),
        (strict, (1, 2, 3), {}, {"a": 1, "b": 2, "c": 3}),
        (loose, ([1, {"a": None}],), {"other": 1.5}, {"value": [1, {"a": None}], "other": 1.5}),
        (Tool().half, (3,), {}, {"a": 3}),
        (Tool().add, (1,), {"b": 2}, {"a": 1, "b": 2}),
        (Tool(), (1,), {}, {"a": 1}),
        (functools.partial(research, depth=9), (), {"topic": "x"}, {"topic": "x"}),
        (functools.partial(strict, 1), (5,), {}, {"b": 5}),
        (str.upper, ("abc",), {}, {"self": "abc"}),
        (Query, ("t",), {"tags": ["a"]}, {"text": "t", "tags": ["a"]}),
        (Answer, ("t",), {"score": 1}, {"best": "t", "score": 1}),
        (lambda: 3, (), {}, {}),
    ],
)
def test_arguments_are_stored_by_name_without_the_context(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], stored: dict[str, Any]
) -> None:
    """Only what was given is stored; the same call comes out of it again, and the function takes it."""
    assert by_call(fn, *args, **kwargs) == stored
    again, named = and_back(fn, *args, **kwargs)
    context = (None,) if Signature(fn).wants_context else ()
    one = inspect.signature(fn).bind(*context, *args, **kwargs)
    other = inspect.signature(fn).bind(*context, *again, **named)
    one.apply_defaults()
    other.apply_defaults()
    assert one.arguments == other.arguments


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "path", "rule"),
    [
        (research, (), {}, "topic", "missing a required argument: 'topic'"),
        (research, ("a", 1, 2), {}, "", "too many positional arguments"),
        (research, ("a",), {"deep": 1}, "deep", "unexpected keyword argument 'deep'"),
        (research, ("a",), {"topic": "b"}, "topic", "multiple values for argument 'topic'"),
        (research, (1,), {}, "topic", "topic=1: expected str, got int"),
        (research, ("a", "3"), {}, "depth", "depth='3': expected int, got str"),
        (research, ("a", True), {}, "depth", "depth=True: expected int, got bool"),
        (research, ("a", 2**63), {}, "depth", "an integer must be"),
        (research, (b"abc",), {}, "topic", "expected str, got bytes"),
        (research, (None,), {}, "topic", "expected str, got null"),
        (plain, (1, "a", 2), {}, "rest[1]", "expected str, got int"),
        (plain, (1,), {"z": "a"}, 'extra["z"]', "expected float, got str"),
        (plain, (1,), {"flag": 1}, "flag", "expected bool, got int"),
        (strict, (), {"a": 1}, "a", "'a'"),
        (Tool().half, (Decimal("1.5"),), {}, "a", "expected float, got str"),
        (rich, (msgspec.Raw(b"{bad"), {"limit": 1}), {}, "query", "Raw"),
        (loose, ((1, 2),), {}, "value", "without a type annotation"),
        (loose, ([1, {"a": {2}}],), {}, 'value[1]["a"]', "without a type annotation"),
        (loose, ([math.nan],), {}, "value[0]", "nan has no JSON form"),
        (loose, (Query("a"),), {}, "value", "type Query"),
        (loose, ("\ud800",), {}, "value", "lone surrogates"),
        (rich, (Query(3), {"limit": 1}), {}, "query.text", "expected str, got int"),  # type: ignore[arg-type]
        (rich, (Query("a", tags=["b", 3]), {"limit": 1}), {}, "query.tags[1]", "expected str, got int"),  # type: ignore[list-item]
        (rich, ("tea", {"limit": 1}), {}, "query", "expected object, got str"),
        (rich, (Query("a"), {}), {}, "options.limit", "is missing"),
        (rich, (Query("a"), {"limit": 1}), {"counts": {"x": "a"}}, 'counts["x"]', "its key: expected int, got str"),
        (rich, (Query("a"), {"limit": 1}), {"counts": {1: 2, 3: "a"}}, 'counts["1"]', "expected str, got int"),
        (rich, (Query("a"), {"limit": 1}), {"price": "dear"}, "price", "invalid decimal"),
        (rich, (Query("a"), {"limit": 1}), {"price": math.nan}, "price", "nan has no JSON form"),
        (rich, (Query("a"), {"limit": 1}), {"mode": "idle"}, "mode", "mode='idle': must be one of 'fast', 'slow'"),
        (rich, (Query("a"), {"limit": 1}), {"since": "tomorrow"}, "since", "invalid"),
        (rich, (Query("a"), {"limit": 1}), {"answer": Answer("b", math.inf)}, "answer.score", "inf has no JSON form"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_is_refused_with_the_path(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], path: str, rule: str
) -> None:
    """Wrong names, counts, types and values are refused before anything is stored (B30, B31)."""
    error = refused(fn, *args, **kwargs)
    assert error.path == path
    assert rule in str(error)


def test_the_body_gets_its_annotated_types() -> None:
    """Dataclasses, enums, dates, decimals, sets, bytes and integer keys arrive as what they were."""
    given: dict[str, Any] = {
        "query": Query("a", date(2026, 1, 1), ["x"]),
        "options": {"limit": 3, "language": "en"},
        "since": datetime(2026, 1, 1, tzinfo=UTC),
        "colours": {Colour.RED},
        "counts": {1: "a"},
        "price": Decimal("1.10"),
        "data": b"\x00\xff",
        "pair": Pair(1, "x"),
        "answer": Answer("b"),
        "mode": "slow",
    }
    args, kwargs = and_back(rich, **given)
    assert args == ()
    assert kwargs == given
    assert {name: type(value) for name, value in kwargs.items()} == {name: type(value) for name, value in given.items()}


def test_what_a_type_converts_is_delivered_converted() -> None:
    """A tuple for a list, an integer for a float and a dict for a dataclass arrive as the annotated type."""

    def body(names: list[str], many: Sequence[int], ratio: float, query: Query) -> None: ...

    args, kwargs = and_back(body, ("a", "b"), (1, 2), 3, {"text": "t"})
    assert (args, kwargs) == ((), {"names": ["a", "b"], "many": [1, 2], "ratio": 3.0, "query": Query("t")})
    assert isinstance(kwargs["ratio"], float)


@pytest.mark.parametrize(
    ("fn", "stored", "path", "rule"),
    [
        (research, [], "", "expected object, got array"),
        (research, None, "", "expected object, got null"),
        (research, {}, "topic", "topic: is missing"),
        (research, {"topic": "a", "deep": 1}, "deep", "deep: is not known"),
        (research, {"topic": "a", "ctx": 1}, "ctx", "ctx: is not known"),
        (research, {"topic": 1}, "topic", "expected str, got int"),
        (plain, {"a": 1, "rest": "xy"}, "rest", "expected array, got str"),
        (plain, {"a": 1, "extra": {"a": 1.0}}, "extra.a", "'a' is a parameter of its own"),
        (rich, {"query": {"text": "a"}, "options": {"limit": 1}, "data": "?"}, "data", "invalid base64"),
    ],
)
def test_an_input_by_name_that_does_not_fit_is_refused(
    fn: Callable[..., Any], stored: object, path: str, rule: str
) -> None:
    """What another program enqueued by name is checked where the task runs, and fails it with the path."""
    with pytest.raises(InvalidInput) as caught:
        Signature(fn).decode(stored)
    assert caught.value.path == path
    assert rule in str(caught.value)


def test_an_input_by_name_may_leave_gaps() -> None:
    """Positional-only parameters and `*args` can be filled by name; what is skipped gets its default."""
    assert Signature(strict).decode({"a": 1, "d": 4}) == ((1, 2), {"d": 4})

    def gaps(a: int = 1, *rest: int) -> None: ...

    assert Signature(gaps).decode({"rest": [5]}) == ((1, 5), {})
    assert Signature(gaps).decode({"a": 3}) == ((), {"a": 3})
    assert Signature(Query).decode({"text": "a", "since": "2026-01-01"}) == (
        (),
        {"text": "a", "since": date(2026, 1, 1)},
    )


@pytest.mark.parametrize("coroutine_in", [lambda c: c, lambda c: [c], lambda c: {"a": c}])
@pytest.mark.parametrize("fn", [research, loose])
def test_a_forgotten_await_is_named_and_leaves_no_warning(
    fn: Callable[..., Any], coroutine_in: Callable[[Any], object]
) -> None:
    """`enqueue(fetch())` says that an await is missing, and no warning follows (B30)."""

    async def fetch() -> str:
        return "x"

    coroutine = fetch()
    assert "is an `await` missing?" in str(refused(fn, coroutine_in(coroutine)))
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


texts = st.text()
small = st.integers(-(2**63), 2**63 - 1)
values = st.builds(Query, texts, st.none() | st.dates(), st.lists(texts, max_size=3))


@given(values, st.dictionaries(small, texts, max_size=3), st.none() | st.datetimes(timezones=st.just(UTC)), st.binary())
def test_any_typed_call_makes_the_round_trip(
    query: Query, counts: dict[int, str], since: datetime | None, data: bytes
) -> None:
    """What the caller gave is what the body gets."""
    args, kwargs = RICH.decode(
        msgspec.json.decode(
            RICH.encode((query, {"limit": 1}), {"counts": counts, "since": since, "data": data}),
        )
    )
    assert args == ()
    assert kwargs == {"query": query, "options": {"limit": 1}, "counts": counts, "since": since, "data": data}


RICH = Signature(rich)


def test_encoding_a_call_is_quick() -> None:
    """A text and an integer cost a few microseconds, since enqueue is a hot path."""
    signature = Signature(research)
    best = min(timeit.repeat(lambda: signature.encode(("durable queues",), {"depth": 3}), number=1_000, repeat=5))
    assert best * 1_000 < MICROSECONDS
