"""What a demo proved, derived from its effect log: lines that its steps and its client wrote outside the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from taskrunner.workers.effects import Effect


@dataclass(frozen=True, slots=True)
class Restart:
    """A supervisor that was started after another one had gone."""

    recorded: int
    """Steps that were recorded at that moment."""
    recovery: float | None
    """Seconds until a process that was started since then began its first step; None: none did."""


@dataclass(slots=True)
class Figures:
    """The figures of one survey."""

    steps: int = 0
    """Steps that ran to their end."""
    repeated: list[str] = field(default_factory=list)
    """Steps that ran again although they were recorded. There must be none."""
    cut_short: int = 0
    """Steps that ran again because they were under way, or just done and not yet recorded, when their process died."""
    kills: int = 0
    """Supervisors that the demo itself killed."""
    restarts: list[Restart] = field(default_factory=list)


def figures_of(effects: Sequence[Effect]) -> Figures:
    """Derive the figures from the lines of an effect log, in their order.

    A `recorded` line stands where the store was seen to hold a step: a `start` of that step further down is a step run
    twice. The order of the lines is the order of the writes, so this holds whoever was killed when.
    """
    figures = Figures()
    recorded: set[tuple[str, str]] = set()
    starts: Counter[tuple[str, str]] = Counter()
    ended: set[tuple[str, str]] = set()
    for effect in effects:
        step = (effect.task, effect.step)
        if effect.event == "recorded":
            recorded.add(step)
        elif effect.event == "kill":
            figures.kills += 1
        elif effect.event == "end":
            ended.add(step)
        elif effect.event == "start":
            starts[step] += 1
            if step in recorded:
                figures.repeated.append(f"{effect.step} of task {effect.task}")
    figures.steps = len(ended)
    figures.cut_short = sum(1 for step, count in starts.items() if count > 1) - len(set(figures.repeated))
    figures.restarts = list(_restarts(effects))
    return figures


def unwitnessed(recorded: Iterable[tuple[str, str]], effects: Sequence[Effect]) -> list[str]:
    """Of the steps that the store holds (task, step), those that never ran to their end. There must be none."""
    ended = {(effect.task, effect.step) for effect in effects if effect.event == "end"}
    return [f"{step} of task {task}" for task, step in recorded if (task, step) not in ended]


def _restarts(effects: Sequence[Effect]) -> Iterable[Restart]:
    recorded: set[tuple[str, str]] = set()
    for place, effect in enumerate(effects):
        if effect.event == "recorded":
            recorded.add((effect.task, effect.step))
        elif effect.event == "spawn" and any(earlier.event == "start" for earlier in effects[:place]):
            later = effects[place:]
            ours = {one.pid for one in later if one.event in {"spawn", "rested"}}
            first = next((one for one in later if one.event == "start" and one.pid in ours), None)
            yield Restart(len(recorded), None if first is None else _seconds(effect.time, first.time))


def _seconds(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
