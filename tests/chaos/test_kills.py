"""Kill the supervisor at any moment: nothing that was acknowledged is lost, and nothing that was recorded runs again.

TASKRUNNER_TEST_SEED repeats the plan of a run; `taskrunner chaos --kind kills` runs it for longer.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taskrunner.chaos.kills import harness
from taskrunner.chaos.kills.harness import Plan
from taskrunner.chaos.kills.verdict import Verdict

SEED = int(os.environ.get("TASKRUNNER_TEST_SEED", "1"))
KILLS = 300
PAUSES = 8


def run(tmp_path: Path, *plans: Plan) -> list[Verdict]:
    """Run the lanes, and tell what happened in them."""
    verdicts = harness.run(plans, tmp_path, SEED)
    for plan, verdict in zip(plans, verdicts, strict=True):
        print(f"TASKRUNNER_TEST_SEED={SEED}, {plan}\n{verdict}")  # noqa: T201 - for who looks at a failure
    return verdicts


def total(verdicts: list[Verdict]) -> Counter[str]:
    """The figures of all lanes together."""
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update({name: value for name, value in verdict.figures.items() if isinstance(value, int)})
        counts.update(verdict.figures["kills by moment"])
    return counts


@pytest.mark.timeout(180)
def test_three_hundred_kills(tmp_path: Path) -> None:
    """B07: 0 jobs lost, 0 recorded steps run again, 0 completions twice, 0 jobs stuck, whenever the supervisor dies.

    One supervisor alone, two on one file, and, beside the kills, two of which one is stopped for longer than its lease.
    """
    verdicts = run(tmp_path, *harness.plans(KILLS, pauses=PAUSES))
    assert [verdict.problems for verdict in verdicts] == [[], [], []]
    figures = total(verdicts)
    assert figures["kills"] >= KILLS
    assert figures["kills that hit a running body"] >= 0.7 * figures["kills"]
    assert figures["steps replayed"] >= KILLS
    assert figures["steps run again before they were recorded"] >= KILLS / 10
    assert figures["steps whose process died between the record and the acknowledgement"] >= KILLS / 20
    assert min(figures[moment] for moment in harness.MIXED) >= KILLS / 50
    assert figures["zombies"] >= PAUSES / 2
    assert figures["zombies' writes that were refused"] >= 1


@pytest.mark.parametrize("moment", ["start", "claim", "stop"])
@pytest.mark.timeout(60)
def test_killed_at_a_certain_moment(tmp_path: Path, moment: str) -> None:
    """A supervisor that is killed while it starts, right after a claim, or while it stops leaves nothing behind."""
    plan: dict[str, Any] = {"rounds": 24, "moments": {moment: 2.0, "effect": 1.0}}
    verdicts = run(tmp_path, Plan(**plan), Plan(**plan, supervisors=2))
    assert [verdict.problems for verdict in verdicts] == [[], []]
    assert total(verdicts)[moment] >= 24


FOUND = {
    "memo": (Plan(rounds=8, plant="memo", drain=False), "step run again"),
    "early": (Plan(rounds=20, plant="early", drain=False), "lost step"),
    "thief": (Plan(rounds=4, supervisors=2, plant="thief", drain=False, spread=0.5), "overlap"),
    "fence": (
        Plan(rounds=4, moments={"pause": 1.0}, supervisors=2, pace=0.2, lease=1.0, plant="deaf,fence", drain=False),
        "lost step",
    ),
}


@pytest.mark.parametrize("plant", FOUND)
@pytest.mark.timeout(60)
def test_a_planted_bug_is_found(tmp_path: Path, plant: str) -> None:
    """With the memo, the fence, the wait for the commit or the proof of death taken away, the verdict says so."""
    plan, kind = FOUND[plant]
    [verdict] = run(tmp_path, plan)
    assert kind in verdict.kinds
