"""A1: the demo, killed by itself and by others; its figures are derived here once more, by other code.

What is trusted is the effect log, which the steps write and fsync outside the database, and the rows that another
program reads from the file.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskrunner.workers.source import find_packages
from tests.integration.commands import Folder, sql, wait_until

pytestmark = pytest.mark.timeout(120)  # on two slow cores with other work beside it

PACKAGES = 8
SMALL = ("--packages", str(PACKAGES), "--no-tests")
PACED = (*SMALL, "--pace", "0.05")


@dataclass(frozen=True)
class Demo:
    """A demo with its store and its folder."""

    folder: Folder

    @property
    def db(self) -> Path:
        """Its store."""
        return self.folder.path / "demo.db"

    @property
    def out(self) -> Path:
        """Its folder."""
        return self.folder.path / "demo-report"

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return self.folder.run("demo", "--db", "demo.db", *args)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start it, in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "taskrunner", "demo", "--db", "demo.db", *args],
            cwd=self.folder.path,
            env=self.folder.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def lines(self) -> list[dict[str, Any]]:
        """The effect log. Only its last line may be torn."""
        path = self.out / "effects.log"
        found = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in found]

    def count(self, event: str) -> int:
        """How many lines of the log tell of this."""
        return sum(line["event"] == event for line in self.lines())


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    """A demo that nobody has run yet."""
    return Demo(Folder.make(tmp_path))


def figures_in(text: str) -> dict[str, str]:
    """The figures that the demo printed, by their names; of several kills the last one's."""
    pairs = re.findall(r"^  (\w.*?)(?:, \d+)?  +(\S.*)$", text, re.MULTILINE)
    return dict(pairs)


def assert_proved(demo: Demo, text: str, *, kills: int) -> None:
    """Derive every figure anew from the effect log and the rows, and compare it with what the demo printed."""
    lines = demo.lines()
    starts = Counter((line["task"], line["step"]) for line in lines if line["event"] == "start")
    ended = {(line["task"], line["step"], line["attempt"]) for line in lines if line["event"] == "end"}
    rows = sql(demo.db, "SELECT task_id, name || '[' || occurrence || ']', attempt FROM steps")
    for task, step, attempt in rows:
        again = [line for line in lines if (line["event"], line["task"], line["step"]) == ("start", task, step)]
        assert [line for line in again if line["attempt"] > attempt] == []
        assert (task, step, attempt) in ended
    seen: set[tuple[str, str]] = set()
    for line in lines:
        assert line["event"] != "start" or (line["task"], line["step"]) not in seen
        if line["event"] == "recorded":
            seen.add((line["task"], line["step"]))
    printed = figures_in(text)
    assert printed["steps run to their end"] == f"{len(starts):,}" == f"{len(rows):,}"
    assert printed["recorded steps run again"] == "0"
    assert printed["steps under way at a restart and run again"] == f"{sum(count > 1 for count in starts.values())}"
    assert printed["packages lost"] == "0"
    assert printed["notes in the session, one per package"] == f"{PACKAGES}"
    assert printed["packages measured"].startswith(f"{PACKAGES} ")
    assert demo.count("kill") == kills
    assert_reported(demo)


def assert_reported(demo: Demo) -> None:
    """The report names exactly the packages that are on this machine's disk, and each has left one note."""
    [[text]] = sql(demo.db, "SELECT input FROM tasks WHERE type = 'survey.plan'")
    [[output]] = sql(demo.db, "SELECT output FROM tasks WHERE type = 'survey.plan'")
    given = json.loads(text)
    on_disk = [each.name for each in find_packages(json.loads(output)["root"], tests=False, limit=given["limit"])]
    with (demo.out / "survey.csv").open(encoding="utf-8", newline="") as file:
        assert [row["package"] for row in csv.DictReader(file)] == on_disk
    notes = sql(demo.db, "SELECT content FROM messages")
    assert sorted(note.partition(":")[0] for [note] in notes) == on_disk
    assert "# Survey" in (demo.out / "survey.md").read_text(encoding="utf-8")


def kill_group(child: subprocess.Popen[str]) -> str:
    """SIGKILL the client and its supervisor at once, and return what the client had printed."""
    os.killpg(child.pid, signal.SIGKILL)
    text, _ = child.communicate()
    return text


