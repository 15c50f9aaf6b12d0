"""The kind `poison`: a few pills in a supervisor without children, and in one with them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from taskrunner.chaos.poison.pills import PILLS
from taskrunner.chaos.poison.rounds import Lane, chosen
from taskrunner.chaos.report import Tally


@pytest.mark.timeout(60)
@pytest.mark.parametrize("harms", [["kill", "SystemExit", "block", "stubborn"], ["exit", "a large result", "fork"]])
def test_pills_harm_nobody_but_themselves(tmp_path: Path, harms: list[str]) -> None:
    """Each ends as it has to, every innocent task completes, no step is run again, and no process is left."""
    lane = Lane(tmp_path / "lane", "2", harms, children="fork" in harms)
    lane.run()
    tally = Tally("poison")
    lane.add_to(tally)
    assert not tally.problems
    assert tally.reached["pills"] == len(harms)
    assert tally.reached["deaths"] >= 3


def test_every_pill_has_its_turn() -> None:
    """A lane takes each kind of harm about as often as any other, and never too many of which a process dies."""
    taken = {how for seed in range(50) for how in chosen(random.Random(seed), 17, children=True)}
    assert taken == set(PILLS)
    for seed in range(50):
        names = chosen(random.Random(seed), 17, children=False)
        assert len(names) == 17
        assert not any(PILLS[how].children_only for how in names)
