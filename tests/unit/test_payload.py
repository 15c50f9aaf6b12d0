"""Typed JSON: what is kept, what is refused, and where."""

from __future__ import annotations

import dataclasses
import inspect
import io
import itertools
import json
import math
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, NoReturn, TypeAlias
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput, InvalidResult, PayloadTooLarge, TaskRunnerError
from taskrunner.core.payload import UNTYPED
from tests.unit.samples import (
    Answer,
    Colour,
    Endless,
    Level,
    Moody,
    Number,
    Options,
    Pair,
    Query,
    Renamed,
    Silent,
    Text,
    Unbound,
    Whole,
    Word,
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


def cyclic() -> list[Any]:
    """A list that contains itself, one level down."""
    value: list[Any] = [1]
    value.append({"self": value})
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
        (10**5000, "an integer must be"),
        (2**63, "an integer must be"),
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


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, datetime(2026, 1, 1, 12, 30, 1, 5)),  # noqa: DTZ001 - naive ones are kept as they are
        (datetime, datetime(2026, 1, 1, 12, 30, tzinfo=UTC)),
        (date, date(2026, 1, 1)),
        (time, time(3, 4, 5)),
        (timedelta, timedelta(days=1, seconds=3, microseconds=7)),
        (Decimal, Decimal("10.10")),
        (UUID, UUID(int=7)),
        (bytes, b"\x00\xff"),
        (Colour, Colour.RED),
        (Level, Level.LOW),
        (Word, Word.A),
        (set[int], {3, 1}),
        (frozenset[str], frozenset({"a"})),
        (tuple[int, ...], (1, 2)),
        (tuple[int, str], (1, "a")),
        (Pair, Pair(1, "a")),
        (dict[int, str], {1: "a", -2: "b"}),
        (dict[date, list[Query]], {date(2026, 1, 1): [Query("a")]}),
        (Query, Query("a", date(2026, 1, 1), ["t"])),
        (Answer, Answer("a", 1.5)),
        (Renamed, Renamed(0.25)),
        (Options, {"limit": 1}),
        (Options, {"limit": 1, "language": "en"}),
        (Query | None, None),
        (int | str | None, "a"),
        (list[Query | None], [Query("a"), None]),
        (float, 2),
        (dict[str, object], {"a": [1, "b", None]}),
        (type(None), None),
    ],
    ids=repr,
)
def test_a_recorded_value_comes_back_as_its_annotated_type(annotation: object, value: object) -> None:
    """The first run and every replay see the same value of the same type."""
    text, first = payload.record(value, annotation, name="x", error=InvalidResult)
    json.loads(text, parse_constant=pytest.fail)
    again = payload.decode(text, annotation, name="x", error=InvalidResult)
    assert first == again == value
    if not isinstance(value, int):
        assert type(again) is type(value)


@pytest.mark.parametrize("value", [Number(1.5), Whole(3), Text("a"), [Text("b")], {Text("k"): Whole(1)}], ids=repr)
def test_texts_and_numbers_of_a_subclass_are_written_as_what_they_are(value: object) -> None:
    """Numbers and texts of other libraries' own types are kept, as plain ones."""
    assert json.loads(write(value)) == value


