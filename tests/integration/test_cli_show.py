"""`taskrunner show` and `doctor` for people: why a task failed, who runs it, and values with their units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.commands import Folder, wait_until

STEPS = """
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner()


@runner.task
async def fetches(ctx: TaskContext) -> None:
    for number in range(2):
        await ctx.step("fetch", int, number)
        await ctx.options(key="k").step("fetch", int, number)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def test_a_failure_is_shown_with_its_traceback(folder: Folder) -> None:
    """`show` prints the traceback of the last failed attempt below its line, and nothing in it is obeyed."""
    task_id = folder.ok("enqueue", "broken", "--max-retries", "0", "text=no\x1b[31m").strip()
    folder.ok("run", "app:runner", "--until-idle")
    lines = folder.ok("show", task_id).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("  1  failed"))
    assert lines[first + 1].strip() == "Traceback (most recent call last):"
    assert any("app.py" in line and "in broken" in line for line in lines[first:])
    assert lines[-1].strip() == r"ValueError: no\x1b[31m"
    assert all(line.startswith("      ") for line in lines[first + 1 :])


def test_the_owner_of_a_running_task(folder: Folder) -> None:
    """`show` names the process and the host that run a task, and says so when that process is dead."""
    task_id = folder.ok("enqueue", "wait_for", "file=gate").strip()
    with folder.started("run", "app:runner") as supervisor:
        wait_until(folder.has_begun)
        alive = owner_in(folder.ok("show", task_id))
        supervisor.kill()
        supervisor.wait()
    assert re.match(rf"process {supervisor.pid} on \S+, alive", alive)
    assert re.match(rf"process {supervisor.pid} on \S+, dead: \w+", owner_in(folder.ok("show", task_id)))


def owner_in(text: str) -> str:
    """The owner that `show` names."""
    return next(line.removeprefix("owner").strip() for line in text.splitlines() if line.startswith("owner"))


def test_steps_are_called_as_errors_call_them(folder: Folder) -> None:
    """`show` writes `fetch`, `fetch#1` and `fetch[key]#1`, which is what errors write."""
    (folder.path / "steps.py").write_text(STEPS, encoding="utf-8")
    task_id = folder.ok("enqueue", "fetches").strip()
    folder.ok("run", "steps:runner", "--until-idle")
    shown = re.findall(r"^  (fetch\S*)  attempt", folder.ok("show", task_id), re.MULTILINE)
    assert shown == ["fetch", "fetch[k]", "fetch#1", "fetch[k]#1"]


def test_settings_have_units(folder: Folder) -> None:
    """`doctor` shows durations in seconds, sizes in bytes or more, and yes or no; --json has the bare values."""
    folder.ok("enqueue", "greet", "name=x")
    text = folder.run("doctor", env={"TASKRUNNER_SWEEP": "250ms", "TASKRUNNER_QUEUES": "a,b"}).stdout
    for name, value in {
        "lease": "30 s",
        "sweep": "0.25 s",
        "max_payload": "1 MiB",
        "allow_unsafe_mount": "no",
        "queues": "a, b",
        "concurrency": "10",
    }.items():
        assert re.search(rf"^  {name} +{value}  \(", text, re.MULTILINE), name
