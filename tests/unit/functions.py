"""Functions as users have them, for tests of tasks."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal

from taskrunner.authoring.context import TaskContext
from tests.unit.samples import Answer, Colour, Options, Pair, Query


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
