"""Where in a value: paths such as `query.topics[2]`, and what at such a place has no JSON form."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import CoroutineType
from typing import Any, Final, TypeAlias, TypeGuard
from uuid import UUID

import msgspec

from taskrunner.core import pydantic_models as models
from taskrunner.core.errors import safe_text

Part: TypeAlias = tuple[str, object]
"""One turn of a path: how to write it, and the field, index or key."""

FIELD: Final = "."
INDEX: Final = "[]"
KEY: Final = '[""]'

MAX_DEPTH: Final = 100
"""How deep lists and objects may be nested, the object of a task's arguments included."""

LEAVES: Final = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
"""Types that JSON does not know and that are written as one text."""

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1
_LABEL_LENGTH = 60
_SHOWN_BITS = 128
_RULE_LENGTH = 300
_MISSING = object()


def render(name: str, parts: Sequence[Part]) -> str:
    """Write a path: `name`, then `.field`, `[2]` or `["key"]` for each part. An empty name is left out."""
    text = name
    for kind, key in parts:
        if kind == INDEX:
            text = f"{text}[{key}]"
        elif not text:
            text = _label(key)
        else:
            text = f"{text}.{_label(key)}" if kind == FIELD else f'{text}["{_label(key)}"]'
    return text


def parts_of(way: Sequence[object]) -> list[Part]:
    """A way into a model as turns of a path."""
    return [(INDEX if isinstance(place, int) else FIELD, place) for place in way]


def type_name(value: object) -> str:
    """The name of a value's type as users write it."""
    return safe_text(type(value).__qualname__, _LABEL_LENGTH)


def is_huge(value: object) -> bool:
    """Whether it is an integer outside -2**63 … 2**63-1, of which Python may even refuse to write the digits."""
    return issubclass(type(value), int) and not _MIN_INTEGER <= value <= _MAX_INTEGER  # type: ignore[operator]


def shown(value: object) -> str:
    """A value as an error names it, short and safe: an object's own repr may be endless, or raise."""
    kind = type(value)
    if kind is bool or kind is float or (kind is int and not is_huge(value)):
        return str(value)
    if kind is str:
        return repr(safe_text(str(value), _LABEL_LENGTH))
    if isinstance(value, type):
        return safe_text(value.__qualname__, _LABEL_LENGTH)
    return "an empty tuple" if kind is tuple and value == () else f"a value of type {type_name(value)}"


def as_scalar(value: object) -> str | int | float:
    """The plain form of a text or number of a subclass, such as numpy's float64: msgspec's hook for unknown types.

    Raises:
        NotImplementedError: it is no text and no number.
    """
    kind = type(value)
    for base, plain in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if issubclass(kind, base):
            result: str | int | float = plain(value)  # type: ignore[arg-type]
            return result
    message = f"{type_name(value)} has no JSON form"
    raise NotImplementedError(message)


def fault(value: object, *, plain: str = "") -> tuple[list[Part], str] | None:
    """Find the first place in `value` that JSON cannot keep, and the rule that it breaks.

    `plain` asks for more: nothing but dicts with text keys, lists, texts, numbers, booleans and None, since other
    types do not come back as themselves where no annotation tells them. It says when, as the rule begins.
    """
    walk = _Walk(plain=plain)
    try:
        rule = walk.rule_broken_by(value)
    except Exception as broken:  # noqa: BLE001 - reading a user's attribute may raise anything
        rule = f"cannot be read ({type_name(broken)})"
    return None if rule is None else (walk.trail, rule)


def close_coroutines(value: object) -> None:
    """Close every coroutine in a refused value that was never started: its forgotten `await` is reported already."""
    seen: set[int] = set()
    todo = [value]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if _is_coroutine(item):
            if inspect.getcoroutinestate(item) == inspect.CORO_CREATED:
                item.close()
            continue
        with suppress(Exception):  # reading a user's attribute may raise anything
            todo.extend(child for _part, child in children(item) or ())


