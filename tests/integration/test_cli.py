"""The command line: what it prints, on which stream, and with which exit code."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.commands import Folder, here, sql, wait_until

READING = (("list",), ("show", "some-id"), ("tail", "some-id"), ("stats",), ("doctor",))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def assert_one_sentence(done: subprocess.CompletedProcess[str], code: int, *fragments: str) -> None:
    """An error is one line on stderr that says what is wrong, and nothing on stdout."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("taskrunner: ")
    assert done.stderr.count("\n") == 1
    for fragment in fragments:
        assert fragment in done.stderr


# ── the whole circle ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_enqueue_run_list_show(folder: Folder) -> None:
    """A task is enqueued by name, run, listed and shown, each by one command that ends with 0."""
    task_id = folder.ok("enqueue", "greet", "name=Zoë", "times=3").strip()
    folder.ok("run", "app:runner", "--until-idle")
    [row] = folder.json("list")
    assert (row["id"], row["type"], row["status"], row["output"]) == (task_id, "greet", "completed", {"Zoë": 3})
    assert folder.ok("list").split("\t")[:3] == [task_id, "completed", "greet"]
    shown = folder.json("show", task_id)
    assert shown["task"]["input"] == {"name": "Zoë", "times": 3}
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["completed"]
    assert 'output     {"Zoë": 3}' in folder.ok("show", task_id)


def test_run_logs_events_as_json_lines(folder: Folder) -> None:
    """Where no terminal is, a supervisor's log is one JSON object per line, under the names of the events."""
    folder.ok("enqueue", "greet", "name=x")
    done = folder.run("run", "app:runner", "--until-idle")
    lines = [line for line in done.stderr.splitlines() if '"event": "greeting"' in line or '"task.' in line]
    assert done.stdout == ""
    assert [line.split('"event": "')[1].split('"')[0] for line in lines] == [
        "task.started",
        "greeting",
        "task.completed",
    ]


def test_the_steps_of_a_task_are_shown(folder: Folder) -> None:
    """`show` tells each step with its value and the attempt that recorded it."""
    task_id = folder.ok("enqueue", "wait_for", "file=app.py").strip()
    folder.ok("run", "app:factory", "--until-idle")
    [step] = folder.json("show", task_id)["steps"]
    assert (step["name"], step["occurrence"], step["value"], step["attempt"]) == ("first", 0, 7, 1)
    assert "first  attempt 1  7" in folder.ok("show", task_id)


def test_the_input_as_one_document(folder: Folder) -> None:
    """The input may be given whole, as an argument or through stdin."""
    for args, stdin in (("--input", '{"name": "x"}'), ""), (("--input", "-"), '{"name": "x"}'):
        folder.ok("enqueue", "greet", *args, stdin=stdin)
    assert [row["input"] for row in folder.json("list")] == [{"name": "x"}] * 2


def test_options_of_a_task(folder: Folder) -> None:
    """Every option of `enqueue` arrives in the task."""
    args = ["--priority", "1", "--queue", "q", "--max-retries", "7", "--unique-key", "u", "--idempotency-key", "i"]
    task_id = folder.ok("enqueue", "greet", "name=x", *args, "--run-at", "2030-01-31T09:00:00+01:00").strip()
    task = folder.json("show", task_id)["task"]
    assert (task["priority"], task["queue"], task["max_retries"]) == (1, "q", 7)
    assert (task["unique_key"], task["idempotency_key"]) == ("u", "i")
    assert task["run_at"] == "2030-01-31T08:00:00.000000Z"
    assert folder.ok("enqueue", "greet", "name=y", "--idempotency-key", "i").strip() == task_id


def test_lists_are_filtered_and_paged(folder: Folder) -> None:
    """`list` shows the newest first, by status, type and queue, page after page."""
    ids = [folder.ok("enqueue", name, "--queue", queue).strip() for name, queue in ("ax", "by", "ay")]
    listed = [row["id"] for row in folder.json("list")]
    assert listed == ids[::-1]
    assert [row["id"] for row in folder.json("list", "--type", "a")] == [ids[2], ids[0]]
    assert [row["id"] for row in folder.json("list", "--queue", "y", "--limit", "1")] == [ids[2]]
    assert [row["id"] for row in folder.json("list", "--queue", "y", "--after", ids[2])] == [ids[1]]
    assert folder.json("list", "--status", "running") == []


# ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_wait_for_a_result(folder: Folder) -> None:
    """`enqueue --wait` prints the result of the task as JSON, or ends with 1 when it failed."""
    with folder.started("run", "app:runner"):
        assert folder.ok("enqueue", "greet", "name=x", "--wait=10s") == '{\n  "x": 1\n}\n'
        done = folder.run("enqueue", "broken", "text=no\x1b[31m", "--wait=10")
    assert_one_sentence(done, 1, r"failed: ValueError: no\x1b[31m")


