"""Signatures: a call becomes an input, and the input the same call again."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import timeit
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskrunner.authoring.context import TaskContext
from taskrunner.authoring.signature import Signature
from taskrunner.core.errors import InvalidInput
from taskrunner.core.payload import UNTYPED
from tests.unit.samples import Answer, Colour, Options, Pair, Query, Silent

if TYPE_CHECKING:
    from taskrunner.authoring.context import TaskContext as Hidden

MICROSECONDS = 60.0
"""A bound that a slow, busy machine keeps too; measured at 3 µs on an idle one."""


async def research(ctx: TaskContext, topic: str, depth: int = 2) -> dict[str, int]:
    """The task of the README."""
    return {topic: depth}


def plain(a: int, *rest: str, flag: bool = False, **extra: float) -> list[int]:
    """Every kind of parameter but one."""
    return [a]


def strict(a: int, b: int = 2, /, c: int = 3, *, d: int = 4) -> None:
    """Positional-only ones too."""


def loose(ctx, value, other=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """No annotations at all."""


def rich(  # noqa: PLR0917 - one parameter for each kind of type
    query: Query,
    options: Options,
    since: datetime | None = None,
    colours: set[Colour] = frozenset(),  # type: ignore[assignment]
    counts: dict[int, str] | None = None,
    price: Decimal = Decimal(0),
    data: bytes = b"",
    pair: Pair | None = None,
    answer: Answer | None = None,
    mode: Literal["fast", "slow"] = "fast",
) -> Answer:
    """Types that JSON does not have."""
    raise NotImplementedError


class Tool:
    """Methods as tasks."""

    def half(self, a: float) -> float:
        """Half of it."""
        return a / 2

    async def add(self, ctx: TaskContext, a: float, b: float = 1) -> float:  # noqa: ARG002 - as tasks have it
        """The sum."""
        return a + b

    def __call__(self, a: int) -> int:
        """The object itself."""
        return a


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
        (research, (1,), {}, "topic", "topic: expected str, got int"),
        (research, ("a", "3"), {}, "depth", "depth: expected int, got str"),
        (research, ("a", True), {}, "depth", "depth: expected int, got bool"),
        (research, ("a", 2**63), {}, "depth", "an integer must be"),
        (research, (b"abc",), {}, "topic", "expected str, got bytes"),
        (research, (None,), {}, "topic", "expected str, got null"),
        (plain, (1, "a", 2), {}, "rest[1]", "expected str, got int"),
        (plain, (1,), {"z": "a"}, 'extra["z"]', "expected float, got str"),
        (plain, (1,), {"flag": 1}, "flag", "expected bool, got int"),
        (strict, (), {"a": 1}, "a", "'a'"),
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
        (rich, (Query("a"), {"limit": 1}), {"mode": "idle"}, "mode", "invalid enum value 'idle'"),
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
    with pytest.raises(InvalidInput, match="other: without a type annotation"):
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
