"""Typed JSON: what is kept, what is refused, and where."""

from __future__ import annotations

import inspect
import io
import json
import math
import sys
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput, InvalidResult, PayloadTooLarge, TaskRunnerError
from taskrunner.core.payload import UNTYPED
from tests.unit.samples import (
    Answer,
    Endless,
    Number,
    Query,
    Renamed,
    Silent,
    Unbound,
    Whole,
    cyclic,
)


def write(value: object, limit: int | None = None) -> str:
    """Encode a value called x."""
    return payload.encode(value, name="x", error=InvalidInput, limit=limit)


def refusal(value: object) -> InvalidInput:
    """The error that says why a value is not taken: one line of storable text."""
    with pytest.raises(InvalidInput) as caught:
        write(value)
    text = str(caught.value)
    assert "\n" not in text
    assert text.encode()
    return caught.value


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [None, False, True, 0, -0.0, "", "a\x00b", "\u2028 ☃ 𝄞", [], {}, 2**63 - 1, -(2**63), 1e308, 5e-324, {"": [None]}],
    ids=repr,
)
def test_plain_values_come_back_exactly(value: object) -> None:
    """What JSON can hold is kept to the last bit, zero's sign and U+0000 in a text included (B31)."""
    text = write(value)
    assert "\x00" not in text
    back = payload.decode(text, UNTYPED, name="x", error=InvalidInput)
    assert repr(back) == repr(value)
    assert back == value


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (math.nan, "nan has no JSON form"),
        (math.inf, "inf has no JSON form"),
        (-math.inf, "-inf has no JSON form"),
        (10**400, "an integer must be"),
        (10**5000, "less than 2**63, not one of 16,610 bits"),
        (2**63, "less than 2**63, not 9223372036854775808"),
        (2**64, "an integer must be"),
        (-(2**63) - 1, "an integer must be"),
        ("\ud800", "lone surrogates"),
        (Number("nan"), "nan has no JSON form"),
        (Whole(2**63), "an integer must be"),
        (Endless.EVER, "inf has no JSON form"),
        (object(), "type object has no JSON form"),
        (1j, "type complex has no JSON form"),
        (range(3), "type range has no JSON form"),
        (threading.Lock(), "type lock has no JSON form"),
        (Silent(), "type Silent has no JSON form"),
        ((n for n in range(3)), "type generator has no JSON form"),
        (len, "has no JSON form"),
        (int, "has no JSON form"),
        (ValueError("x"), "type ValueError has no JSON form"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    ("place", "path"),
    [
        (lambda bad: bad, "x"),
        (lambda bad: {"a": [1, bad]}, "x.a[1]"),
        (lambda bad: [None, (bad,)], "x[1][0]"),
        (lambda bad: Query(text="t", tags=[bad]), "x.tags[0]"),
        (lambda bad: Answer(best="b", score=bad), "x.score"),
        (lambda bad: Renamed(best_score=bad), "x.bestScore"),
        (lambda bad: {"q": {"deep": Query(text="t", since=bad)}}, "x.q.deep.since"),
        (lambda bad: OrderedDict(big=bad), "x.big"),
    ],
)
def test_what_json_has_no_word_for_is_refused_with_its_path(
    bad: object, rule: str, place: Callable[[object], object], path: str
) -> None:
    """NaN, infinities, endless integers, lone surrogates and live objects are refused, however deep (B30, B31)."""
    error = refusal(place(bad))
    assert error.path.replace('["', ".").replace('"]', "") == path
    assert rule in str(error)
    assert str(error).startswith(error.path)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {"b c": math.nan}}, 'x["a"]["b c"]'),
        (Query(text="\ud800"), "x.text"),
        ({"k\ud800": 1}, 'x["k\\ud800"]'),
        ({1: math.inf}, 'x["1"]'),
        ({(1, 2): 3}, 'x["<tuple>"]'),
        ({math.nan: math.nan}, 'x["nan"]'),
        ({None: 3}, 'x["<NoneType>"]'),
        ({"k" * 1000: math.nan}, None),
        ({10**5000: math.nan}, 'x["<int>"]'),
    ],
    ids=lambda value: str(type(value)),
)
def test_a_path_tells_fields_from_keys(value: object, path: str | None) -> None:
    """A path is `x.field`, `x[2]` or `x["key"]`; a key that breaks the rule itself is named safely, and shortened."""
    error = refusal(value)
    assert path is None or error.path == path
    assert len(error.path) < 120


