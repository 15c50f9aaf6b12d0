"""Types as users have them, for tests of inputs and results."""

from __future__ import annotations

import dataclasses
from datetime import date
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec


class Colour(Enum):
    """An enum of texts."""

    RED = "red"


class Level(IntEnum):
    """An enum of integers."""

    LOW = 1


class Word(StrEnum):
    """An enum whose members are texts."""

    A = "a"


class Endless(Enum):
    """An enum of what JSON has no word for."""

    EVER = float("inf")


class Options(TypedDict):
    """A dict with fields of its own."""

    limit: int
    language: NotRequired[str]


@dataclasses.dataclass(frozen=True)
class Query:
    """A dataclass with defaults."""

    text: str
    since: date | None = None
    tags: list[str] = dataclasses.field(default_factory=list[str])


class Answer(msgspec.Struct):
    """A msgspec Struct."""

    best: str
    score: float = 0.5


class Renamed(msgspec.Struct, rename="camel"):
    """A Struct whose JSON has other names than its fields."""

    best_score: float


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: str


class Text(str):
    """A text of a subclass, as HTML libraries have."""

    __slots__ = ()


class Number(float):
    """A float of a subclass, as numpy has."""


class Whole(int):
    """An integer of a subclass."""


class Silent:
    """Its repr and its text raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Moody(msgspec.Struct):
    """A Struct that checks itself."""

    level: int

    def __post_init__(self) -> None:
        if self.level < 0:
            raise ValueError("Level must not be negative")
        if self.level > 9:
            raise KeyError("far too high")


class Unbound:
    """A lazy proxy of nothing yet, as web frameworks have them: asking for its class raises."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("working outside of request context")


def cyclic() -> list[Any]:
    """A list that contains itself, one level down."""
    value: list[Any] = [1]
    value.append({"self": value})
    return value