def children(value: object) -> Iterator[tuple[Part, object]] | None:
    """What is inside a value, as msgspec writes it; None for a value that is no container to it."""
    kind: Any = type(value)
    container: Any = value
    if issubclass(kind, dict):
        return (((KEY, key), item) for key, item in dict.items(container))  # as msgspec: a subclass has no say
    for base in (list, tuple, set, frozenset):
        if issubclass(kind, base):
            return (((INDEX, index), item) for index, item in enumerate(base.__iter__(container)))
    if models.is_model(kind):
        tree = models.dump(value)  # of a root model it may be anything
        return (((FIELD, key), item) for key, item in tree.items()) if isinstance(tree, dict) else children(tree)
    if issubclass(kind, msgspec.Struct):
        return _attributes(value, kind.__struct_fields__, kind.__struct_encode_fields__)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else getattr(kind, "__attrs_attrs__", None)
    names = None if fields is None else [field.name for field in fields]
    return None if names is None else _attributes(value, names, names)


class _Walk:
    """One search through a value; `trail` is the way to where it stands."""

    def __init__(self, *, plain: str) -> None:
        self.trail: list[Part] = []
        self._above: list[object] = []
        self._plain = plain

    def rule_broken_by(self, value: object) -> str | None:  # noqa: PLR0911 - one line for each kind of value
        kind = type(value)
        if kind is str:
            return _text_rule(value)  # type: ignore[arg-type]
        if kind is bool or value is None:
            return None
        if kind is int or kind is float:
            return _number_rule(value)  # type: ignore[arg-type]
        if self._plain and kind is not dict and kind is not list:
            return _not_plain(value, self._plain)
        if issubclass(kind, Enum):
            return self.rule_broken_by(value.value)  # type: ignore[attr-defined]
        if issubclass(kind, LEAVES):
            return None
        if issubclass(kind, str | int | float):
            return self.rule_broken_by(as_scalar(value))
        return self._rule_broken_in_model(value) if models.is_model(kind) else self._rule_broken_inside(value)

    def _rule_broken_in_model(self, model: object) -> str | None:
        rule = None if children(model) is None else self._rule_broken_inside(model)
        found = None if rule else models.fault(model)
        if found is None:
            return rule
        self.trail += parts_of(found[0])
        return found[1]

    def _rule_broken_inside(self, value: object) -> str | None:
        inside = children(value)
        if inside is None:
            return _no_form(value)
        if any(container is value for container in self._above):
            return "a value must not contain itself"
        if len(self._above) >= MAX_DEPTH:
            return f"a value must not be nested deeper than {MAX_DEPTH} levels"
        self._above.append(value)
        for part, child in inside:
            self.trail.append(part)
            rule = key_rule(part[1], plain=self._plain) if part[0] is KEY else None
            rule = rule or self.rule_broken_by(child)
            if rule is not None:
                return rule
            self.trail.pop()
        self._above.pop()
        return None


def _attributes(value: object, names: Sequence[str], labels: Sequence[str]) -> Iterator[tuple[Part, object]]:
    for name, label in zip(names, labels, strict=True):
        item = getattr(value, name, _MISSING)
        if item is not _MISSING and item is not msgspec.UNSET:
            yield (FIELD, label), item


def _text_rule(text: str) -> str | None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "a text must not contain lone surrogates"
    return None


def _number_rule(number: float) -> str | None:
    if type(number) is float:
        return None if math.isfinite(number) else f"{number} has no JSON form"
    return f"an integer must be at least -2**63 and less than 2**63, not {_digits(number)}" if is_huge(number) else None


def _digits(number: Any) -> str:  # noqa: ANN401 - an integer
    """A huge integer as an error names it: Python may refuse to write all its digits."""
    bits = number.bit_length()
    return str(number) if bits <= _SHOWN_BITS else f"one of {bits:,} bits"


def key_rule(key: object, *, plain: str = "") -> str | None:
    """What is wrong with the key of a dict; `plain` as in `fault`."""
    if type(key) is str:
        return _text_rule(key) and "a key must not contain lone surrogates"
    if plain:
        return f"{plain} a key must be a text, not of type {type_name(key)}"
    try:
        msgspec.json.encode({key: None})
    except Exception:  # noqa: BLE001 - whatever a user's key does, it is this key that is refused
        return f"a key must be a text or a number, not of type {type_name(key)}"
    return None