# ── by itself ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_demo_kills_and_proves(demo: Demo) -> None:
    """Half-way it kills its supervisor, goes on, and proves that nothing was lost and nothing recorded ran again."""
    done = demo.run(*SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    assert_proved(demo, done.stdout, kills=1)
    before = [line["event"] for line in demo.lines()].index("kill")
    ended = {(line["task"], line["step"]) for line in demo.lines()[:before] if line["event"] == "end"}
    printed = figures_in(done.stdout)
    recorded = int(printed["steps recorded before the restart"])
    assert len(ended) - 4 <= recorded <= len(ended)  # a slot may have been between its end and its record
    assert 0 < float(printed["from restart to the next step"].removesuffix(" s")) < 10
    assert str(demo.out / "survey.md") in done.stdout


def test_a_finished_demo_says_the_same_again(demo: Demo) -> None:
    """The same command on a finished survey runs nothing, and derives the same figures from the log."""
    first = demo.run(*SMALL)
    lines = demo.lines()
    second = demo.run(*SMALL)
    assert (second.returncode, second.stderr) == (0, "")
    assert figures_in(second.stdout).items() >= figures_in(first.stdout).items()
    assert [line for line in demo.lines() if line["event"] != "recorded"] == [
        line for line in lines if line["event"] != "recorded"
    ]


def test_a_demo_without_a_kill(demo: Demo) -> None:
    """`--no-kill` surveys the same, and kills nobody."""
    done = demo.run(*SMALL, "--no-kill")
    assert (done.returncode, done.stderr) == (0, "")
    assert_proved(demo, done.stdout, kills=0)
    assert "steps recorded before the restart" not in figures_in(done.stdout)


def test_a_demo_that_was_too_short_to_be_killed(demo: Demo) -> None:
    """A demo that proved nothing says so, and ends with 1."""
    done = demo.run("--packages", "1", "--no-tests")
    assert done.returncode == 1
    assert "before its supervisor could be killed" in done.stderr


def test_a_fresh_folder(demo: Demo) -> None:
    """Without --db it makes a folder of its own, and names it."""
    for number in (1, 2):
        done = demo.folder.run("demo", "--no-kill", "--packages", "1", "--no-tests")
        assert done.returncode == 0
        assert f"taskrunner-demo-{number}/demo.db" in done.stdout
        assert (demo.folder.path / f"taskrunner-demo-{number}" / "survey.md").exists()


def test_a_store_that_cannot_be_opened(demo: Demo) -> None:
    """A store that cannot be opened ends with 3 and one sentence, and no folder is left behind."""
    demo.db.write_text("no store " * 1_000, encoding="utf-8")
    for db in ("demo.db", "nowhere/demo.db"):
        done = demo.folder.run("demo", "--db", db)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert sorted(path.name for path in demo.folder.path.iterdir()) == ["app.py", "demo.db"]


# ── by others ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_from_outside_at_a_random_moment(demo: Demo, seed: int) -> None:
    """Client and supervisor are killed together, twice; the same command goes on, and the figures hold."""
    chance = random.Random(seed)
    for round_number in (1, 2):
        child = demo.start("--no-kill", *PACED)
        moment = chance.uniform(0.1, 3.0)
        print(f"seed {seed}: kill {round_number} after {moment:.3f} s")  # noqa: T201 - a failure has to tell its moment
        time.sleep(moment)
        kill_group(child)
    done = demo.run("--no-kill", *PACED)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert_proved(demo, done.stdout, kills=0)


def test_the_supervisor_is_killed_by_somebody_else(demo: Demo) -> None:
    """A supervisor that dies under its client is replaced, and the client tells what that cost."""
    child = demo.start("--no-kill", *PACED)
    wait_until(lambda: demo.count("end") > 10)
    [spawn] = [line for line in demo.lines() if line["event"] == "spawn"]
    os.kill(spawn["pid"], signal.SIGKILL)
    text, _ = child.communicate()
    assert child.returncode == 0, text
    assert_proved(demo, text, kills=0)
    assert int(figures_in(text)["steps recorded before the restart"]) > 0


def test_the_client_alone_is_killed(demo: Demo) -> None:
    """A supervisor without its client works on to the end; another client beside it finds the same survey."""
    child = demo.start("--no-kill", *PACED)
    wait_until(lambda: demo.count("end") > 10)
    child.kill()
    child.communicate()
    done = demo.run("--no-kill", *PACED)
    assert done.returncode == 0, done.stderr
    assert_proved(demo, done.stdout, kills=0)
    pids = {line["pid"] for line in demo.lines() if line["event"] == "spawn"}
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_ctrl_c_says_how_to_go_on(demo: Demo) -> None:
    """Ctrl-C ends client and supervisor in peace, with 130 and the command that goes on."""
    child = demo.start(*PACED)
    wait_until(lambda: demo.count("end") > 10)
    os.killpg(child.pid, signal.SIGINT)
    text, _ = child.communicate()
    assert child.returncode == 130, text
    assert f"To go on: python -m taskrunner demo --db {demo.db}" in text
    assert "Traceback" not in text
    done = demo.run(*PACED)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert_proved(demo, done.stdout, kills=1)
