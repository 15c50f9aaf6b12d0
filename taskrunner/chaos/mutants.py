"""Planted bugs: is each found by the kind of faults that is there for it? And nothing, where none was planted?"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from taskrunner.chaos.campaign import one
from taskrunner.chaos.kinds import KINDS
from taskrunner.chaos.plants import PLANTS
from taskrunner.chaos.report import Order, Tally

WITHIN: Final = 60.0
"""Seconds in which a bug has to be found."""

CONTROL: Final = 300.0
"""Seconds in which the same has to come to its end where nothing was planted."""

PARTS: Final = {"kills": 0.012, "zombies": 0.025, "power": 0.01, "errors": 0.02, "model": 0.08, "simulation": 0.02}
"""How much of a whole run of a kind has to do for a bug."""


def run(order: Order) -> Tally:
    """Plant so many bugs, one after another, and beside them nothing in the kinds that are to find them."""
    tally = Tally(order.kind)
    chance = random.Random(order.seed)
    names = chance.sample(sorted(PLANTS), order.share(len(PLANTS)))
    names.sort(key=list(PLANTS).index)
    kinds = sorted({PLANTS[name].kind for name in names})
    for kind in chance.sample(kinds, order.share(len(kinds))):
        _control(tally, order, kind)
    for name in names:
        _hunt(tally, order, name)
    return tally


def _control(tally: Tally, order: Order, kind: str) -> None:
    found = _planted(order, kind, "none", CONTROL)
    if found.problems:
        tally.broken("wrong", f"{kind} has found a bug where none was planted: {found.problems[0].text}")
    else:
        tally.count("controls that found nothing")
        tally.notes.append(f"no bug: {kind} found nothing in {found.seconds:.1f} s")


def _hunt(tally: Tally, order: Order, name: str) -> None:
    plant = PLANTS[name]
    found = _planted(order, plant.kind, name, WITHIN)
    tally.faults += 1
    if found.has_died or not found.problems:
        why = f": {found.problems[0].text}" if found.problems else ""
        tally.broken("wrong", f"{name} ({plant.what}) was not found by {plant.kind} in {found.seconds:.0f} s{why}")
        return
    tally.count("bugs found")
    problem = found.problems[0]
    tally.notes.append(f"{plant.what}: found by {plant.kind} in {found.seconds:.1f} s as {problem.breach}")


def _planted(order: Order, kind: str, name: str, within: float) -> Tally:
    folder = Path(order.folder) / f"{kind}-{name.replace(' ', '-')}"
    Path(order.folder).mkdir(exist_ok=True)
    hunt = Order(kind, KINDS[kind].module, order.seed, PARTS[kind], str(folder), plant=name)
    return one(hunt, within)
