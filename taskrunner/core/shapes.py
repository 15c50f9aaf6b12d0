"""What a type says of the places in its values: which it leaves open, and what may stand there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from msgspec import inspect as described

from taskrunner.core import places
from taskrunner.core import pydantic_models as models
from taskrunner.core.places import KEY, Part

Found: TypeAlias = tuple[list[Part], str]
"""The way to a place, and the rule that is broken there."""

OPEN: Final = "where its annotation leaves the type open"

_PLAIN_SCALARS = (
    described.StrType,
    described.IntType,
    described.FloatType,
    described.BoolType,
    described.NoneType,
    described.LiteralType,
)
_ARRAYS = (described.ListType, described.VarTupleType, described.SetType, described.FrozenSetType)
_RECORDS = (described.StructType, described.DataclassType, described.TypedDictType)
_MOST_CHOICES = 12


class Shape:
    """The description of one type that leaves something open.

    `is_plain`: it takes nothing but what JSON alone gives back, such as `dict[str, Any]`.
    """

    def __init__(self, root: described.Type) -> None:
        self.is_plain = _is_plain(root)
        self._root = root
        self._leaves_open: dict[int, bool] = {}

    def fault(self, value: object) -> Found | None:
        """The first place that the type leaves open and whose value is no plain JSON, and the rule it breaks."""
        return self._fault(value, self._root)

    def _fault(self, value: object, info: described.Type) -> Found | None:
        if not self._is_open(info):
            return None
        if _is_plain(info):
            return places.fault(value, plain=OPEN)
        if places.children(value) is None:  # a union's other types: its open ones are for containers
            return None
        branch = _branch(type(value), info)
        if branch is None or branch is info:
            return self._fault_inside(value, info)
        return self._fault(value, branch)

    def _fault_inside(self, value: object, info: described.Type) -> Found | None:
        for part, child in places.children(value) or ():
            if part[0] is KEY and _has_open_keys(info) and (rule := places.key_rule(part[1], plain=OPEN)):
                return [part], rule
            known = _at(info, part)
            found = None if known is None else self._fault(child, known)
            if found:
                return [part, *found[0]], found[1]
        return None

    def _is_open(self, info: described.Type) -> bool:
        known = self._leaves_open.get(id(info))
        if known is None:
            known = self._leaves_open[id(info)] = any(map(_is_any, _all_inside(info)))
        return known


def shape_of(annotation: Any) -> Shape | None:  # noqa: ANN401 - any annotation
    """What a type leaves open, to be asked about its values; None when it leaves nothing open."""
    try:
        root = described.type_info(annotation)
    except Exception:  # noqa: BLE001 - msgspec says why by TypeError when a value is read, a user's class by anything
        return None
    return Shape(root) if any(map(_is_any, _all_inside(root))) else None


def choices(annotation: Any, parts: Sequence[Part]) -> str | None:  # noqa: ANN401 - any annotation
    """The values that a Literal or an Enum takes at a place, as an error names them; None when there are too many."""
    try:
        here = [*_branches(described.type_info(annotation))]
    except Exception:  # noqa: BLE001 - as above
        return None
    for part in parts:
        inner = [known for info in here if (known := _at(info, part)) is not None]
        here = [branch for info in inner for branch in _branches(info)]
    values: list[object] = []
    for info in here:
        if isinstance(info, described.LiteralType):
            values += sorted(info.values, key=str)
        elif isinstance(info, described.EnumType):
            values += [member.value for member in info.cls]
        elif not isinstance(info, described.NoneType):
            return None
    return ", ".join(map(places.shown, values)) if 0 < len(values) <= _MOST_CHOICES else None


def unknown_class(annotation: Any) -> type | None:  # noqa: ANN401 - any annotation
    """The first class in a type that nobody here can write: neither msgspec nor, of its own models, pydantic."""
    for info in _all_inside(described.type_info(annotation)):
        if isinstance(info, described.CustomType) and info.cls is not object and not models.is_model(info.cls):
            return info.cls
    return None


def _is_any(info: object) -> bool:
    return isinstance(info, described.AnyType) or (isinstance(info, described.CustomType) and info.cls is object)


def _is_plain(info: object) -> bool:
    """Whether the values of a type are plain JSON, and nothing but what JSON alone would give back."""
    if isinstance(info, described.Metadata):
        return _is_plain(info.type)
    if isinstance(info, described.DictType):
        return (isinstance(info.key_type, described.StrType) or _is_any(info.key_type)) and _is_plain(info.value_type)
    if isinstance(info, described.ListType):
        return _is_plain(info.item_type)
    if isinstance(info, described.UnionType):
        return any(map(_is_any, info.types)) or all(map(_is_plain, info.types))  # beside Any, nothing else counts
    return isinstance(info, _PLAIN_SCALARS) or _is_any(info)


def _has_open_keys(info: object) -> bool:
    return isinstance(info, described.DictType) and _is_any(info.key_type)


def _branches(info: described.Type) -> Iterator[described.Type]:
    if isinstance(info, described.Metadata):
        yield from _branches(info.type)
    elif isinstance(info, described.UnionType):
        for branch in info.types:
            yield from _branches(branch)
    else:
        yield info


def _branch(kind: type, info: described.Type) -> described.Type | None:
    """The part of a union that a container is for: there may be one for lists, one for objects, or classes by name."""
    branches = [*_branches(info)]
    if len(branches) == 1:
        return branches[0]
    for branch in branches:
        if getattr(branch, "cls", None) is kind:
            return branch
    if issubclass(kind, list | tuple | set | frozenset):
        wanted: Any = (*_ARRAYS, described.TupleType, described.NamedTupleType)
    else:
        wanted = (described.DictType, *_RECORDS)
    fitting = [branch for branch in branches if isinstance(branch, wanted)]
    return fitting[0] if len(fitting) == 1 else None


def _at(info: described.Type, part: Part) -> described.Type | None:
    """The type of what is at one turn of a path."""
    key = part[1]
    if isinstance(info, described.DictType):
        return info.value_type
    if isinstance(info, _ARRAYS):
        return info.item_type
    if isinstance(info, _RECORDS):
        return next((field.type for field in info.fields if field.encode_name == key), None)
    types: Sequence[described.Type] = ()
    if isinstance(info, described.TupleType):
        types = info.item_types
    elif isinstance(info, described.NamedTupleType):
        types = [field.type for field in info.fields]
    return types[key] if isinstance(key, int) and key < len(types) else None


def _all_inside(root: object) -> Iterator[object]:
    """A type's description and all that it is made of, each once: a type may contain itself."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        info = todo.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        yield info
        if isinstance(info, tuple):
            todo += reversed(info)
        elif isinstance(info, described.Type | described.Field):
            todo += reversed([getattr(info, name) for name in info.__struct_fields__])
