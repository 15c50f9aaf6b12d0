"""Kill the supervisor where a random kill rarely hits; and that the harness finds bugs when there are some.

TASKRUNNER_TEST_SEED repeats the plan of a run; `taskrunner chaos --kind kills` kills at any moment.
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
