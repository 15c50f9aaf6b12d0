"""What the command line makes of odd rows, odd terminals and odd pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.commands import Folder, here, json_here, sql, strict_json

MANY = 10_000
MOMENT = "'2026-01-01T00:00:00.000000Z'"
COLUMNS = "id, type, status, input, max_retries, max_losses, run_at, created_at, updated_at, history_id"

BRACKETS = "replace(hex(zeroblob(200)), '0', '{}')"

ODD = {
    "broken-json": {"input": "'{not json'"},
    "nan": {"input": "'{\"a\": NaN}'"},
    "deep": {"input": "replace(hex(zeroblob(50000)), '0', '[')"},
    "deeper": {"input": f"'{{\"a\":' || {BRACKETS.format('[')} || {BRACKETS.format(']')} || '}}'"},
    "unknown-state": {"status": "'asleep'"},
    "no-time": {"created_at": "'yesterday'"},
    "far-time": {"created_at": "'9999-12-31T23:59:59.999999Z'"},
    "negative-time": {"run_at": "'-001-01-01T00:00:00.000000Z'"},
    "bytes": {"type": "x'fffe'"},
    "no-text": {"type": "CAST(x'fffe' AS TEXT)"},
    "empty": {"type": "''"},
    "large": {"type": "hex(zeroblob(5000000))"},
    "large-error": {"error_message": "hex(zeroblob(5000000))"},
    "no-output": {"status": "'completed'", "completed_at": "NULL"},
    "infinite": {"progress": "9e999"},
    "no-number": {"progress": "'most'"},
}
"""Rows that something else than taskrunner wrote, by their ids: what is odd in each."""

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e\n[bold]x[/bold]"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with a store of one good task."""
    folder = Folder.make(tmp_path)
    folder.ok("enqueue", "good", "name=x")
    return folder


