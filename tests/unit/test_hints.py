"""What a function's annotations say, and what tells one call's arguments from another's."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, NoReturn, TypeAlias

import pytest

from taskrunner.core import payload
from taskrunner.core.errors import InvalidResult
from taskrunner.core.payload import UNTYPED
from tests.unit.samples import Query, Silent, cyclic


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


def test_a_result_annotated_by_a_name_that_is_not_there_is_untyped() -> None:
    """Then only plain JSON is a result, and the sentence names the annotation."""
    returns = payload.returns_of(unresolved)
    assert payload.is_untyped(returns)
    with pytest.raises(InvalidResult, match="the annotation `Missing` of the result cannot be resolved at run time"):
        payload.record((1,), returns, name="x", error=InvalidResult)


def test_types_defined_inside_a_function_are_found() -> None:
    """In a module with `from __future__ import annotations` a local dataclass still gives its type to a step."""

    @dataclasses.dataclass
    class Local:
        n: int

    def make() -> list[Local]:
        return [Local(1)]

    returns = payload.returns_of(make)
    assert payload.record(make(), returns, name="x", error=InvalidResult)[1] == [Local(1)]


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
