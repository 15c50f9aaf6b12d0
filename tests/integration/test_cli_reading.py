"""`taskrunner stats`, `config`, `tail` and `completion`: what they tell, whatever stands in the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import TaskContext, TaskRunner
from tests.integration.commands import Folder, here, json_here, sql, strict_json, wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with an app and no store."""
    return Folder.make(tmp_path)


def lines_of(text: str) -> list[dict[str, Any]]:
    """JSON Lines, each strict."""
    return [strict_json(line) for line in text.splitlines()]


# ── stats ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_stats_counts_what_there_is(folder: Folder) -> None:
    """B48: by status, by queue and by type; what is not due, what waits for what, the oldest, and who works."""
    for queue in ("mail", "mail", "calls"):
        here(folder, "enqueue", "greet", "name=x", "--queue", queue)
    here(folder, "enqueue", "greet", "name=x", "--delay", "1h")
    here(folder, "enqueue", "broken", "text=x", "--queue", "now", "--max-retries", "0")
    here(folder, "enqueue", "unheard_of", "--queue", "now")
    folder.ok("run", "app:runner", "--until-idle", "--queues", "now")
    found = json_here(folder, "stats")
    assert found["tasks"] == {"pending": 5, "running": 0, "completed": 0, "failed": 1, "cancelled": 0}
    assert found["types"] == {"greet": {"pending": 4}, "unheard_of": {"pending": 1}, "broken": {"failed": 1}}
    assert {queue["name"]: queue["due"] for queue in found["queues"]} == {"calls": 1, "mail": 2}
    assert found["delayed"] == 1
    assert found["waiting"] == {"worker:unheard_of": 1}
    assert found["oldest_pending"]["type"] == "greet"
    assert (found["supervisors"], found["bounds"]) == ([], {"tasks": 1_000_000, "types": 10_000})
    assert json_here(folder, "stats", "--exact")["bounds"] is None
    text = here(folder, "stats").stdout
    for line in (
        "pending  ",
        "queues",
        "  mail  due 2, running 0",
        "  greet  pending 4",
        "waiting for worker:unheard_of",
    ):
        assert line in text


def test_stats_names_the_supervisors(folder: Folder) -> None:
    """Who works on the store, with how many tasks."""
    folder.ok("enqueue", "wait_for", "file=gate")
    with folder.started("run", "app:runner") as supervisor:
        wait_until(folder.has_begun)
        [found] = json_here(folder, "stats")["supervisors"]
        assert (found["pid"], found["alive"], found["running"]) == (supervisor.pid, True, 1)
        assert f"process {supervisor.pid}" in here(folder, "stats").stdout
        [queue] = json_here(folder, "stats")["queues"]
        assert (queue["name"], queue["due"], queue["running"], queue["limit"]) == ("default", 0, 1, None)


# ── list ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lists_are_filtered_by_session_parent_and_time(folder: Folder) -> None:
    """`list` takes a session, a parent, and the times between which a task was created: an instant, or so long ago."""
    ids = [here(folder, "enqueue", "greet", "name=x").stdout.strip() for _ in range(4)]
    sql(
        folder.db,
        "INSERT INTO sessions(id, created_at, updated_at) SELECT 's', created_at, created_at FROM tasks LIMIT 1",
        f"UPDATE tasks SET session_id = 's' WHERE id IN ('{ids[0]}', '{ids[1]}')",  # noqa: S608 - ids of ours
        f"UPDATE tasks SET parent_task_id = '{ids[0]}' WHERE id IN ('{ids[1]}', '{ids[2]}')",  # noqa: S608 - as above
        "DROP TRIGGER tasks_identity",
        f"UPDATE tasks SET created_at = '2026-01-01T12:00:00.000000Z' WHERE id = '{ids[3]}'",  # noqa: S608 - as above
    )
    for filters, wanted in {
        ("--session", "s"): {0, 1},
        ("--parent", ids[0]): {1, 2},
        ("--session", "s", "--parent", ids[0]): {1},
        ("--since", "1h"): {0, 1, 2},
        ("--until", "1h"): {3},
        ("--since", "2026-01-01T12:00Z", "--until", "2026-01-01T14:00+01:00"): {3},
        ("--since", "2026-01-01T12:00:01Z", "--status", "pending", "--session", "s"): {0, 1},
        ("--until", "2026-01-01T12:00Z", "--status", "pending"): set(),
    }.items():
        assert {ids.index(row["id"]) for row in json_here(folder, "list", *filters)} == wanted, filters