@pytest.mark.parametrize(
    ("value", "annotation", "path", "rule"),
    [
        (b"abc", str, "x", "expected str, got bytes"),
        (datetime(2026, 1, 1, tzinfo=UTC), str, "x", "expected str, got datetime"),
        (Query(text=b"abc"), Query, "x.text", "expected str, got bytes"),  # type: ignore[arg-type]
        ([Query("a", tags=["b", 3])], list[Query], "x[0].tags[1]", "expected str, got int"),  # type: ignore[list-item]
        (True, int, "x", "expected int, got bool"),
        (1.5, int, "x", "expected int, got float"),
        ("3", int, "x", "expected int, got str"),
        (3, str, "x", "expected str, got int"),
        (None, int, "x", "expected int, got null"),
        (3, type(None), "x", "expected null, got int"),
        ("blue", Colour, "x", "invalid enum value 'blue'"),
        ({"limit": 1, "language": 3}, Options, "x.language", "expected str, got int"),
        ({}, Options, "x.limit", "is missing"),
        ({"a": 1, "b": "x", "c": 2}, dict[str, int], 'x["b"]', "expected int, got str"),
        ({"q": {"a": {"b": [1, "c"]}}}, dict[str, dict[str, dict[str, list[int]]]], 'x["q"]["a"]["b"][1]', "expected"),
        ({1: "a"}, dict[str, str], 'x["1"]', "its key: expected str, got int"),
        ([1, 2, 3], tuple[int, int], "x", "of length 2"),
        (-1, Annotated[int, msgspec.Meta(ge=0)], "x", "expected int >= 0"),
        ([{"level": 1}, {"level": -1}], list[Moody], "x[1]", "level must not be negative"),
        ({"level": 10}, Moody, "x", "far too high"),
        (Counter("ab"), Counter[str], "x", "expected Counter, got dict"),
        ({"a": 1}, Query | Moody, "x", "cannot be made into its type"),
        ({"a": 1}, Annotated[Query | Moody, []], "x", "cannot be made into its type"),
    ],
)
def test_what_is_not_of_its_annotated_type_is_refused(value: object, annotation: object, path: str, rule: str) -> None:
    """A value whose JSON would pass for the type is refused as well: bytes are no text, a datetime is none either."""
    with pytest.raises(InvalidResult) as caught:
        payload.record(value, annotation, name="x", error=InvalidResult)
    assert caught.value.path == path
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1},
        frozenset({1}),
        {1: 2},
        b"x",
        Query("a"),
        Answer("a"),
        Colour.RED,
        Word.A,
        Level.LOW,
        Text("a"),
        date(2026, 1, 1),
        Decimal(1),
        Counter("a"),
        {"a": [1, (2,)]},
        [{"b": {1: 2}}],
        {Text("a"): 1, 2: 3},
        Silent(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("annotation", [UNTYPED, Any, object])
def test_without_an_annotation_only_plain_json_is_kept(value: object, annotation: object) -> None:
    """What would come back as something else is refused at once, with the advice to annotate it."""
    with pytest.raises(InvalidResult, match="without a type annotation"):
        payload.record(value, annotation, name="x", error=InvalidResult)


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


queries = st.builds(Query, st.text(), st.none() | st.dates(), st.lists(st.text()))


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.lists(queries, max_size=3), max_size=3))
def test_typed_values_make_the_round_trip(value: dict[int, list[Query]]) -> None:
    """Nested dataclasses, dates and integer keys come back equal."""
    assert payload.record(value, dict[int, list[Query]], name="x", error=InvalidResult)[1] == value


async def gives_query(_: int) -> Query:
    """Annotated as most are."""
    return Query("a")


def gives_awaitable() -> Awaitable[Query]:
    """Plain, and to be awaited."""
    return gives_query(1)


def gives_coroutine() -> Coroutine[Any, Any, list[Query]]:
    """As above."""
    raise NotImplementedError


def gives_none() -> None:
    """Gives nothing, and says so."""


def never() -> NoReturn:
    """Gives nothing at all."""
    raise RuntimeError


def unresolved() -> Missing:  # type: ignore[name-defined]  # noqa: F821
    """Annotated by a name that there is not at run time."""


