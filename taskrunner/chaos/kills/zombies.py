"""Zombies: supervisors stopped until another one has taken their tasks, which then go on as if nothing had been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskrunner.chaos.kills.harness import Plan
from taskrunner.chaos.kills.rounds import tally

if TYPE_CHECKING:
    from taskrunner.chaos.report import Order, Tally

ZOMBIES: Final = 640
"""Pauses of a whole run: one in five hits a supervisor within a transaction, whose store nobody can take over."""

LANES: Final = 8
"""Stores that are worked on at once: a lane mostly waits for a lease to run out."""

ALSO: Final = {"zombies": "zombies", "zombies' writes that were refused": "writes of zombies that were refused"}


def run(order: Order) -> Tally:
    """Stop so many. They hear late that they were taken for dead, as on a busy machine: until then they write on."""
    pauses = order.share(ZOMBIES)
    lanes = min(LANES, pauses)
    shares = [pauses // lanes + (number < pauses % lanes) for number in range(lanes)]
    plan = {"moments": {"pause": 1.0}, "supervisors": 2, "pace": 0.2, "lease": 2.0, "plant": "deaf"}
    return tally(order, [Plan(rounds=share, **plan) for share in shares], ALSO)  # type: ignore[arg-type]