# ── config ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_config_shows_every_origin(folder: Folder) -> None:
    """B77: each setting with its value and where it came from, by every route, as `run` with the same flags has it."""
    (folder.path / "pyproject.toml").write_text('[tool.taskrunner]\nsweep = "2s"\ngrace = 7\n', encoding="utf-8")
    (folder.path / "mine.py").write_text(
        "from taskrunner import TaskRunner\nrunner = TaskRunner('mine.db', lease=60, max_losses=7)\n", encoding="utf-8"
    )
    env = {"TASKRUNNER_MAX_RETRIES": "9", "TASKRUNNER_LEASE": "50", "TASKRUNNER_GRACE": "8"}
    flags = ("--concurrency", "4", "--max-losses", "8", "--queues", "a,b")
    done = folder.run("config", "mine:runner", *flags, "--json", env=env)
    found = {name: (each["value"], each["origin"]) for name, each in strict_json(done.stdout).items()}
    expected = {
        "db": ("mine.db", "code"),
        "concurrency": (4, "flag"),
        "queues": (["a", "b"], "flag"),
        "lease": (60, "code"),
        "heartbeat": (20, "default"),
        "sweep": (2, "pyproject"),
        "grace": (8, "env"),
        "max_losses": (8, "flag"),
        "max_retries": (9, "env"),
    }
    assert {name: found[name] for name in expected} == expected
    table = [line.split("\t") for line in folder.ok("config", "--db", "x.db", env=env).splitlines()]
    assert ["db", "x.db", "flag"] in table
    assert ["lease", "50 s", "env"] in table
    assert ["max_payload", "1 MiB", "default"] in table
    assert not list(folder.path.glob("*.db*"))


def test_config_refuses_what_run_refuses(folder: Folder) -> None:
    """B77: a contradiction is one sentence that names the flag."""
    done = here(folder, "config", "--lease", "5", "--heartbeat", "10")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "heartbeat (--heartbeat)=10: with lease (--lease)=5 it must be less than half of it" in done.stderr
    done = folder.run("run", "app:runner", "--max-losses", "2")
    assert "max_losses (--max-losses)=2" in done.stderr


# ── tail ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tail_follows_a_task_to_its_end(folder: Folder) -> None:
    """It tells attempts, steps, log, progress and status as they come, in JSON Lines, and ends when the task does."""
    task_id = folder.ok("enqueue", "wait_for", "file=gate").strip()
    command = [sys.executable, "-m", "taskrunner", "tail", task_id, "--json"]
    with (
        subprocess.Popen(command, cwd=folder.path, env=folder.env, stdout=subprocess.PIPE, text=True) as tail,
        folder.started("run", "app:runner"),
    ):
        assert tail.stdout is not None
        seen = [strict_json(tail.stdout.readline())]
        while seen[-1]["kind"] != "step":
            seen.append(strict_json(tail.stdout.readline()))
        (folder.path / "gate").touch()
        seen += lines_of(tail.stdout.read())
        assert tail.wait(5) == 0
    kinds = [(line["kind"], line.get("status") or line.get("outcome") or line.get("step")) for line in seen]
    assert kinds[0] == ("status", "pending")
    assert {("step", "first"), ("attempt", "completed"), ("progress", None)} <= set(kinds)
    (said,) = [line for line in seen if line["kind"] == "log"]
    assert (said["attempt"], said["level"], said["event"], said["fields"]) == (1, "info", "waiting", {"file": "gate"})
    assert seen.index(said) < kinds.index(("attempt", "completed"))
    assert (kinds[-1], seen[-1]["output"]) == (("status", "completed"), "it is there")
    assert kinds.count(("step", "first")) == 1


