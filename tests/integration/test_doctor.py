"""`taskrunner doctor`: what it finds in a store, and what it calls wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.integration.commands import Folder, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def test_doctor_on_a_sound_store(folder: Folder) -> None:
    """`doctor` tells versions, store, counts, and each setting with its origin, and ends with 0 when all is well."""
    folder.ok("enqueue", "greet", "name=x")
    folder.ok("run", "app:runner", "--until-idle")
    found = folder.json("doctor")
    assert found["tasks"] == {"completed": 1}
    assert found["troubles"] == []
    assert found["settings"]["db"] == {"value": "agent.db", "origin": "env"}
    assert found["settings"]["lease"] == {"value": 30.0, "origin": "default"}
    assert found["store"]["schema"] >= 1


def test_doctor_finds_a_dead_supervisor(folder: Folder) -> None:
    """After a kill -9 `doctor` says who died with which tasks, and ends with 1; after another run all is well."""
    folder.ok("enqueue", "wait_for", "file=gate")
    with folder.started("run", "app:runner") as supervisor:
        wait_until(folder.has_begun)
        alive, shown = folder.json("doctor"), folder.ok("doctor")
        supervisor.kill()
        supervisor.wait()
    assert [(each["alive"], each["running"]) for each in alive["supervisors"]] == [(True, 1)]
    assert alive["store"]["wal_bytes"] > 0, "what was written last is not counted"
    assert re.search(r", [0-9,]+ bytes and [0-9,]+ in its WAL, schema", shown)
    done = folder.run("doctor")
    assert done.returncode == 1
    assert f"process {supervisor.pid}" in done.stderr
    assert "is dead" in done.stderr
    (folder.path / "gate").touch()
    folder.ok("run", "app:runner", "--until-idle")
    assert folder.run("doctor").returncode == 0
    assert folder.json("list")[0]["status"] == "completed"
    assert folder.json("list")[0]["losses"] == 0


def test_doctor_finds_tasks_that_nobody_works_on(folder: Folder) -> None:
    """Due tasks without a supervisor, and tasks of a type that none knows, are troubles, a sentence each."""
    folder.ok("enqueue", "unheard_of")
    folder.ok("run", "app:runner", "--until-idle")
    folder.ok("enqueue", "greet", "name=x")
    done = folder.run("doctor")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "taskrunner: 1 task is due and no supervisor works: start one with `taskrunner run APP`",
        "taskrunner: 1 task waits for a supervisor that knows the type 'unheard_of'",
    ]
    assert "pending (waiting: worker:unheard_of)" in folder.ok("list")


def test_doctor_finds_damage(folder: Folder) -> None:
    """A file with a spoilt page is damaged, whatever can still be read of it."""
    for _ in range(3):
        folder.ok("enqueue", "greet", f"name={'x' * 50_000}")
    with folder.db.open("r+b") as file:
        file.seek(-30_000, os.SEEK_END)
        file.write(os.urandom(8_192))
    done = folder.run("doctor")
    assert done.returncode in {1, 3}
    assert "corrupt" in done.stderr or "damaged" in done.stderr
