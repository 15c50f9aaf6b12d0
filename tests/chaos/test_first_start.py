"""The first start of all: whoever comes first makes the store, and a kill meanwhile leaves no half of one."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from taskrunner.chaos.kills.look import look
from taskrunner.chaos.kills.verdict import damage
from taskrunner.chaos.kills.world import World

SEED = int(os.environ.get("TASKRUNNER_TEST_SEED", "1"))
ROUNDS = 12


@pytest.mark.timeout(60)
@pytest.mark.parametrize("at_once", [1, 6])
def test_killed_while_the_store_is_made(world: World, tmp_path: Path, at_once: int) -> None:
    """Whenever the first supervisors of a store are killed, the next program finds a store or makes one, and works."""
    chance = random.Random(SEED)
    found: Counter[tuple[str, ...]] = Counter()
    for number in range(ROUNDS):
        world.db = tmp_path / f"{number}" / "agent.db"
        world.db.parent.mkdir()
        first = [world.supervisor() for _ in range(at_once)]
        time.sleep(chance.random() * 0.08)
        for process in first:
            world.strike(process)
        found[tuple(sorted(path.name for path in world.db.parent.iterdir()))] += 1
        assert world.client(["a", "b"], 0.0).wait(10)
        assert world.supervisor("--until-idle", fresh=number % 6 == 5).wait(10)
        assert sorted(path.name for path in world.db.parent.iterdir()) == ["agent.db"]
        assert look(world.db, "SELECT status FROM tasks") == [[["completed"], ["completed"]]]
        assert list(damage(world.db)) == []
    print(f"TASKRUNNER_TEST_SEED={SEED}: {dict(found)}")  # noqa: T201 - for who looks at a failure
    assert len(found) >= 2
    assert world.complaints() == []


def test_many_start_at_once(world: World) -> None:
    """Twelve supervisors that come at once to a file that is not there all get to work, and all stop again."""
    started = [world.supervisor() for _ in range(12)]
    for process in started:
        assert world.tail.wait(lambda line, pid=process.pid: (line.kind, line.pid) == ("supervising", pid))  # type: ignore[misc]
    for process in started:
        process.send(signal.SIGTERM)
    assert all(process.wait(10) for process in started)
    assert world.complaints() == []
    assert sorted(path.name for path in world.folder.iterdir() if path.name.startswith("agent")) == ["agent.db"]
