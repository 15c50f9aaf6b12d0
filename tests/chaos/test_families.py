"""Supervisors with children that die: the harness sees into them, and a container's restart is no riddle.

`taskrunner chaos --kind kills` kills children, their groups, supervisors, and both at once.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from taskrunner import TaskRunner
from taskrunner.chaos.kills.gates import plain_waiting
from taskrunner.chaos.kills.harness import Plan
from taskrunner.chaos.kills.world import World
from tests.chaos.scene import line, supervisor
from tests.chaos.test_kills import run
from tests.chaos.test_takeover import CONTAINER


@pytest.mark.timeout(60)
def test_a_planted_bug_is_found_in_children(tmp_path: Path) -> None:
    """With the memo taken away, which makes a recorded step run again, the verdict says so."""
    [verdict] = run(tmp_path, Plan(rounds=8, processes=1, plant="memo", drain=False))
    assert "step run again" in verdict.kinds


@pytest.mark.skipif(shutil.which("unshare") is None, reason="this machine has no unshare")
@pytest.mark.timeout(40)
async def test_the_same_pids_after_a_restart_of_the_container(world: World, client: TaskRunner) -> None:
    """B08: a supervisor that is process 1 each time, its child with the same pid, killed twice: the task goes on."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let us unshare a pid namespace")
    handle = await plain_waiting.enqueue("gate")
    options = ("--lease", "600", "--processes", "1")
    for attempt in (1, 2):
        contained = await supervisor(world, *options, command=CONTAINER)
        await line(world, "gate", task=handle.id, attempt=attempt)
        world.strike(contained)
    world.open_gate("gate")
    await supervisor(world, *options, command=CONTAINER)
    await handle.result(timeout=10)
    world.tail.read()
    pids = [found.pid for found in world.tail.lines if (found.kind, found.task) == ("enter", handle.id)]
    assert len(pids) == 3
    assert pids[0] == pids[1]  # the third is that of a child of its own: by then the task is a suspect
    steps = [found.attempt for found in world.tail.lines if (found.kind, found.step) == ("effect", "first")]
    assert steps == [1]
    assert [attempt.outcome for attempt in (await handle.info()).attempts] == ["lost", "lost", "completed"]
