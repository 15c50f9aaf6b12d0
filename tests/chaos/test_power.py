"""The power is cut at every write (`taskrunner chaos --kind power`): that it finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrunner.chaos import campaign
from taskrunner.chaos.kinds import KINDS
from taskrunner.chaos.report import Order


@pytest.mark.timeout(60)
def test_commits_that_are_not_synced_are_found(tmp_path: Path) -> None:
    """A store that acknowledges what is not on the disk is found, and told of with what finds the image again."""
    kind = KINDS["power"]
    tally = campaign.one(Order(kind.name, kind.module, 5, 0.0005, str(tmp_path / "power"), "normal"), 50)
    lost = [problem.text for problem in tally.problems if problem.breach == "lost"]
    assert len(lost) > 20
    assert lost[0].startswith("images, round 50000 of 12 verbs, cut ")
    assert {problem.breach for problem in tally.problems} == {"lost"}
