"""`taskrunner show` says why a task is as it is: the true reason, whatever else would be one (B06)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from taskrunner import Fail, TaskContext, TaskRunner
from tests.integration.commands import Folder, here, json_here, sql, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def why(folder: Folder, task_id: str) -> str:
    """The reason that is shown, which is the same in JSON."""
    reason: str = json_here(folder, "show", task_id)["why"]
    assert reason == "" or f"why          {reason}"[:3] in here(folder, "show", task_id).stdout
    return reason


def enqueued(folder: Folder, *args: str) -> str:
    """The id of a new task."""
    return here(folder, "enqueue", *args).stdout.strip()


def test_why_a_task_waits(folder: Folder) -> None:
    """For its time, for a supervisor, for one that knows it, for those before it."""
    late = enqueued(folder, "greet", "name=x", "--run-at", "2999-01-01T00:00Z")
    assert why(folder, late) == "it is not due before 2999-01-01 00:00:00"
    running, strange = enqueued(folder, "wait_for", "file=gate"), enqueued(folder, "unheard_of")
    first, second, third = (enqueued(folder, "greet", f"name={name}") for name in "abc")
    assert why(folder, first) == "no supervisor works: start one with `taskrunner run APP`"
    with folder.started("run", "app:runner", "--concurrency", "1") as supervisor:
        wait_until(folder.has_begun)
        assert why(folder, running).startswith(f"process {supervisor.pid} on ")
        wait_until(lambda: "knows the type" not in why(folder, strange))
        assert why(folder, third) == "3 tasks come before it in the queue 'default'"
        assert why(folder, second) == "2 tasks come before it in the queue 'default'"
        assert why(folder, strange) == (
            "it is first in line: every slot is taken, or no supervisor takes from the queue 'default'"
        )
        supervisor.kill()
        supervisor.wait()
    assert "is dead, for " in why(folder, running)
    (folder.path / "gate").touch()
    folder.ok("run", "app:runner", "--until-idle")
    assert why(folder, running) == why(folder, third) == ""
    assert why(folder, strange) == "it waits for a supervisor that knows the type 'unheard_of'"


def test_why_a_task_has_failed(folder: Folder) -> None:
    """Its retries were used up, it had none, its error is not retried, it lost its process, it left its steps."""
    assert {name: why(folder, task_id) for name, task_id in anyio.run(failures, folder).items()} == {
        "tries": "it raised, and its 2 retries are used up",
        "no_tries": "it raised, and has no retries",
        "gives_up": "its error is not one that is retried",
        "wanders": "its code no longer takes the steps that are recorded: mend it, then retry the task",
    }
    lost = enqueued(folder, "greet", "name=x")
    sql(
        folder.db,
        f"UPDATE tasks SET status = 'failed', completed_at = created_at, losses = 5, error_message = 'quarantined: …',"  # noqa: S608 - an id of ours
        f" error_type = 'taskrunner.WorkerLost' WHERE id = '{lost}'",
    )
    assert why(folder, lost) == "it lost its process 5 times in a row (max_losses 5)"
    cancelled = enqueued(folder, "greet", "name=x")
    here(folder, "cancel", cancelled)
    assert why(folder, cancelled).startswith("it was cancelled, as asked for at 20")


async def failures(folder: Folder) -> dict[str, str]:
    """The ids of tasks that have failed, by the names of their types."""
    runner = TaskRunner(folder.db)
    names = iter(["one", "other"])

    @runner.task(max_retries=2, wait=0.001)
    async def tries() -> None:
        raise ConnectionError

    @runner.task(max_retries=0)
    async def no_tries() -> None:
        raise ConnectionError

    @runner.task(max_retries=2)
    async def gives_up() -> None:
        raise Fail("enough")

    @runner.task(max_retries=1, wait=0.001)
    async def wanders(ctx: TaskContext) -> None:
        await ctx.step(next(names), str, 1)
        raise ConnectionError

    async with runner.working():
        handles = [await task.enqueue() for task in (tries, no_tries, gives_up, wanders)]
        for handle in handles:
            while await handle.status() != "failed":  # noqa: ASYNC110 - it looks at a file
                await anyio.sleep(0.01)
        return {(await handle.task()).type: handle.id for handle in handles}