def test_a_wait_for_nobody_says_so(folder: Folder) -> None:
    """After a second without any supervisor `--wait` says once on stderr how to start one, and waits on."""
    with folder.started("enqueue", "greet", "name=x", "--wait") as waits:
        assert waits.stdout
        told = "no supervisor works on this store at the moment: start one with `taskrunner run APP`"
        assert waits.stdout.readline() == f"taskrunner: {told}\n"
        assert waits.poll() is None
        folder.ok("run", "app:runner", "--until-idle")
        rest, _ = waits.communicate(timeout=10)
    assert (waits.returncode, rest) == (0, '{\n  "x": 1\n}\n')
    done = folder.run("enqueue", "greet", "name=x", "--wait=1.5")
    assert (done.returncode, done.stderr.count("\n")) == (124, 2)


def test_a_wait_that_times_out(folder: Folder) -> None:
    """A wait that was too short ends with 124, and the task stays."""
    done = folder.run("enqueue", "greet", "name=x", "--wait=0.2")
    assert_one_sentence(done, 124, "has not ended within 0.2 s", "pending")
    assert len(folder.json("list")) == 1


# ── what is wrong ─────────────────────────────────────────────────────────────────────────────────────────────────────

WRONG: dict[tuple[str, ...], tuple[int, str]] = {
    ("frobnicate",): (2, "frobnicate"),
    ("list", "--frobnicate"): (2, "--frobnicate"),
    ("list", "--status", "asleep"): (2, "asleep"),
    ("list", "--limit", "0"): (2, "--limit"),
    ("list", "--after", "nobody"): (4, "nobody"),
    ("show",): (2, "ID"),
    ("show", "nobody"): (4, "nobody"),
    ("enqueue",): (2, "TYPE"),
    ("enqueue", ""): (2, "name"),
    ("enqueue", "greet", "name"): (2, "KEY=VALUE"),
    ("enqueue", "greet", "--input", "{"): (2, "no JSON"),
    ("enqueue", "greet", "--input", "[1]"): (2, "JSON object"),
    ("enqueue", "greet", "--input", "{}", "name=x"): (2, "not both"),
    ("enqueue", "greet", "name=x", "name=y"): (2, "'name=y': name is given twice"),
    ("enqueue", "greet", "--input", '{"name": NaN}'): (2, "NaN"),
    ("enqueue", "greet", "--input", '{"name": -Infinity}'): (2, "-Infinity"),
    ("enqueue", "greet", "--input", '{"name": 1e400}'): (2, "name"),
    ("enqueue", "greet", f"name={10**400}"): (2, "name"),
    ("enqueue", "greet", f"name={2**63}"): (2, "name"),
    ("enqueue", "greet", "--input", '{"name": "\\ud800"}'): (2, "name"),
    ("enqueue", "greet", "--input", "[" * 10_000): (2, "100 levels"),
    ("enqueue", "greet", "--input", '{"name": ' + "[" * 101 + "]" * 101 + "}"): (2, "name"),
    ("enqueue", "greet", "name=x", "--priority", "10"): (2, "priority"),
    ("enqueue", "greet", "name=x", "--delay", "-1"): (2, "delay"),
    ("enqueue", "greet", "name=x", "--delay", "5x"): (2, "5x"),
    ("enqueue", "greet", "name=x", "--timeout", "0"): (2, "timeout"),
    ("enqueue", "greet", "name=x", "--run-at", "tomorrow"): (2, "tomorrow"),
    ("enqueue", "greet", "name=x", "--run-at", "2030-01-01T00:00:00"): (2, "time zone"),
    ("enqueue", "greet", "name=x", "--delay", "1", "--run-at", "2030-01-01T00:00:00Z"): (2, "run_at"),
    ("enqueue", "greet", "name=x", "--wait", "soon"): (2, "soon"),
    ("enqueue", "greet", "name=x", "--session-id", "nobody"): (4, "session"),
    ("enqueue", "greet", "name=x", "--on-conflict", "fight"): (2, "fight"),
    ("run",): (2, "APP"),
    ("run", "app"): (2, "app:runner"),
    ("run", "nowhere:runner"): (2, "nowhere"),
    ("run", "app:nothing"): (2, "runner"),
    ("run", "app:number"): (2, "int"),
    ("run", "app:fails"): (2, "no runner today"),
    ("run", "app:coroutine"): (2, "async"),
    ("run", "app:runner", "--lease", "0"): (2, "lease"),
    ("run", "app:runner", "--lease", "5", "--heartbeat", "10"): (2, "heartbeat"),
    ("run", "app:runner", "--concurrency", "0"): (2, "concurrency"),
    ("run", "app:runner", "--concurrency", "many"): (2, "many"),
    ("run", "app:runner", "--grace", "-1"): (2, "grace"),
    ("run", "app:runner", "--sweep", "5x"): (2, "5x"),
    ("run", "app:runner", "--max-losses", "2"): (2, "max_losses"),
    ("run", "app:runner", "--max-payload", "0"): (2, "max_payload"),
    ("demo", "--packages", "0"): (2, "--packages"),
    ("list", "--since", "yesterday"): (2, "'yesterday': write how long ago it was, such as 2h, or an ISO 8601 time"),
    ("list", "--until", "2030-01-31"): (2, "time zone"),
    ("cancel", "nobody", "--status", "pending"): (2, "not by both"),
    ("cancel", "--status", "failed"): (2, "failed"),
    ("retry", "--status", "pending"): (2, "pending"),
    ("retry",): (2, "filter"),
    ("tail", "nobody"): (4, "nobody"),
    ("tail", "nobody", "--timeout", "5x"): (2, "5x"),
    ("config", "nowhere:runner"): (2, "nowhere"),
    ("config", "--lease", "0"): (2, "lease"),
    ("completion", "tcsh"): (2, "tcsh"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with a store of one task, for commands that change nothing."""
    folder = Folder.make(tmp_path_factory.mktemp("shared"))
    folder.ok("enqueue", "greet", "name=first")
    return folder


@pytest.mark.parametrize("args", WRONG, ids=lambda args: " ".join(args)[:60])
def test_wrong_usage_is_one_sentence(shared: Folder, args: tuple[str, ...]) -> None:
    """B31, B77: bad input ends with its code and one sentence that names the value, and nothing is stored."""
    code, fragment = WRONG[args]
    imports = args[0] in {"run", "demo", "config"}  # the user's code, for which a process of its own is needed
    assert_one_sentence(shared.run(*args) if imports else here(shared, *args), code, fragment)
    assert sql(shared.db, "SELECT count(*) FROM tasks") == [[1]]


def test_a_payload_that_is_too_large(folder: Folder) -> None:
    """An input above `max_payload` is refused with both sizes, and nothing is stored."""
    done = folder.run("enqueue", "greet", "--input", "-", stdin=f'{{"name": "{"x" * 1_100_000}"}}')
    assert_one_sentence(done, 2, "1,100,0", "1,048,576")
    assert folder.json("list") == []


BROKEN_APPS = {
    "import nowhere_to_be_found": "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    "x = (": "SyntaxError",
    "\n\nx = 1 / 0": "ZeroDivisionError: division by zero",
    "import sys\nsys.exit(1)": "SystemExit: 1",
    "import json\njson.loads('')": "JSONDecodeError",
    "from taskrunner import Tasks\nTasks().task(lambda: 1)": "a lambda has no name of its own",
}


@pytest.mark.parametrize("source", BROKEN_APPS)
def test_a_module_that_cannot_be_imported(folder: Folder, source: str) -> None:
    """B78: an app with an error ends at once, with the module, the error, the file and the line in one sentence."""
    (folder.path / "mine.py").write_text(source, encoding="utf-8")
    line = source.count("\n") + 1
    started = time.monotonic()
    done = folder.run("run", "mine:runner")
    assert time.monotonic() - started < 10
    assert_one_sentence(done, 2, "'mine'", BROKEN_APPS[source], f"mine.py:{line}")


def test_an_import_that_never_ends(folder: Folder) -> None:
    """B78: an import that goes on and on is named with the place where it is, so that nobody waits in the dark."""
    (folder.path / "mine.py").write_text("import time\n\ntime.sleep(60)\n", encoding="utf-8")
    with folder.started("run", "mine:runner") as child:
        assert child.stdout is not None
        line = child.stdout.readline()
    assert line.startswith("taskrunner: the import of 'mine' goes on for more than 5 s")
    assert "mine.py:3" in line


@pytest.mark.parametrize("args", READING)
def test_a_reader_creates_nothing(folder: Folder, args: tuple[str, ...]) -> None:
    """B56: a reading command on a store that is not there ends with 3 and makes none."""
    done = here(folder, *args)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert str(folder.db) in done.stderr
    assert not folder.db.exists()


@pytest.mark.parametrize("args", [*READING, ("enqueue", "greet"), ("run", "app:runner")])
def test_a_file_that_is_no_store(folder: Folder, args: tuple[str, ...]) -> None:
    """A file of another kind is refused with 3, and left as it is."""
    folder.db.write_text("Dear diary, " * 1_000, encoding="utf-8")
    done = folder.run(*args) if args[0] == "run" else here(folder, *args)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert folder.db.read_text(encoding="utf-8") == "Dear diary, " * 1_000


@pytest.mark.parametrize("args", [*READING, ("enqueue", "greet"), ("run", "app:runner")])
def test_a_store_of_a_newer_version(folder: Folder, args: tuple[str, ...]) -> None:
    """A schema that this version does not know is refused with 3, and left as it is."""
    here(folder, "enqueue", "greet", "name=x")
    sql(folder.db, "PRAGMA user_version = 99")
    done = folder.run(*args) if args[0] == "run" else here(folder, *args)
    assert done.returncode == 3
    assert "99" in done.stderr
    assert sql(folder.db, "PRAGMA user_version") == [[99]]


@pytest.mark.parametrize("args", READING)
def test_a_reader_migrates_nothing(folder: Folder, args: tuple[str, ...]) -> None:
    """B56: a file without our tables yet is left as it is by those who only read."""
    folder.db.touch()
    done = here(folder, *args)
    assert done.returncode == 3
    assert "older" in done.stderr
    assert folder.db.stat().st_size == 0


@pytest.mark.parametrize("args", [("list",), ("enqueue", "greet")])
def test_no_store_is_named(folder: Folder, args: tuple[str, ...]) -> None:
    """Without any store the sentence says how to name one."""
    assert_one_sentence(folder.run(*args, env={"TASKRUNNER_DB": ""}), 3, "--db", "TASKRUNNER_DB")


def test_a_setting_that_is_none(folder: Folder) -> None:
    """B77: a variable that is no setting is refused with the nearest one, before anything is done."""
    done = folder.run("enqueue", "greet", env={"TASKRUNNER_LAESE": "5"})
    assert_one_sentence(done, 2, "TASKRUNNER_LAESE", "TASKRUNNER_LEASE")
    assert not folder.db.exists()


def test_debug_shows_the_traceback(folder: Folder) -> None:
    """`--debug` shows where an error comes from, before or after the command's name."""
    for args in (("--debug", "show", "nobody"), ("show", "nobody", "--debug")):
        folder.ok("enqueue", "greet", "name=x")
        done = folder.run(*args)
        assert done.returncode == 4
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("taskrunner: ")


def test_the_flag_counts_before_the_environment(folder: Folder) -> None:
    """`--db` names the store before TASKRUNNER_DB does, on either side of the command's name."""
    folder.ok("--db", "other.db", "enqueue", "greet", "name=x")
    assert len(folder.json("list", "--db", "other.db")) == 1
    assert not folder.db.exists()


# ── signals ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_signal_drains(folder: Folder) -> None:
    """SIGTERM lets the running task end and takes no other one; the exit code is 0."""
    folder.ok("enqueue", "wait_for", "file=gate")
    with folder.started("run", "app:runner", "--concurrency", "1") as supervisor:
        wait_until(folder.has_begun)
        folder.ok("enqueue", "wait_for", "file=gate")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.stdout is not None
        assert any("supervisor.stopping" in line for line in supervisor.stdout)
        (folder.path / "gate").touch()
        assert supervisor.wait(10) == 0
    assert [row["status"] for row in folder.json("list")] == ["pending", "completed"]


def test_the_second_signal_releases(folder: Folder) -> None:
    """A second signal hands the running task back at once: nothing is burnt, and its step stays recorded."""
    task_id = folder.ok("enqueue", "wait_for", "file=gate").strip()
    with folder.started("run", "app:runner") as supervisor:
        wait_until(folder.has_begun)
        supervisor.send_signal(signal.SIGINT)
        time.sleep(0.3)
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(10) == 0
    shown = folder.json("show", task_id)
    task = shown["task"]
    assert (task["status"], task["retry_count"], task["losses"], len(shown["steps"])) == ("pending", 0, 0, 1)
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["released"]


# ── what it is ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_version_is_fast(folder: Folder) -> None:
    """`--version` needs less than 0.3 s of the processor: what is heavy is loaded where it is needed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert folder.ok("--version").startswith("taskrunner ")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_help_names_every_command(folder: Folder) -> None:
    """`--help` says what there is, and each command explains itself."""
    text = folder.ok("--help")
    commands = "cancel chaos completion config demo doctor enqueue health list pause resume retry run show stats tail"
    for name in commands.split():
        assert f"  {name} " in text
        assert "Usage: taskrunner " in here(folder, name, "--help").stdout


def test_without_rich_it_works_too(folder: Folder) -> None:
    """It needs no rich, which is an extra: without it the command prints plain text."""
    folder.ok("enqueue", "greet", "name=x")
    (folder.path / "rich.py").write_text("raise ImportError", encoding="utf-8")
    code = "import sys; sys.path.insert(0, ''); from taskrunner.cli import main; sys.exit(main(['list']))"
    program = f"import sys; sys.stdout.isatty = lambda: True; {code}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder.path,
        env={**folder.env, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split() == ["ID", "STATUS", "TYPE", "DONE", "SAYS"]
