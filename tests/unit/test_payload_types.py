"""Typed JSON: a value comes back as its annotated type, or is refused."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput, InvalidResult
from taskrunner.core.payload import UNTYPED
from tests.unit.samples import (
    Answer,
    Colour,
    Level,
    Moody,
    Number,
    Options,
    Pair,
    Query,
    Renamed,
    Silent,
    Text,
    Whole,
    Word,
)


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
    assert json.loads(payload.encode(value, name="x", error=InvalidInput)) == value


@pytest.mark.parametrize(
    ("value", "annotation", "path", "rule"),
    [
        (b"abc", str, "x", "expected str, got bytes"),
        (datetime(2026, 1, 1, tzinfo=UTC), str, "x", "expected str, got datetime"),
        (Query(text=b"abc"), Query, "x.text", "expected str, got bytes"),  # type: ignore[arg-type]
        ([Query("a", tags=["b", 3])], list[Query], "x[0].tags[1]", "expected str, got int"),  # type: ignore[list-item]
        (Decimal("1.5"), float, "x", "expected float, got str"),
        (True, int, "x", "expected int, got bool"),
        (1.5, int, "x", "expected int, got float"),
        ("3", int, "x", "expected int, got str"),
        (3, str, "x", "x=3: expected str, got int"),
        (None, int, "x", "expected int, got null"),
        (3, type(None), "x", "expected null, got int"),
        ("blue", Colour, "x", "x='blue': must be one of 'red'"),
        (9, Level, "x", "x=9: must be one of 1"),
        ([{"a": "c"}], list[dict[str, Literal["b", "a"]]], 'x[0]["a"]', "='c': must be one of 'a', 'b'"),
        ("c", Literal["a", 1] | None, "x", "x='c': must be one of 1, 'a'"),
        ({"limit": "many"}, Options, "x.limit", "x.limit='many': expected int, got str"),
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
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("annotation", [UNTYPED, Any, object])
def test_without_an_annotation_only_plain_json_is_kept(value: object, annotation: object) -> None:
    """What would come back as something else is refused at once, with the advice to annotate it."""
    with pytest.raises(InvalidResult, match="without a type annotation"):
        payload.record(value, annotation, name="x", error=InvalidResult)
    with pytest.raises(InvalidResult, match=r"^x\[0\]: a value of type Silent has no JSON form$"):
        payload.record([Silent(), value], annotation, name="x", error=InvalidResult)


queries = st.builds(Query, st.text(), st.none() | st.dates(), st.lists(st.text()))


@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.lists(queries, max_size=3), max_size=3))
def test_typed_values_make_the_round_trip(value: dict[int, list[Query]]) -> None:
    """Nested dataclasses, dates and integer keys come back equal."""
    assert payload.record(value, dict[int, list[Query]], name="x", error=InvalidResult)[1] == value


def test_a_type_whose_own_annotations_cannot_be_resolved_counts_as_none() -> None:
    """It cannot be decoded, so only plain JSON is taken for it."""

    @dataclasses.dataclass
    class Hidden:
        other: Elsewhere  # type: ignore[name-defined]  # noqa: F821

    assert payload.record({"other": 1}, Hidden, name="x", error=InvalidResult)[1] == {"other": 1}
    with pytest.raises(InvalidResult, match="without a type annotation"):
        payload.record(Hidden(1), Hidden, name="x", error=InvalidResult)
