"""The words of the command line: they speak of what the user typed, and never of the Python behind it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.commands import Folder, wait_until

PYTHON = ("Errno", "recursion", "set_int_max", "datetime", "Error:", "db=''", "package' argument")
"""What no user should have to read."""

SMALL = ("--packages", "1", "--no-tests", "--no-kill")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


WORDS: dict[tuple[str, ...], tuple[int, str]] = {
    ("run", "./app.py:runner"): (2, "name a module and not its file: app:runner"),
    ("run", "app.py:runner"): (2, "name a module and not its file: app:runner"),
    ("run", "sub/app.py:runner"): (2, "name a module and not its file: sub.app:runner"),
    ("run", "../app.py:runner"): (2, "app:runner, in the folder .."),
    ("run", ".app:runner"): (2, "'.app' is no module's name"),
    ("run", "app..x:runner"): (2, "'app..x' is no module's name"),
    ("demo", "--out", "/proc/foo"): (1, "/proc/foo: this folder cannot be made"),
    ("demo", "--db", "demo.db", "--out", "/proc/foo"): (1, "/proc/foo: this folder cannot be made"),
    ("enqueue", "greet", "--input", "[" * 100_000): (2, "--input: this JSON is more than 100 levels deep"),
    ("enqueue", "greet", f"name={'[' * 100_000}"): (2, "name: this JSON is more than 100 levels deep"),
    ("enqueue", "greet", "--input", f'{{"name": {"9" * 5_000}}}'): (2, "--input: a number of 5,000 digits"),
    ("enqueue", "greet", f"name={'9' * 5_000}"): (2, "name: a number of 5,000 digits is outside"),
    ("enqueue", "greet", "--run-at", "2026-01-01"): (2, "time zone: write 2026-01-01T09:00Z"),
    ("enqueue", "greet", "--run-at", "2026-01-01T10:30"): (2, "time zone: write 2026-01-01T10:30Z"),
    ("list",): (3, "no store is named: give the path of its file in code, with --db or in TASKRUNNER_DB"),
    ("run", "app:runner", "--queues", "a,,b"): (2, "a queue's name has 1 to 200"),
}


@pytest.mark.parametrize("args", WORDS, ids=lambda args: " ".join(args)[:40])
def test_no_python_shows_through(folder: Folder, args: tuple[str, ...]) -> None:
    """B77, B78: one sentence says what was typed, and what to write instead."""
    code, words = WORDS[args]
    done = folder.run(*args, env={"TASKRUNNER_DB": ""} if args[0] == "list" else {})
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr
    assert not [word for word in PYTHON if word in done.stderr], done.stderr


def test_without_a_command_the_help_is_shown(folder: Folder) -> None:
    """`taskrunner` alone prints its help as --help does, on standard error, and ends with 2."""
    done = folder.run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == folder.ok("--help")
    done = folder.run("--db", "x.db")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_queues_are_named_as_the_setting_is(folder: Folder) -> None:
    """`--queues a,b` is the setting's own name; `--queue`, which may be repeated, adds to it."""
    for queue in "abcd":
        folder.ok("enqueue", "greet", "name=x", "--queue", queue)
    folder.ok("run", "app:runner", "--until-idle", "--queues", "a, b", "--queue", "c")
    pending = folder.json("list", "--status", "pending")
    assert [task["queue"] for task in pending] == ["d"]


@pytest.mark.timeout(60)
def test_a_second_demo_leaves_no_empty_folder(folder: Folder) -> None:
    """A demo that goes on with a survey uses that one's folder, and makes none beside it."""
    folder.ok("demo", "--db", "demo.db", "--out", "mine", *SMALL)
    folder.ok("demo", "--db", "demo.db", *SMALL)
    assert not (folder.path / "demo-report").exists()


@pytest.mark.timeout(60)
def test_how_to_go_on_is_the_command_that_was_typed(folder: Folder) -> None:
    """After Ctrl-C the demo names the command as its user has typed it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "taskrunner", "demo", "--db", "my demo.db", "--no-kill", "--pace", "0.1"],
        cwd=folder.path,
        env={**folder.env, "DEMO_COMMAND": "./run demo"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = folder.path / "my demo-report" / "effects.log"
    wait_until(lambda: log.exists() and log.read_text(encoding="utf-8").count('"end"') > 2)
    os.killpg(child.pid, signal.SIGINT)
    text, _ = child.communicate()
    assert child.returncode == 130
    assert f"To go on: ./run demo --db '{folder.path / 'my demo.db'}' --no-kill" in text