def insert_odd(folder: Folder, *names: str) -> None:
    """Write odd rows past every rule of the store."""
    triggers = sql(folder.db, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    good = dict.fromkeys(COLUMNS.split(", "), MOMENT) | {"type": "'t'", "status": "'pending'", "input": "'{}'"}
    rows = [good | {"max_retries": "3", "max_losses": "5", "id": f"'{name}'", **ODD[name]} for name in names]
    sql(
        folder.db,
        "PRAGMA ignore_check_constraints = ON",
        *(f"DROP TRIGGER {name}" for [name] in triggers),
        *(f"INSERT INTO tasks({', '.join(row)}) VALUES({', '.join(row.values())})" for row in rows),
    )


@pytest.mark.parametrize("names", [tuple(name for name in ODD if name != "no-text"), tuple(ODD)], ids=["text", "all"])
def test_an_odd_row_spoils_no_list(folder: Folder, names: tuple[str, ...]) -> None:
    """B74: whatever stands in a row, `list` shows the others whole, and this one with its id; `stats` counts it."""
    insert_odd(folder, *names)
    rows = {row["id"]: row for row in json_here(folder, "list")}
    assert set(names) < set(rows)
    unreadable = {name for name, row in rows.items() if "unreadable" in row}
    assert {"broken-json", "nan", "deep", "deeper", "no-time", "negative-time"} <= unreadable
    assert "good" in {row.get("type") for row in rows.values()}
    assert {line.split("\t")[0] for line in here(folder, "list").stdout.splitlines()} == set(rows)
    counted = json_here(folder, "stats")
    assert counted["tasks"]["asleep"] == 1
    assert sum(counted["tasks"].values()) == len(rows)
    assert sum(sum(by.values()) for by in counted["types"].values()) == len(rows)
    assert here(folder, "stats").returncode == 0


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_is_shown(folder: Folder, name: str) -> None:
    """B74: `show` and `tail` of an odd row show what there is, and say that it is unreadable, with exit code 0."""
    insert_odd(folder, name)
    for args in (("show", name), ("show", name, "--json")):
        done = here(folder, *args)
        assert (done.returncode, done.stderr) == (0, "")
        assert name in done.stdout
    document = strict_json(here(folder, "show", name, "--json").stdout)
    assert document["task"]["id"] == name
    is_unreadable = "unreadable" in document["task"]
    assert is_unreadable == any(line.startswith(f"task {name}: its row is unread") for line in document["unreadable"])
    done = here(folder, "tail", name, "--timeout", "0", "--json")
    assert ([strict_json(line) for line in done.stdout.splitlines()][-1]["kind"] == "unreadable") is is_unreadable
    assert done.returncode == (0 if is_unreadable or name == "no-output" else 124)


def test_odd_rows_around_a_task_hide_it_not(folder: Folder) -> None:
    """B74: where its attempts, steps or children are odd, `show` tells the rest, and what could not be read."""
    task_id = json_here(folder, "list")[0]["id"]
    insert_odd(folder, "broken-json")
    sql(
        folder.db,
        "INSERT INTO attempts(task_id, attempt, series, owner, started_at, ended_at, outcome)"
        " SELECT id, 1, 0, 'x', 'yesterday', created_at, 'lost' FROM tasks WHERE type = 'good'",
        "INSERT INTO steps(history_id, scope, name, occurrence, position, digest, value, task_id, attempt, created_at)"
        " SELECT id, '', x'ff', 0, 0, '', '1', id, 1, created_at FROM tasks WHERE type = 'good'",
        "UPDATE tasks SET parent_task_id = (SELECT id FROM tasks WHERE type = 'good') WHERE id = 'broken-json'",
    )
    found = json_here(folder, "show", task_id)
    assert (found["task"]["type"], [child["id"] for child in found["children"]]) == ("good", ["broken-json"])
    assert [line.split(" are ")[0] for line in found["unreadable"]] == ["its attempts", "its steps"]
    done = here(folder, "show", task_id)
    assert (done.returncode, done.stderr) == (0, "")
    assert "broken-json  unreadable" in done.stdout
    tail = here(folder, "tail", task_id, "--timeout", "0")
    assert (tail.returncode, "unreadable" in tail.stdout, "Traceback" in tail.stderr) == (124, True, False)


def test_doctor_names_odd_rows(folder: Folder) -> None:
    """B74: `doctor` says which rows cannot be read."""
    insert_odd(folder, "broken-json", "no-text")
    done = folder.run("doctor", "--json")
    assert done.returncode == 1
    troubles = "\n".join(strict_json(done.stdout)["troubles"])
    assert "broken-json" in troubles
    assert "no-text" in troubles


@pytest.fixture
def many(folder: Folder) -> Folder:
    """A store with many tasks."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {MANY})"  # noqa: S608 - ours
    values = "'id-' || i, '☃🎉', 'pending', '{}', 3, 5, " + ", ".join([MOMENT] * 3) + ", 'h'"
    sql(folder.db, f"{numbers} INSERT INTO tasks({COLUMNS}) SELECT {values} FROM n")  # noqa: S608 - ours
    return folder


@pytest.mark.parametrize("args", [("list",), ("list", "--json"), ("cancel", "--type=☃🎉", "--dry-run")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough(many: Folder, args: tuple[str, ...], unbuffered: str) -> None:
    """B76: `list | head -1` prints one line and no traceback, with buffers or without, and ends with 0."""
    more = ["--limit", str(MANY)] if args[0] == "list" else []
    command = f"{sys.executable} -m taskrunner {' '.join([*args, *more])} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=many.path,
        env={**many.env, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 1


def test_standard_output_is_closed(folder: Folder) -> None:
    """With nothing to write to the command does not crash."""
    command = f"{sys.executable} -m taskrunner list >&-"
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=folder.path, env=folder.env, capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr


def in_bash(folder: Folder, command: str) -> subprocess.CompletedProcess[bytes]:
    """What `taskrunner COMMAND` does in a shell, redirections and all."""
    line = ["/bin/bash", "-c", f"{sys.executable} -m taskrunner {command}"]
    return subprocess.run(line, cwd=folder.path, env=folder.env, capture_output=True, check=False)


def test_standard_input_is_closed(folder: Folder) -> None:
    """An input that is to be read from a closed standard input is an empty one, and refused as such."""
    done = in_bash(folder, "enqueue greet --input - <&-")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
    assert done.stderr.startswith(b"taskrunner: --input is no JSON: ")


def test_standard_output_is_full(folder: Folder) -> None:
    """What cannot be written is told in one sentence that says where it was to go."""
    done = in_bash(folder, "list > /dev/full")
    assert (done.returncode, done.stderr) == (1, b"taskrunner: standard output: No space left on device\n")


def test_a_log_that_nobody_reads_any_more(folder: Folder) -> None:
    """A supervisor whose log's reader has gone works on: no task fails for what it logs."""
    for number in range(20):
        here(folder, "enqueue", "greet", f"name=n{number}")
    command = f"{sys.executable} -m taskrunner run app:runner --until-idle 2>&1 | head -1"
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=folder.path, env=folder.env, capture_output=True, check=False
    )
    assert done.stdout.count(b"\n") == 1
    assert {row["status"] for row in folder.json("list", "--type", "greet")} == {"completed"}
    assert {row["attempt"] for row in folder.json("list", "--type", "greet")} == {1}


