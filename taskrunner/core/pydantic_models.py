"""pydantic's models as values: written and read by pydantic itself, which is imported by nobody but the user.

A model goes into the store as its own `model_dump` says, and comes back through its own validation. msgspec hands both
to the hooks here, at any depth: a model in a list, a dataclass, a TypedDict.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from taskrunner.core.errors import error_text, safe_text

Way: TypeAlias = tuple[object, ...]
"""Fields, keys and indexes, from a model to a place in it."""

NOT_THE_SAME: Final = (
    "comes back from the model's JSON as another value (a secret, an excluded field, or a serializer of its own?)"
)

_RULE_LENGTH = 300


class Misfit(ValueError):
    """A value that pydantic refuses: where in the model, and why."""

    def __init__(self, way: Way, rule: str) -> None:
        super().__init__(rule.replace("`", "'"))  # msgspec adds the way to the model, between such quotes
        self.way = way
        self.rule = rule


def is_model(kind: object) -> bool:
    """Whether a class is a model of pydantic's second version."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base)


def dump(model: Any) -> Any:  # noqa: ANN401 - a model, and plain JSON
    """What a model is as JSON: what it would be written as by its aliases, without what is only computed."""
    return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


def dump_in_order(model: Any) -> Any:  # noqa: ANN401 - as above
    """As `dump`, with sets in sorted order: the same for equal models, in every process."""
    plain = model.model_dump(mode="python", by_alias=True, round_trip=True, warnings=False)
    return _in_order(plain, dump(model))


def load(kind: type, value: object) -> Any:  # noqa: ANN401 - msgspec's hook: of any type
    """Make a model out of plain JSON; msgspec's hook for types that it does not know, and leaves others alone.

    Raises:
        Misfit: the model does not take it.
    """
    if not is_model(kind):
        return value
    made: Any = kind
    try:
        return made.model_validate_json(msgspec.json.encode(value))
    except Exception as refused:
        raise _misfit(refused, value) from refused


def fault(model: Any) -> tuple[Way, str] | None:  # noqa: ANN401 - a model
    """The first place in a model that does not come back from its JSON as it is, and why; None when all do."""
    try:
        again = load(type(model), dump(model))
    except Misfit as misfit:
        return misfit.way, misfit.rule
    way = _difference(model, again)
    return None if way is None else (way, NOT_THE_SAME)


def _difference(one: Any, other: Any) -> Way | None:  # noqa: ANN401 - any values of a model
    if is_model(type(one)) and type(other) is type(one):
        fields = {name: getattr(one, name) for name in type(one).model_fields}
        return _first_difference(fields, {name: getattr(other, name) for name in fields})
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return _first_difference(one, other)
    if isinstance(one, list | tuple) and type(other) is type(one) and len(one) == len(other):
        return _first_difference(dict(enumerate(one)), dict(enumerate(other)))
    return None if type(one) is type(other) and one == other else ()


def _first_difference(ones: Mapping[Any, object], others: Mapping[Any, object]) -> Way | None:
    for name, one in ones.items():
        if (way := _difference(one, others[name])) is not None:
            return (name, *way)
    return None


def _in_order(plain: Any, tree: Any) -> Any:  # noqa: ANN401 - two forms of one value
    if isinstance(plain, set | frozenset):
        return sorted(tree, key=msgspec.json.encode)
    if isinstance(plain, dict) and isinstance(tree, dict):
        pairs = zip(plain.values(), tree.items(), strict=True)
        return {key: _in_order(one, other) for one, (key, other) in pairs}
    if isinstance(plain, list | tuple) and isinstance(tree, list):
        return [_in_order(one, other) for one, other in zip(plain, tree, strict=True)]
    return tree


def _misfit(refused: Exception, value: object) -> Misfit:
    """What pydantic says first of a value, and where; a model's own code may raise anything else."""
    try:
        first = refused.errors(include_url=False)[0]  # type: ignore[attr-defined]  # pydantic's ValidationError
    except Exception:  # noqa: BLE001 - it is none
        return Misfit((), safe_text(f"cannot be made into its type: {error_text(refused)}", _RULE_LENGTH))
    missing = first["type"] == "missing"
    rule = "is missing" if missing else _in_one_line(str(first["msg"]))
    return Misfit(_way(first["loc"], value, to_nothing=missing), rule)


def _way(places: Way, value: Any, *, to_nothing: bool) -> Way:  # noqa: ANN401 - plain JSON
    """Pydantic's location, without the names of union members and validators that it has among the fields."""
    way: list[object] = []
    for number, place in enumerate(places):
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and place in inside:
            value = inside[place]
        elif not to_nothing or number < len(places) - 1:
            continue
        way.append(place)
    return tuple(way)


def _in_one_line(message: str) -> str:
    text = " ".join(message.split())
    return safe_text(text[:1].lower() + text[1:], _RULE_LENGTH)
