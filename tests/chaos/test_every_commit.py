"""Die at every commit of a run in turn: within the transaction, and after it before anybody was told."""

from __future__ import annotations

import pytest

from taskrunner.chaos.kills import fate
from taskrunner.chaos.kills.verdict import judge
from taskrunner.chaos.kills.world import World

MOST = 60
"""Commits of a run with two jobs, and some to spare."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("moment", ["within", "after"])
def test_killed_at_each_commit(world: World, moment: str) -> None:
    """Whatever a supervisor had just committed, or not, the next one goes on from there."""
    survived = False
    number = 0
    while not survived and number < MOST:
        number += 1
        assert world.client([f"{moment}{number}", f"{moment}{number} plain"], 0.001).wait(10)
        since = len(world.tail.lines)
        first = world.supervisor("--until-idle", "--sweep", "0.2", env={fate.VARIABLE: f"{moment}:{number}"})
        assert first.wait(10)
        world.tail.read()
        survived = all(line.kind != "kill" for line in world.tail.lines[since:])
        assert world.supervisor("--until-idle", "--sweep", "0.2").wait(10)
    verdict = judge(world, fate=[])
    print(verdict)  # noqa: T201 - for who looks at a failure
    assert verdict.problems == []
    assert survived
    assert number > 16