ASCII = {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_a_terminal_that_knows_ascii_only(folder: Folder) -> None:
    """B76: with LANG=C names that it cannot write come as escapes, and JSON is whole."""
    task_id = folder.ok("enqueue", "greet", "name=Zoë 🎉").strip()
    assert r"Zo\xeb \U0001f389" in folder.ok("show", task_id, env=ASCII)
    document = folder.ok("show", task_id, "--json", env=ASCII)
    assert strict_json(document)["task"]["input"] == {"name": "Zoë 🎉"}
    done = folder.run("--db", "naïve.db", "list", env=ASCII)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr


@pytest.fixture
def evil(folder: Folder) -> str:
    """A task whose texts would be obeyed by a terminal."""
    task_id = folder.ok("enqueue", "broken", "--max-retries", "0", "--input", "-", stdin=strict_text({"text": EVIL}))
    folder.ok("run", "app:runner", "--until-idle")
    name, rest = f"'{EVIL}'", ", ".join([MOMENT] * 3)
    sql(
        folder.db,
        f"UPDATE tasks SET queue = {name} WHERE type = 'broken'",  # noqa: S608 - ours
        f"INSERT INTO tasks({COLUMNS}) VALUES ('evil', {name}, 'pending', '{{}}', 3, 5, {rest}, 'h')",  # noqa: S608 - ours
    )
    return task_id.strip()


def strict_text(value: dict[str, str]) -> str:
    """JSON text."""
    return json.dumps(value)


def on_a_terminal(folder: Folder, *args: str, columns: int = 200) -> str:
    """What the command prints on a terminal of this width."""
    ours, theirs = pty.openpty()
    env = {**folder.env, "TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "taskrunner", *args],
        cwd=folder.path,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    text = b"".join(_read(ours)).decode()
    os.close(ours)
    assert child.wait(20) == 0
    return text


def lines_of(text: str) -> list[str]:
    """The lines without what makes some of them bold."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def _read(descriptor: int) -> Iterator[bytes]:
    with suppress(OSError):  # the other end has closed
        while data := os.read(descriptor, 65_536):
            yield data


READS = [("list",), ("show", "ID"), ("stats",), ("retry", "ID", "--dry-run")]


@pytest.mark.parametrize("args", [*READS, *((*args, "--json") for args in READS)], ids=" ".join)
def test_stored_text_is_never_obeyed(folder: Folder, evil: str, args: tuple[str, ...]) -> None:
    """G10: control characters, terminal codes and marks in stored texts are shown as escapes, markup as it is."""
    words = [evil if word == "ID" else word for word in args]
    for text in (here(folder, *words).stdout, on_a_terminal(folder, *words)):
        assert "[bold]x[/bold]" in text
        assert not {"\x07", "\u202e"} & set(text)
        assert "\x1b]0" not in text
        assert "\x1b[2J" not in text


def test_a_table_on_a_terminal(folder: Folder) -> None:
    """On a terminal `list` has a header, and leaves out what a narrow one has no room for."""
    wide = lines_of(on_a_terminal(folder, "list"))
    assert wide[0].split() == ["ID", "STATUS", "TYPE", "QUEUE", "DONE", "CREATED", "SAYS"]
    narrow = lines_of(on_a_terminal(folder, "list", columns=80))
    assert narrow[0].split() == ["ID", "STATUS", "TYPE", "DONE", "SAYS"]
    assert all(len(line) <= 80 for line in narrow)
    task_id = folder.json("list")[0]["id"]
    for args in (("list",), ("show", task_id), ("stats",), ("config",)):
        assert on_a_terminal(folder, *args, columns=20)


def test_who_waits_on_a_terminal_is_told_for_what(folder: Folder) -> None:
    """B77: a wait says at once, to a person, which task it waits for; its result stands on a line of its own."""
    with folder.started("run", "app:runner"):
        text = on_a_terminal(folder, "enqueue", "greet", "name=x", "--wait")
    [task] = folder.json("list", "--type", "greet")
    assert text.splitlines()[0] == f"taskrunner: waiting for the end of task {task['id']}"
    assert strict_json("".join(text.splitlines()[1:])) == {"x": 1}


def test_the_log_of_a_supervisor_on_a_terminal(folder: Folder) -> None:
    """On a terminal the log is made for people, and what tasks say is not obeyed there either."""
    folder.ok("enqueue", "broken", "--max-retries", "0", "--input", "-", stdin=strict_text({"text": EVIL}))
    text = on_a_terminal(folder, "run", "app:runner", "--until-idle")
    assert "task.failed" in text
    assert "\x1b]0" not in text
    assert "\u202e" not in text