def _is_coroutine(value: object) -> TypeGuard[CoroutineType[Any, Any, Any]]:
    return issubclass(type(value), CoroutineType)  # not isinstance: a lazy proxy's `__class__` may raise


def _no_form(value: object) -> str:
    hint = "; is an `await` missing?" if _is_coroutine(value) else ""
    return f"a value of type {type_name(value)} has no JSON form{hint}"


def _not_plain(value: object, when: str) -> str:
    kind = type(value)
    if issubclass(kind, (Enum, str, int, float, *LEAVES)) or children(value) is not None:
        return f"{when} only plain JSON is taken, not a value of type {type_name(value)}"
    return _no_form(value)


def _label(key: Any) -> str:  # noqa: ANN401 - any key
    kind = type(key)
    if issubclass(kind, str):
        text = safe_text(str.__str__(key), _LABEL_LENGTH)
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    if kind is float or (kind is int and not is_huge(key)):
        return str(key)
    return f"<{type_name(key)}>"


_MESSAGE = re.compile(r"(?P<reason>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_TURN = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+)\]|(?P<some>\[\.\.\.\])")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def located(message: str, value: object, check: Callable[[object], object]) -> tuple[list[Part], str]:
    """Turn msgspec's message about `value` into the path of the offending place and the rule.

    msgspec does not say which key of a dict it means: `check`, which raised the message, is asked again with ever
    fewer keys until one is left.
    """
    match = _MESSAGE.fullmatch(message)
    if match is None:
        return [], message
    reason = safe_text(match["reason"], _RULE_LENGTH)
    turns = [*_TURN.finditer(match["path"] or "")]
    parts = _named(value, turns, in_key=match["key"] is not None, fails=lambda part: _fails(check, part, message))
    for pattern, rule in ((_MISSING_FIELD, "is missing"), (_UNKNOWN_FIELD, "is not known")):
        if field := pattern.fullmatch(reason):
            return [*parts, (FIELD, field[1])], rule
    rule = reason[:1].lower() + reason[1:].replace("`", "")
    return parts, f"its key: {rule}" if match["key"] else rule


def found_at(value: Any, parts: Sequence[Part]) -> object:  # noqa: ANN401 - any plain value
    """What is at a path; None where there is nothing."""
    for _kind, key in parts:
        try:
            value = value[key]
        except (LookupError, TypeError):
            return None
    return value


def _fails(check: Callable[[object], object], value: object, message: str) -> bool:
    try:
        check(value)
    except msgspec.ValidationError as error:
        return str(error) == message
    return False


def _named(value: object, turns: list[re.Match[str]], *, in_key: bool, fails: Callable[[object], bool]) -> list[Part]:
    kinds = [turn.lastgroup for turn in turns] + (["some"] if in_key else [])
    parts: list[Part] = []
    here: Any = value
    for number, kind in enumerate(kinds):
        if kind == "some":
            if not isinstance(here, dict) or not here:
                return parts
            parts.append((KEY, _guilty_key(value, parts, here, fails)))
        elif kind == "index":
            parts.append((INDEX, int(turns[number]["index"])))
        else:
            parts.append((FIELD, turns[number]["field"]))
        try:
            here = here[parts[-1][1]]
        except (LookupError, TypeError):
            here = None
    return parts


def _guilty_key(root: object, parts: list[Part], here: dict[Any, Any], fails: Callable[[object], bool]) -> object:
    keys = list(here)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        rest = {key: here[key] for key in half}
        keys = half if fails(_replaced(root, parts, rest)) else keys[len(half) :]
    return keys[0]


def _replaced(root: Any, parts: Sequence[Part], new: object) -> Any:  # noqa: ANN401 - any JSON value
    if not parts:
        return new
    key: Any = parts[0][1]
    copy = dict(root) if isinstance(root, dict) else list(root)
    copy[key] = _replaced(root[key], parts[1:], new)
    return copy
