"""Kills: supervisors alone and in pairs, in one process and with children, warm and fresh, struck at any moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskrunner.chaos.kills import harness
from taskrunner.chaos.kills.harness import FAMILY, MIXED, Plan
from taskrunner.chaos.report import Tally

if TYPE_CHECKING:
    from taskrunner.chaos.kills.verdict import Verdict
    from taskrunner.chaos.report import Breach, Order

KILLS: Final = 3_100
"""Of a whole run, and some to spare: a client is no victim, and one that strikes twice counts once or twice."""

HUNT: Final = 10.0
"""Seconds of patience with a supervisor that has a planted bug."""

BREACHES: Final[dict[str, Breach]] = {
    "lost enqueue": "lost",
    "lost step": "lost",
    "step run again": "doubled",
    "completed twice": "doubled",
    "wrong message": "doubled",
    "overlap": "doubled",
    "damaged": "corrupt",
    "invariant": "corrupt",
    "stuck": "stuck",
    "not completed": "stuck",
}
"""What the kinds of a verdict's problems break; all others are wrong."""


ALSO: Final = {
    "steps replayed": "steps replayed",
    "steps run again before they were recorded": "steps run again, not yet recorded",
    "steps whose process died between the record and the acknowledgement": "deaths between record and answer",
    "jobs whose acknowledgement was lost": "clients' deaths between enqueue and answer",
}
"""What a kill may meet, by the figures of a verdict: each has to have been met."""


def run(order: Order) -> Tally:
    """Strike so often; the lanes work beside each other."""
    return tally(order, plans(order.share(KILLS)), ALSO)


def plans(kills: int) -> list[Plan]:
    """The lanes of a run: one supervisor alone, two on one file, those of fresh processes, and those with children."""
    fresh, families = kills // 6, kills // 6
    warm = kills - fresh - families
    return [
        Plan(rounds=warm - warm // 2, moments=MIXED),
        Plan(rounds=warm // 2, moments=MIXED, supervisors=2),
        Plan(rounds=fresh + 1, moments=MIXED, fresh_every=1),
        Plan(rounds=families // 2 + 1, moments=FAMILY, processes=2),
        Plan(rounds=families // 2 + 1, moments=FAMILY, processes=2, supervisors=2),
    ]


def tally(order: Order, lanes: list[Plan], also: dict[str, str]) -> Tally:
    """Run the lanes, and add up their verdicts; `also`: figures of theirs that are told, by the name they get."""
    if order.plant:
        lanes = [
            replace(plan, plant=",".join(filter(None, (plan.plant, order.plant))), patience=HUNT) for plan in lanes
        ]
    verdicts = harness.run(lanes, Path(order.folder), order.seed)
    result = Tally(order.kind)
    for plan, verdict in zip(lanes, verdicts, strict=True):
        _add(result, plan, verdict, also)
    return result


def _add(result: Tally, plan: Plan, verdict: Verdict, also: dict[str, str]) -> None:
    figures = verdict.figures
    moments = figures["kills by moment"]
    result.faults += figures["kills"] + figures["clients killed"] + figures["zombies"]
    result.count("kills", figures["kills"])
    if plan.fresh_every == 1:
        result.count("kills of fresh processes", figures["kills"])
    if plan.processes:
        result.count("kills of children and their groups", sum(moments.get(it, 0) for it in ("child", "group", "both")))
    result.count("kills that hit a running body", figures["kills that hit a running body"])
    result.count("clients killed", figures["clients killed"])
    for name, told in also.items():
        result.count(told, figures[name])
    result.ended("ok", figures["steps recorded"])
    result.ended("unknown", figures["jobs whose acknowledgement was lost"])
    for problem in verdict.problems:
        result.broken(BREACHES.get(problem.partition(":")[0], "wrong"), problem)