class Tool:
    """Methods of all kinds."""

    async def bound(self) -> Query:
        """Of an object."""
        return Query("a")

    @staticmethod
    def static() -> Query:
        """Of a class."""
        return Query("a")

    def __call__(self, n: int) -> tuple[int, ...]:
        """As if it were a function."""
        return (n,)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (gives_query, Query),
        (partial(gives_query, 1), Query),
        (partial(partial(gives_query), 1), Query),
        (gives_awaitable, Query),
        (gives_coroutine, list[Query]),
        (gives_none, type(None)),
        (never, UNTYPED),
        (unresolved, UNTYPED),
        (Tool().bound, Query),
        (Tool.bound, Query),
        (Tool.static, Query),
        (Tool(), tuple[int, ...]),
        (Query, Query),
        (int, int),
        (len, UNTYPED),
        (str.upper, UNTYPED),
        ("abc".encode, UNTYPED),
        (lambda: 3, UNTYPED),
    ],
    ids=repr,
)
def test_the_type_of_a_result_is_found_behind_every_kind_of_callable(fn: Callable[..., Any], expected: object) -> None:
    """Partials, methods, callable objects and awaitables are looked through; a class gives itself; a lambda nothing."""
    for _ in range(2):
        assert payload.returns_of(fn) == expected


def test_types_defined_inside_a_function_are_found() -> None:
    """In a module with `from __future__ import annotations` a local dataclass still gives its type to a step."""

    @dataclasses.dataclass
    class Local:
        n: int

    def make() -> list[Local]:
        return [Local(1)]

    returns = payload.returns_of(make)
    assert payload.record(make(), returns, name="x", error=InvalidResult)[1] == [Local(1)]


def test_a_type_whose_own_annotations_cannot_be_resolved_counts_as_none() -> None:
    """It cannot be decoded, so only plain JSON is taken for it."""

    @dataclasses.dataclass
    class Hidden:
        other: Elsewhere  # type: ignore[name-defined]  # noqa: F821

    assert payload.record({"other": 1}, Hidden, name="x", error=InvalidResult)[1] == {"other": 1}
    with pytest.raises(InvalidResult, match="without a type annotation"):
        payload.record(Hidden(1), Hidden, name="x", error=InvalidResult)


Call: TypeAlias = tuple[tuple[object, ...], dict[str, object]]


class Client:
    """What steps are called with and JSON has no form for."""

    def __init__(self, secret: str) -> None:
        self.secret = secret


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (((), {}), ((), {}), True),
        ((("a",), {}), (("b",), {}), False),
        ((("a", "b"), {}), (("ab",), {}), False),
        (((1,), {}), (("1",), {}), False),
        (((), {"a": 1, "b": 2}), ((), {"b": 2, "a": 1}), True),
        (((), {"a": 1}), ((), {"b": 1}), False),
        ((({"a": 1, "b": 2},), {}), (({"b": 2, "a": 1},), {}), True),
        ((({1: 2, 3: 4},), {}), (({3: 4, 1: 2},), {}), True),
        ((({1: 2},), {}), (({1: 3},), {}), False),
        ((({"a", "b", "c"},), {}), (({"c", "a", "b"},), {}), True),
        (((Client("a"),), {}), ((Client("b"),), {}), True),
        (((Client("a"), 1), {}), ((Client("a"), 2), {}), False),
        (((Client("a"),), {}), ((threading.Lock(),), {}), False),
        (((Silent(),), {}), ((Silent(),), {}), True),
        (((Query("a"),), {}), ((Query("b"),), {}), False),
        (((cyclic(),), {}), ((cyclic(),), {}), True),
        ((("\ud800",), {}), (("\ud800",), {}), True),
        (((math.nan,), {}), ((math.nan,), {}), True),
        (((10**400,), {}), ((10**400 + 1,), {}), False),
    ],
    ids=itertools.count(),
)
def test_a_digest_tells_arguments_apart(one: Call, other: Call, same: bool) -> None:
    """By their JSON in sorted order; an argument without a JSON form counts by its type's name alone."""
    assert (payload.digest(*one) == payload.digest(*other)) is same
    assert len(payload.digest(*one)) == 16


async def test_a_coroutine_that_runs_elsewhere_is_left_alone() -> None:
    """Only what was never started is closed when a value is refused."""

    async def numbers() -> AsyncIterator[int]:
        yield 1

    stream = numbers()
    assert "async_generator" in str(refusal(stream))
    assert [n async for n in stream] == [1]
