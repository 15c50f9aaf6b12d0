"""What an annotation leaves open has to be plain JSON, or it would silently come back as something else."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import msgspec
import pytest

from taskrunner.authoring.enqueueing import bound_by_name
from taskrunner.authoring.signature import Signature
from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput, InvalidResult
from tests.unit.samples import Query

if TYPE_CHECKING:
    from tests.unit.samples import Answer as Order

NOT_PLAIN = [
    *[(1, 2), {1}, b"x", datetime(2026, 1, 1, tzinfo=UTC), Query("a"), {1: 2, "1": 3}, OrderedDict(a=1)],
    *[[(1, 2)], {"b": {"c": {1: 2}}}],
]


class Loose(TypedDict):
    """A field that says nothing."""

    data: Any


@dataclasses.dataclass
class Tree:
    """A type that contains itself, and a field that says nothing."""

    data: object = None
    below: list[Tree] = dataclasses.field(default_factory=list["Tree"])


class Event(msgspec.Struct, rename="camel"):
    """A Struct whose JSON has other names."""

    raw_data: dict[str, Any]


class Two(NamedTuple):
    """A tuple with a field that says nothing."""

    name: str
    data: Any


@pytest.mark.parametrize("value", NOT_PLAIN, ids=repr)
@pytest.mark.parametrize(
    ("annotation", "wrap", "path"),
    [
        (dict[str, Any], lambda v: {"a": v}, 'x["a"]'),
        (dict[str, object], lambda v: {"a": v}, 'x["a"]'),
        (dict, lambda v: {"a": v}, 'x["a"]'),
        (list, lambda v: [v], "x[0]"),
        (list[Any], lambda v: [v], "x[0]"),
        (dict[str, Any] | list[Any] | None, lambda v: [v], "x[0]"),
        (dict[str, list[dict[str, Any]]], lambda v: {"a": [{"b": v}]}, 'x["a"][0]["b"]'),
        (tuple[int, Any], lambda v: (1, v), "x[1]"),
        (dict[int, Any], lambda v: {1: v}, 'x["1"]'),
        (Loose, lambda v: {"data": v}, 'x["data"]'),
        (Tree, lambda v: Tree(below=[Tree(v)]), "x.below[0].data"),
        (Tree | None, Tree, "x.data"),
        (datetime | dict[str, Any], lambda v: {"a": v}, 'x["a"]'),
        (Event, lambda v: Event({"a": v}), 'x.rawData["a"]'),
        (Two, lambda v: Two("a", v), "x[1]"),
    ],
    ids=str,
)
def test_an_open_part_takes_plain_json_alone(value: object, annotation: object, wrap: Any, path: str) -> None:  # noqa: ANN401
    """As without any annotation: the path is named, and nothing comes back as something else or gets lost."""
    with pytest.raises(InvalidResult, match="where its annotation leaves the type open") as caught:
        payload.record(wrap(value), annotation, name="x", error=InvalidResult)
    assert caught.value.path.startswith(path)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        *[(dict[str, Any], (1,)), (dict, {1: 2}), (dict[str, Any], Query("a")), (list[Any], (1, 2)), (list, {1})],
        *[(dict[Any, int], {1: 2, "1": 3}), (dict[str, Any] | None, {1: 2}), (dict[Any, Query], {1: Query("a")})],
    ],
    ids=str,
)
def test_the_container_is_exact_too(annotation: object, value: object) -> None:
    """A tuple is no list, an integer key no text."""
    with pytest.raises(InvalidResult):
        payload.record(value, annotation, name="x", error=InvalidResult)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dict[str, Any], {"a": [1, 2.5, "b", None, {"c": True}]}),
        (dict, {}),
        (list[Any] | None, None),
        (Tree, Tree([1, {"a": None}], [Tree()])),
        (datetime | dict[str, Any], datetime(2026, 1, 1, tzinfo=UTC)),
        (Event, Event({"a": [1]})),
        (Two, Two("a", {"b": 1})),
        (dict[int, list[Any]], {1: [2]}),
        (tuple[Any, ...], (1, "a")),
        (Loose, {"data": {"a": 1}}),
    ],
    ids=str,
)
def test_plain_json_in_an_open_part_is_kept_exactly(annotation: object, value: object) -> None:
    """What is annotated beside it keeps its type."""
    text, back = payload.record(value, annotation, name="x", error=InvalidResult)
    assert back == value == payload.decode(text, annotation, name="x", error=InvalidResult)
    assert type(back) is type(value)


def takes(some: dict[str, Any], *rest: list[Any], **more: Mapping[str, Any]) -> None:
    """Open parameters of every kind."""


@pytest.mark.parametrize("value", NOT_PLAIN, ids=repr)
def test_an_open_argument_takes_plain_json_alone(value: object) -> None:
    """At the door, with the path of the place."""
    signature = Signature(takes)
    for args, kwargs, path in (
        (({"a": value},), {}, 'some["a"]'),
        (({}, [], [value]), {}, "rest[1][0]"),
        (({},), {"b": {"c": value}}, 'more["b"]["c"]'),
    ):
        with pytest.raises(InvalidInput, match="where its annotation leaves the type open") as caught:
            signature.encode(args, kwargs)
        assert caught.value.path.startswith(path)
    assert signature.encode(({"a": [1]}, [2]), {"b": {"c": 3}})


@pytest.mark.parametrize("value", NOT_PLAIN, ids=repr)
def test_an_input_by_name_is_plain_json(value: object) -> None:
    """Nobody knows its types, so nothing may change on the way; an entry must not get lost."""
    with pytest.raises(InvalidInput, match="for a task by its name") as caught:
        bound_by_name("x", {"a": value}, {})
    assert caught.value.path.startswith("a")
    with pytest.raises(InvalidInput, match="a key must be a text"):
        bound_by_name("x", {1: 2, "1": 3}, {})


def buys(order: Order, note: str = "") -> Order:
    """Annotated by a class that is imported for the type checker alone."""
    return order


def test_a_type_imported_for_the_checker_alone_is_named() -> None:
    """The annotation is there, it just means nothing at run time: the sentence says so, and what to do."""
    signature = Signature(buys)
    says = r"the annotation `Order` of {} cannot be resolved at run time \(import it outside TYPE_CHECKING\)"
    with pytest.raises(InvalidInput, match=says.format("parameter `order`")) as caught:
        signature.encode((Query("a"),), {})
    assert caught.value.path == "order"
    with pytest.raises(InvalidResult, match=says.format("the result")):
        payload.record(Query("a"), payload.returns_of(buys), name="the result", error=InvalidResult)
    assert signature.encode(({"a": 1},), {}) == '{"order":{"a":1}}'
