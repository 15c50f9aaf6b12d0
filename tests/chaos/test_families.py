"""Kill children, their groups, supervisors, and both at once: as with one process, nothing is lost or done again.

TASKRUNNER_TEST_SEED repeats the plan of a run; `python -m tests.chaos --children` runs it for longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import harness
from tests.chaos.harness import Plan
from tests.chaos.test_kills import run, total

KILLS = 200


@pytest.mark.timeout(240)
def test_two_hundred_kills_of_children_and_supervisors(tmp_path: Path) -> None:
    """A1: 0 jobs lost, 0 recorded steps run again, 0 completions twice, 0 jobs stuck, whoever dies."""
    verdicts = run(tmp_path, *harness.families(KILLS))
    assert [verdict.problems for verdict in verdicts] == [[], []]
    figures = total(verdicts)
    assert figures["kills"] >= 0.9 * KILLS
    assert figures["kills that hit a running body"] >= 0.6 * figures["kills"]
    assert figures["steps replayed"] >= KILLS / 2
    assert min(figures[moment] for moment in harness.FAMILY) >= KILLS / 100


@pytest.mark.timeout(60)
def test_a_planted_bug_is_found_in_children(tmp_path: Path) -> None:
    """With the memo taken away, which makes a recorded step run again, the verdict says so."""
    [verdict] = run(tmp_path, Plan(rounds=8, processes=1, plant="memo", drain=False))
    assert "step run again" in verdict.kinds
