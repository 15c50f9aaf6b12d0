"""`taskrunner pause` and `resume`: nothing is taken from a queue for a while, and everybody can see why."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.integration.commands import Folder, here, json_here, sql, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def test_a_queue_is_paused_and_resumed(folder: Folder) -> None:
    """A running supervisor takes nothing from a paused queue, goes on with the others, and takes it up again."""
    waiting = here(folder, "enqueue", "greet", "name=x", "--queue", "mail").stdout.strip()
    done = here(folder, "pause", "mail")
    assert (done.returncode, done.stdout, done.stderr) == (0, "mail: paused\n", "")
    with folder.started("run", "app:runner") as supervisor:
        other = here(folder, "enqueue", "greet", "name=x").stdout.strip()
        assert here(folder, "tail", other, "--timeout", "10").returncode == 0
        assert json_here(folder, "show", waiting)["task"]["status"] == "pending"
        assert "paused" in json_here(folder, "show", waiting)["why"]
        numbers = json_here(folder, "stats")
        [queue], [owner] = numbers["queues"], numbers["supervisors"]
        assert all(owner[name].endswith("Z") for name in ("started_at", "beat_at")), "a time without its zone"
        assert (queue["name"], bool(queue["paused_at"])) == ("mail", True)
        assert re.search(r"mail  due 1, running 0, paused since [0-9-]+ [0-9:]+\n", here(folder, "stats").stdout)
        assert here(folder, "resume", "mail").stdout == "mail: resumed\n"
        assert here(folder, "tail", waiting, "--timeout", "10").returncode == 0
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(10)
    wait_until(lambda: "paused" not in here(folder, "stats").stdout)


def test_a_mistyped_queue_is_told_of(folder: Folder) -> None:
    """Who pauses a queue that nothing has is told so: it may be a slip. It holds, and leaves nothing behind."""
    here(folder, "enqueue", "greet", "name=x", "--queue", "mail")
    done = here(folder, "pause", "mial")
    told = "taskrunner: no task and no task type has the queue 'mial' so far; it is paused all the same\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "mial: paused\n", told)
    assert here(folder, "pause", "mial").stderr == ""
    waiting = here(folder, "enqueue", "greet", "name=x", "--queue", "mial").stdout.strip()
    assert "paused" in json_here(folder, "show", waiting)["why"]
    here(folder, "resume", "mial")
    assert sql(folder.db, "SELECT count(*) FROM queues") == [[0]]


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_what_is_no_queue_is_refused(folder: Folder, verb: str) -> None:
    """A name that no queue can have is one sentence, a store that is not there another, and none is made."""
    assert here(folder, verb, "mail").returncode == 3
    assert not folder.db.exists()
    here(folder, "enqueue", "greet", "name=x")
    for name in ("", "a\tb", "x" * 300):
        done = here(folder, verb, name)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert here(folder, verb).returncode == 2
