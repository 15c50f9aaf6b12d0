"""What a function's annotations say, whatever kind of callable it is."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import FunctionType, SimpleNamespace
from typing import Any, Final, Never, NoReturn, Self, TypeVar, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from taskrunner.core.errors import safe_text


@dataclasses.dataclass(frozen=True)
class Untyped:
    """No annotation, or none that means anything at run time; `why` begins the sentence of a refusal."""

    why: str = "without a type annotation"


UNTYPED: Final = Untyped()
"""Stands where there is no annotation. (None would be one: it means that the value is None.)"""

_AWAITABLES = (Awaitable, Coroutine, asyncio.Future, asyncio.Task)
_NO_TYPE = (NoReturn, Never, Self)
_MAX_WRAPPINGS = 20
_MAX_NAME = 60
_UNKNOWN: Final = object()
_returns: WeakKeyDictionary[Callable[..., Any], Any] = WeakKeyDictionary()


def target_of(fn: Callable[..., Any]) -> Any:  # noqa: ANN401 - a function, a class, a builtin
    """The function or class behind partials, bound methods and callable objects."""
    if type(fn) is FunctionType:  # most are, and this is asked for each step
        return fn
    for _ in range(_MAX_WRAPPINGS):
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn) or isinstance(fn, staticmethod | classmethod):
            fn = fn.__func__
        elif isinstance(fn, type) or inspect.isroutine(fn):
            break
        else:
            call = getattr(fn, "__call__", None)  # noqa: B004 - the method itself is wanted
            if not (inspect.ismethod(call) or inspect.isfunction(call)):
                break
            fn = call
    return fn


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a call of `fn` has to be awaited."""
    if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:  # at once, for each step asks
        return True
    return inspect.iscoroutinefunction(target_of(fn))


def is_generator(fn: Callable[..., Any]) -> bool:
    """Whether a call of `fn` gives a generator, plain or asynchronous."""
    target = target_of(fn)
    return inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of `fn` by name, resolved; one that cannot be resolved at run time is left out.

    Types that are defined inside a function are found while that function runs.
    """
    target = target_of(fn)
    source: Any = vars(target).get("__init__") if isinstance(target, type) else target
    try:
        return get_type_hints(source, include_extras=True)
    except Exception:  # noqa: BLE001 - evaluating an annotation runs a user's code
        return _one_by_one(source)


def returns_of(fn: Callable[..., Any]) -> Any:  # noqa: ANN401 - an annotation can be any object
    """What `fn` gives, once awaited, by its annotations: `UNTYPED` without one, `NoneType` for None.

    Looks through `functools.partial`, methods, callable objects and `Awaitable[T]`; a class gives itself.
    """
    target = target_of(fn)
    if isinstance(target, type):
        return target
    if not isinstance(target, FunctionType):
        return _returned(target, hints_of(target))
    known = _returns.get(target, _UNKNOWN)
    if known is _UNKNOWN:
        known = _returns[target] = _returned(target, hints_of(target)) if target.__annotations__ else UNTYPED
    return known


def unresolved(annotation: object, what: str) -> Untyped:
    """Stands where there is an annotation of `what` whose names are not there at run time."""
    named = safe_text(annotation if isinstance(annotation, str) else repr(annotation), _MAX_NAME)
    return Untyped(
        f"the annotation `{named}` of {what} cannot be resolved at run time (import it outside TYPE_CHECKING), "
        "and without one"
    )


def _returned(target: object, hints: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an annotation can be any object
    written = getattr(target, "__annotations__", {})
    if "return" in written and "return" not in hints:
        return unresolved(written["return"], "the result")
    hint = hints.get("return", UNTYPED)
    while get_origin(hint) in _AWAITABLES and (inner := get_args(hint)):
        hint = inner[-1]
    if hint in _AWAITABLES or hint in _NO_TYPE or isinstance(hint, TypeVar):
        return UNTYPED
    return hint


def _one_by_one(source: Any) -> dict[str, Any]:  # noqa: ANN401 - anything with annotations
    found = {}
    space = getattr(inspect.unwrap(source), "__globals__", {})
    local = _names_around(getattr(source, "__qualname__", ""), space)
    for name, hint in getattr(source, "__annotations__", {}).items():
        try:
            lone = SimpleNamespace(__annotations__={name: hint})
            found.update(get_type_hints(lone, space, local, include_extras=True))
        except Exception:  # noqa: BLE001, S112 - as above; the caller sees that the name is absent
            continue
    return found


def _names_around(qualname: str, space: Mapping[str, Any]) -> dict[str, Any]:
    """The local names of the running functions that `qualname` says it was defined in, innermost first."""
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if frame.f_globals is space and qualname.startswith(f"{code.co_qualname}.<locals>."):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names
