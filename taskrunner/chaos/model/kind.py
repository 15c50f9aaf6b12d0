"""The kind `model`: plays that hypothesis has thought up, as many as make up the steps of the order."""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskrunner.chaos import plants
from taskrunner.chaos.report import Order, Tally

if TYPE_CHECKING:
    from taskrunner.chaos.model.machine import TaskLife

STEPS: Final = 125_000
"""Of a whole run, and some to spare: a play has as many steps as chance gives it."""

STEPS_OF_A_PLAY: Final = 60
"""At most so many rules, most of which are one step."""

ROUND: Final = 50
"""Plays of one round: each begins with the simple ones."""

SHRINK_WITHIN: Final = 30
"""Seconds that are spent on making a sequence shorter that fails."""

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a file system, in which a folder of our own is made
"""A file system in memory."""


def run(order: Order) -> Tally:
    """Play until the steps are done; the first sequence that fails is told, made as short as can be, and ends it."""
    plants.plant(order.plant)
    tally = Tally(order.kind)
    with place(Path(order.folder)) as folder:
        seen = play(folder, order.seed, order.share(STEPS), tally)
    tally.faults = seen["refused"] + seen["losses"]
    for what, told in EVENTS.items():
        tally.count(told, seen[what])
    return tally


@contextmanager
def place(otherwise: Path) -> Iterator[Path]:
    """A folder for the stores: nothing here loses its power, so it is in memory if that can be."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else otherwise, prefix="taskrunner-model-") as name:
        yield Path(name)


EVENTS: Final = {
    "plays": "plays",
    "steps": "steps",
    "stale": "writes of stale attempts that were refused",
    "losses": "losses",
    "quarantines": "quarantines",
    "suspects": "suspects tried",
    "retries": "retries by hand",
    "removed": "rows removed by retention",
    "groups": "transactions of several calls",
}
"""What is counted, and how it is called."""


def play(
    folder: Path, seed: int, steps: int, tally: Tally, *, engine: str = "sqlite", shrink: bool = True
) -> Counter[str]:
    """Play rounds until there were so many steps; what happened, by name. With `shrink` what fails is made short."""
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import seed as seeded
    from hypothesis.internal.conjecture import engine as internals
    from hypothesis.stateful import run_state_machine_as_test

    from taskrunner.chaos.model.machine import machine

    assert hasattr(internals, "MAX_SHRINKING_SECONDS")
    internals.MAX_SHRINKING_SECONDS = SHRINK_WITHIN
    seen: Counter[str] = Counter()
    how = settings(
        max_examples=ROUND,
        stateful_step_count=STEPS_OF_A_PLAY,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )
    number = 0
    while seen["steps"] < steps:
        life: type[TaskLife] = machine(folder, engine, seen)
        try:
            run_state_machine_as_test(seeded(seed * 1_000 + number)(life), settings=how)
        except Exception as error:  # noqa: BLE001 - whatever a play raises is what was found
            tally.broken("wrong", _told(error, seed))
            break
        number += 1
    return seen


def _told(error: BaseException, seed: int) -> str:
    """The failure, with the sequence that hypothesis has found for it."""
    where = [line for line in traceback.format_exception_only(error) if line.strip()]
    return f"seed {seed}: {''.join(where).strip()}"
