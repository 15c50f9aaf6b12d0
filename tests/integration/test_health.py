"""`taskrunner health`: an exit code for those who restart what is ill."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from taskrunner.storage.health import Health
from tests.integration.commands import Folder, wait_until
from tests.stores import StillClock, claim, end, new_task, open_store, register


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def test_health_from_the_first_start_to_the_last_kill(folder: Folder) -> None:
    """3 where there is no store, 1 without a supervisor, 0 with one, and 1 at once when it was killed."""
    assert folder.run("health").returncode == 3
    folder.ok("enqueue", "greet", "name=x")
    before = folder.db.read_bytes()
    done = folder.run("health")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"taskrunner: no supervisor works on {folder.db}: start one with `taskrunner run APP`\n"
    assert folder.db.read_bytes() == before, "it changes nothing"
    with folder.started("run", "app:runner") as supervisor:
        wait_until(lambda: folder.run("health").returncode == 0)
        assert folder.ok("health") == f"healthy: supervisors on {folder.db}: 1\n"
        assert folder.json("health") == {
            "healthy": True,
            "says": f"healthy: supervisors on {folder.db}: 1",
            "supervisors": 1,
            "late_queue": None,
            "due_since": None,
            "max_wait": 3600.0,
        }
        supervisor.kill()
        supervisor.wait()
        assert folder.run("health").returncode == 1


def test_health_of_a_queue_that_nobody_takes_from(folder: Folder) -> None:
    """A living supervisor is not enough when a task that is due waits for longer than --max-wait, in any queue."""
    folder.ok("enqueue", "greet", "name=x", "--queue", "reports")
    folder.ok("enqueue", "greet", "name=x", "--queue", "later", "--delay", "1h")
    with folder.started("run", "app:runner", "--queue", "other"):
        wait_until(lambda: folder.run("health").returncode == 0)
        done = folder.run("health", "--max-wait", "10ms")
        assert done.returncode == 1
        assert done.stderr.startswith("taskrunner: queue 'reports': a task has been due since ")
        assert done.stderr.endswith(", longer than 0.01 s, and no supervisor has taken it\n")
        late = folder.run("health", "--max-wait", "10ms", "--json")
        assert (late.returncode, '"late_queue": "reports"' in late.stdout) == (1, True)
        assert folder.run("health", "--max-wait", "0").returncode == 0


def test_a_wrong_max_wait(folder: Folder) -> None:
    """One sentence names the value and the rule."""
    done = folder.run("health", "--max-wait", "soon")
    assert done.returncode == 2
    assert done.stderr.startswith("taskrunner: --max-wait='soon': not a duration")


async def test_since_when_tasks_have_been_due(db: Path) -> None:
    """It counts from its time, or from when it was put back, of those that are first in line in each priority.

    What stands in a paused queue is to wait.
    """
    clock = StillClock()
    start = clock.now()
    async with open_store(db, clock=clock) as store:
        health = Health(store.engine)

        async def due() -> dict[str, int]:
            found = await health.due_since(clock.now())
            return {queue: round((since - start).total_seconds()) for queue, since in found.items()}

        assert await due() == {}
        await store.tasks.enqueue(new_task(priority=9))
        await store.tasks.enqueue(new_task(queue="timed", run_at=start + timedelta(seconds=40)))
        clock.advance(10)
        await store.tasks.enqueue(new_task(priority=0))
        await store.tasks.enqueue(new_task(queue="other"))
        assert await due() == {"default": 0, "other": 10}
        await register(store, "me", now=clock.now())
        clock.advance(10)
        first, second = await claim(store, slots=2)
        assert (first.priority, second.priority) == (0, 9)
        assert await due() == {"other": 10}
        await end(store, first, "released")
        assert await due() == {"default": 20, "other": 10}
        clock.advance(30)
        assert await due() == {"default": 20, "other": 10, "timed": 40}
        await store.queues.pause("other")
        assert await due() == {"default": 20, "timed": 40}
