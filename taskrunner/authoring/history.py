"""The numbers of an attempt's steps, and what earlier attempts have recorded under them.

A step is known by its name and its occurrence, counted when it is CALLED, so `asyncio.gather(ctx.step(…), ctx.step(…))`
is numbered in program order whatever the event loop does. Two rules keep the numbers the same on replay:

- one name used from several async tasks would be numbered by chance: it needs a key, else `AmbiguousStep`;
- the calls of the body's own async task come in one order; `turn` counts them. A replay that calls another step at a
  recorded turn is another program: `NonDeterministicStep`. Steps of other async tasks have no turn, as their order
  may differ between two runs of the same program.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from taskrunner.core.errors import AmbiguousStep, NonDeterministicStep
from taskrunner.core.loop import current_caller
from taskrunner.core.model import step_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskrunner.core.model import Step

_lineage: ContextVar[tuple[object, ...]] = ContextVar("lineage", default=())
"""The async tasks (or threads) of which this one descends, itself the last, as far as they have called steps."""


class Number(msgspec.Struct, frozen=True):
    """Which call of this attempt it is, and who called."""

    scope: str
    name: str
    occurrence: int
    position: int
    turn: int | None
    call: int
    """Which of all calls that were numbered, from 0."""
    lineage: tuple[object, ...]
    """Who called: an async task (or a thread), after those that it descends from."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is recorded under."""
        return (self.scope, self.name, self.occurrence)

    @property
    def caller(self) -> object:
        """The async task (or thread) that called."""
        return self.lineage[-1]

    @property
    def label(self) -> str:
        """As people read it; see `step_label`."""
        return step_label(self.scope, self.name, self.occurrence)


@dataclass(slots=True)
class _Use:
    """Of one name: by whom, and how often so far."""

    caller: object
    count: int = 0


class History:
    """What is recorded, and the numbers given so far."""

    def __init__(self, recorded: Iterable[Step] = ()) -> None:
        self._recorded: dict[tuple[str, str, int], Step] = {}
        self._turns: dict[int, Step] = {}
        for step in recorded:
            self._recorded[step.scope, step.name, step.occurrence] = step
            if step.turn is not None:
                self._turns[step.turn] = step
        self._uses: dict[tuple[str, str], _Use] = {}
        self._body: object = None
        self._position = 0
        self._turn = 0
        self.calls = 0
        """How many calls were numbered so far."""

    def begin(self) -> None:
        """Say that the caller is the body itself: its calls have one order."""
        self._body = current_caller()
        _lineage.set((self._body,))

    def end(self) -> None:
        """Say that the body has ended; its async task is calling, and holds nothing of this from now on."""
        _lineage.set(())

    def number(self, name: str, scope: str = "", *, kind: Literal["step", "value", "write"] = "step") -> Number:
        """Number a call: of a step, of a value of the clock, or of a write that is no step (a message) and has no turn.

        Raises:
            AmbiguousStep: another async task has used this name, with the same key (`scope`) or without any.
        """
        caller = current_caller()
        use = self._uses.get((scope, name))
        if use is None:
            use = self._uses[scope, name] = _Use(caller)
        elif use.caller is not caller:
            raise AmbiguousStep(_ambiguous(name, scope, kind))
        lineage = _lineage.get()
        if not lineage or lineage[-1] is not caller:
            lineage = (*lineage, caller)
            _lineage.set(lineage)
        occurrence = use.count
        use.count += 1
        position = self._position
        turn: int | None = None
        if kind != "write":
            self._position += 1
            if caller is self._body:
                turn = self._turn
                self._turn += 1
        self.calls += 1
        return Number(scope, name, occurrence, position, turn, self.calls - 1, lineage)

    def recorded(self, number: Number) -> Step | None:
        """What is recorded for this call, if anything.

        Raises:
            NonDeterministicStep: another step is recorded at this turn, or this one at another turn.
        """
        if not self._recorded:
            return None
        step = self._recorded.get(number.key)
        if number.turn is not None:
            there = self._turns.get(number.turn)
            if there is not None and there is not step:
                message = (
                    f"step {number.label!r} is called where {there.name!r} was recorded (call {number.turn}): "
                    "the task has changed, or it does not take the same steps each time"
                )
                raise NonDeterministicStep(message)
            if step is not None and step.turn is not None and step.turn != number.turn:
                message = (
                    f"step {number.label!r} was recorded as call {step.turn} and is now call {number.turn}: "
                    "the task has changed, or it does not take the same steps each time"
                )
                raise NonDeterministicStep(message)
        return step

    @property
    def is_caller_body(self) -> bool:
        """Whether the body's own async task is calling."""
        return current_caller() is self._body


def _ambiguous(name: str, scope: str, kind: str) -> str:
    if kind != "step":
        return f"{name} is called from several async tasks, in an order that may change: call it inside of steps"
    what = f"step {name!r} with key {scope!r}" if scope else f"step {name!r}"
    return f"{what} is used from several async tasks: give each its own name, or ctx.options(key=…)"