async def tried_in_vain(folder: Folder) -> str:
    """The id of a task that has failed at its second attempt."""
    runner = TaskRunner(folder.db)

    @runner.task(max_retries=1, wait=0.01)
    async def tries(ctx: TaskContext) -> None:
        await ctx.step("look", str, "\x1b[2J")
        ctx.log.warning("thinking\x1b[2J", of="\x1b]0;owned\x07\u202e", deep={"a": [1]})
        await ctx.progress(0.25, "a quarter\u202e")
        raise ValueError("no\x1b[31m")

    async with runner.working():
        handle = await tries.enqueue()
        with pytest.raises(Exception, match="no"):
            await handle.result(timeout=5)
    return handle.id


def test_tail_of_a_task_that_has_ended(folder: Folder) -> None:
    """It tells what there was, at once, and nothing is obeyed by a terminal; the code says how the task has ended."""
    done = here(folder, "tail", anyio.run(tried_in_vain, folder))
    assert done.returncode == 1
    lines = [line[19:].strip() for line in done.stdout.splitlines()]
    said = 'log      warning  thinking\\x1b[2J  of="\\u001b]0;owned\\u0007\\u202e" deep={"a": [1]}'
    assert lines == [
        'step     look  "\\u001b[2J"',
        said,
        "attempt  1 retried: ValueError: no\\x1b[31m",
        said,
        "attempt  2 failed: ValueError: no\\x1b[31m",
        "progress 25% a quarter\\u202e",
        "status   failed: ValueError: no\\x1b[31m",
    ]
    assert here(folder, "tail", "nobody").returncode == 4


def test_tail_has_a_patience(folder: Folder) -> None:
    """With --timeout it ends with 124, and the task stays as it is."""
    task_id = here(folder, "enqueue", "greet", "name=x").stdout.strip()
    done = here(folder, "tail", task_id, "--timeout", "0.3", "--json")
    assert (done.returncode, [line["status"] for line in lines_of(done.stdout)]) == (124, ["pending"])
    assert done.stderr == f"taskrunner: task {task_id} has not ended within 0.3 s; it goes on\n"


def test_a_tail_whose_reader_has_gone(folder: Folder) -> None:
    """B76: `tail | head -1` prints one line and no traceback."""
    task_id = folder.ok("enqueue", "greet", "name=x").strip()
    folder.ok("run", "app:runner", "--until-idle")
    command = f"{sys.executable} -u -m taskrunner tail {task_id} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["/bin/bash", "-c", command], cwd=folder.path, env=folder.env, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout.count(b"\n"), done.stderr) == (0, 1, b"")


# ── completion, and what is not loaded ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(folder: Folder, shell: str) -> None:
    """`completion SHELL` prints what the shell has to read; it needs no store."""
    assert f"_TASKRUNNER_COMPLETE={shell}_complete" in folder.ok("completion", shell)


def test_a_line_is_completed(folder: Folder) -> None:
    """Commands, options and the values of an option are offered, without a look at the store."""
    for words, offered in {
        "taskrunner ca": "cancel",
        "taskrunner list --sta": "--status",
        "taskrunner list --status fa": "failed",
    }.items():
        env = {"_TASKRUNNER_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert folder.ok(env=env).split() == [f"plain,{offered}"]


HEAVY = {"anyio", "apsw", "asyncio", "msgspec", "sqlite3", "structlog", "tenacity"}


@pytest.mark.parametrize("args", [["--version"], ["--help"]])
def test_the_light_commands_load_nothing_heavy(args: list[str]) -> None:
    """`--version` and `--help` start neither the engine nor the event loop, which is what makes them quick."""
    code = (
        "import json, sys\nfrom taskrunner.cli import main\n"
        f"code = main({args!r})\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY.isdisjoint(json.loads(done.stderr))