def test_a_hundred_levels_are_kept_and_one_more_is_not() -> None:
    """The limit of depth is 100, for lists, objects and mixtures, whatever brackets stand in texts."""
    assert json.loads(write(nested(100))) == nested(100)
    assert "deeper than 100 levels" in str(refusal(nested(101)))
    assert "deeper than 100 levels" in str(refusal({"a": [Query("t", tags=nested(98))]}))
    assert write([Query("t", tags=nested(98))])
    wide = [{"a": '[{"\\', "b": [i]} for i in range(300)]
    assert json.loads(write(wide)) == wide
    assert json.loads(write(["[" * 300, '\\"[' * 200])) == ["[" * 300, '\\"[' * 200]


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cycle is named, with the path where it closes, and does not hang or overflow (B30)."""
    error = refusal(cyclic())
    assert error.path == 'x[1]["self"]'
    assert "must not contain itself" in str(error)
    shared = [1]
    assert write([shared, shared, {"again": shared}]) == '[[1],[1],{"again":[1]}]'


def test_an_open_file_is_refused() -> None:
    """A file has no JSON form, open or not (B30)."""
    assert "TextIOWrapper" in str(refusal({"log": sys.__stderr__}))
    assert "StringIO" in str(refusal(io.StringIO()))


@pytest.mark.parametrize("wrap", [lambda c: c, lambda c: [1, {"a": c}], lambda c: Query(text=c)])
def test_a_forgotten_await_is_named_and_leaves_no_warning(wrap: Callable[[object], object]) -> None:
    """A coroutine is refused with a hint, and closed: no "never awaited" warning comes later (B30)."""

    async def fetch() -> str:
        return "x"

    coroutine = fetch()
    error = refusal(wrap(coroutine))
    assert "is an `await` missing?" in str(error)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    plain = fetch()
    with pytest.raises(InvalidResult, match="await"):
        payload.require_plain([plain], name="x", error=InvalidResult)
    assert inspect.getcoroutinestate(plain) == inspect.CORO_CLOSED


@pytest.mark.parametrize("text", ["", "a", "é", "☃" * 7, '"' * 3])
def test_the_limit_is_in_bytes_and_counts_the_last_one(text: str) -> None:
    """A payload of exactly the limit passes, one byte more is refused, and both sizes are said."""
    value = {"text": text}
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert write(value, limit=size)
    assert write(value, limit=size + 1)
    with pytest.raises(PayloadTooLarge, match=f"x: {size} bytes of JSON are more than the {size - 1} that") as caught:
        write(value, limit=size - 1)
    assert caught.value.path == "x"
    with pytest.raises(InvalidResult, match=f"{size} bytes"):
        payload.encode(value, name="x", error=InvalidResult, limit=size - 1)


def test_an_attribute_that_raises_is_a_refusal_too() -> None:
    """Whatever a user's object does while it is read, the caller gets one sentence (G9)."""

    class Odd(dict[str, object]):
        def items(self) -> NoReturn:
            raise RuntimeError("no items")

    for value in (Unbound(), [Unbound()], {"a": {"b": Unbound()}}, [Odd(a=math.nan), object()]):
        assert isinstance(refusal(value), TaskRunnerError)
        with pytest.raises(InvalidInput):
            payload.require_plain(value, name="x", error=InvalidInput)
        assert payload.digest((value,), {})


def test_text_that_is_no_json_is_refused() -> None:
    """A row that something else wrote is an error of ours, never a crash."""
    for text in ("", "{", "[1,]", "nan", '"\\ud800"', "[" * 5000):
        with pytest.raises(InvalidInput, match=r"^x: not JSON|^x: cannot"):
            payload.decode(text, UNTYPED, name="x", error=InvalidInput)


def test_input_by_name_is_named_by_its_keys() -> None:
    """Where the value is the arguments themselves, a path begins with the argument."""
    with pytest.raises(InvalidInput) as caught:
        payload.encode({"topics": [1, math.nan]}, name="", error=InvalidInput)
    assert caught.value.path == "topics[1]"
    with pytest.raises(PayloadTooLarge, match="the arguments: 9 bytes"):
        payload.encode({"a": "b"}, name="", error=InvalidInput, limit=3)


plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(plain_json)
def test_any_plain_json_makes_the_round_trip(value: object) -> None:
    """Strict parsers other than ours read it too (B31)."""
    payload.require_plain(value, name="x", error=InvalidInput)
    text = write(value)
    assert json.loads(text, parse_constant=pytest.fail) == value
    assert repr(payload.decode(text, UNTYPED, name="x", error=InvalidInput)) == repr(value)


any_float = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -math.nan])
any_number = any_float | st.integers() | st.sampled_from([2**63, 2**63 - 1, -(2**63), 2**64, 10**400])


@given(
    st.recursive(any_number | st.none() | st.text(max_size=20), lambda i: st.lists(i) | st.dictionaries(st.text(), i))
)
def test_a_number_is_kept_exactly_or_refused(value: object) -> None:
    """No NaN becomes null and no integer loses a digit, whatever stands around it (B31)."""

    def leaves(item: object) -> Iterator[object]:
        if isinstance(item, list | dict):
            for child in item.values() if isinstance(item, dict) else item:
                yield from leaves(child)
        else:
            yield item

    numbers = [leaf for leaf in leaves(value) if isinstance(leaf, int | float)]
    good = all(math.isfinite(n) if isinstance(n, float) else -(2**63) <= n < 2**63 for n in numbers)
    if good:
        assert json.loads(write(value), parse_constant=pytest.fail) == value
    else:
        refusal(value)


async def test_a_coroutine_that_runs_elsewhere_is_left_alone() -> None:
    """Only what was never started is closed when a value is refused."""

    async def numbers() -> AsyncIterator[int]:
        yield 1

    stream = numbers()
    assert "async_generator" in str(refusal(stream))
    assert [n async for n in stream] == [1]
