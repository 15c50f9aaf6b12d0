"""Signatures where the task is defined: the context, what has to be awaited, and types that JSON does not have."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import pytest

from taskrunner.authoring.context import TaskContext
from taskrunner.authoring.signature import Signature
from taskrunner.core.errors import InvalidInput
from taskrunner.core.payload import UNTYPED
from tests.unit.functions import Tool, loose, plain, research, strict
from tests.unit.samples import Answer, Colour, Options, Pair, Query, Silent

if TYPE_CHECKING:
    from taskrunner.authoring.context import TaskContext as Hidden


def hidden(ctx: Hidden, a: int) -> int:
    """A context that was imported for types only, under another name: it is none at run time."""
    return a


def quoted(c: "TaskContext", a: int) -> int:  # noqa: UP037
    """Quotes, and another name."""
    return a


def optional(ctx: TaskContext | None, a: int) -> int:
    """Callable without one."""
    return a


def unhinted(ctx, a: int) -> int:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """By its name alone."""
    return a


def other_ctx(ctx: int, a: int) -> int:
    """The name, but something else."""
    return a


async def spelled(ctx: taskrunner.authoring.TaskContext, a: int) -> int:  # type: ignore[name-defined]  # noqa: F821
    """A name that there is not at run time."""
    return a


WORLD: Any = None


class Special(TaskContext):
    """A context of one's own."""


def special(ctx: Special, a: int) -> int:
    """A kind of context."""
    return a


def keyword(*, ctx: int) -> None:
    """Never by keyword."""


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        *[(research, True), (quoted, True), (optional, True), (unhinted, True), (spelled, True), (special, True)],
        *[(Tool().add, True), (functools.partial(research), True), (functools.partial(research, depth=3), True)],
        *[(functools.partial(research, WORLD), False), (other_ctx, False), (plain, False), (Tool().half, False)],
        *[(str.upper, False), (Query, False), (lambda ctx: ctx, True), (lambda: 1, False), (keyword, False)],
    ],
)
def test_the_context_is_passed_by_annotation_or_name(fn: Callable[..., Any], wanted: bool) -> None:
    """If the first parameter is annotated `TaskContext`, as text too, or is called `ctx` and not annotated."""
    assert Signature(fn).wants_context is wanted


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        *[(research, True), (Tool().add, True), (functools.partial(research, depth=3), True), (spelled, True)],
        *[
            (plain, False),
            (Tool().half, False),
            (lambda: 3, False),
            (str.upper, False),
            (Query, False),
            (Tool(), False),
        ],
    ],
)
def test_what_has_to_be_awaited_is_known(fn: Callable[..., Any], expected: bool) -> None:
    """`async def` runs on the loop, everything else in a thread."""
    assert Signature(fn).is_async is expected


class Custom:
    """A class of the user's own that JSON knows nothing of."""


@dataclasses.dataclass
class Holder:
    """A dataclass with one inside."""

    inner: list[Custom | None]


def takes(annotation: object, name: str = "x") -> Callable[..., Any]:
    """A function with a parameter of this type."""

    def body(x: object) -> None: ...

    body.__annotations__ = {name: annotation}
    return body


@pytest.mark.parametrize(
    "annotation",
    [
        *[
            Custom,
            list[Custom],
            dict[str, Custom | None],
            Holder,
            Holder | None,
            Path,
            Iterable[int],
            complex,
            type[int],
        ],
        *[
            Callable[[], int],
            int | Custom,
            Query | Holder,
            dict[Custom, int],
            Generator[int, None, None],
            Silent,
            range,
        ],
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["x", "return"])
def test_a_type_without_a_json_form_is_refused_where_the_task_is_defined(annotation: object, place: str) -> None:
    """One sentence names the parameter (or the result) and the type; nobody finds out at three in the morning."""
    with pytest.raises(InvalidInput) as caught:
        Signature(takes(annotation, place))
    assert ("parameter 'x'" if place == "x" else "its result") in str(caught.value)
    assert "is annotated" in str(caught.value)
    assert caught.value.path == ("x" if place == "x" else "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "annotation",
    [
        *[int, str | None, list[Query], Answer, Options, Mapping[str, int], Sequence[date], tuple[int, ...], set[str]],
        *[Any, object, dict[str, Any], dict[str, object], Literal["a"], Colour, Decimal, None, Pair, "int", "Unknown"],
    ],
    ids=str,
)
def test_every_type_with_a_json_form_is_taken(annotation: object) -> None:
    """Also those that say nothing, and texts that cannot be resolved at run time."""
    Signature(takes(annotation))
    Signature(takes(annotation, "return"))


def test_a_context_that_is_not_first_is_refused() -> None:
    """The sentence says that it has to be the first parameter."""

    def wrong(a: int, ctx: TaskContext) -> None: ...

    def by_keyword(*, ctx: TaskContext) -> None: ...

    for fn in (wrong, by_keyword):
        with pytest.raises(InvalidInput, match="the context has to be the first parameter, and 'ctx' is not"):
            Signature(fn)


def generates() -> Generator[int, None, None]:
    """No single result."""
    yield 1


async def streams() -> Any:  # noqa: ANN401
    """No single result either."""
    yield 1


@pytest.mark.parametrize("fn", [max, int, min, dict, type, vars], ids=str)
def test_a_builtin_without_a_signature_is_refused(fn: Callable[..., Any]) -> None:
    """Python cannot tell what `max` or `int` take: wrap it, says the sentence."""
    with pytest.raises(InvalidInput, match="wrap it in a function of your own"):
        Signature(fn)


@pytest.mark.parametrize("fn", [generates, streams, functools.partial(generates)], ids=str)
def test_a_generator_is_refused(fn: Callable[..., Any]) -> None:
    """A task returns one result."""
    with pytest.raises(InvalidInput, match="is a generator"):
        Signature(fn)


def test_types_that_are_defined_inside_a_function() -> None:
    """With postponed annotations, local types are found while their function runs; unknown ones count as none."""

    @dataclasses.dataclass
    class Local:
        n: int

    class Shape(TypedDict):
        n: int

    async def body(ctx: TaskContext, local: Local, shape: Shape, other: Nowhere) -> list[Local]:  # type: ignore[name-defined]  # noqa: F821
        return [local]

    signature = Signature(body)
    assert signature.wants_context
    assert signature.is_async
    assert signature.returns == list[Local]
    stored = json.loads(signature.encode((Local(1), {"n": 2}, [3]), {}))
    assert signature.decode(stored) == ((), {"local": Local(1), "shape": {"n": 2}, "other": [3]})
    with pytest.raises(
        InvalidInput, match="other: the annotation `Nowhere` of parameter `other` cannot be resolved at run time"
    ):
        signature.encode((Local(1), {"n": 2}, Local(3)), {})


def test_a_wrapped_function_keeps_its_signature() -> None:
    """A decorator made with functools.wraps changes nothing."""

    @functools.wraps(research)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return await research(*args, **kwargs)

    signature = Signature(wrapper)
    assert (signature.wants_context, signature.is_async, signature.returns) == (True, True, dict[str, int])
    assert json.loads(signature.encode(("a",), {})) == {"topic": "a"}


def test_a_result_without_an_annotation_is_untyped() -> None:
    """Then only plain JSON is a result."""
    assert Signature(loose).returns is UNTYPED
    assert Signature(lambda: 3).returns is UNTYPED
    assert Signature(strict).returns is type(None)
