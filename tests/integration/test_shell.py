"""`shell.run`: a program as a durable task, and that nothing of it is left running."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import InvalidInput, Retry, TaskContext, TaskRunner
from taskrunner.workers.shell import Command, Finished, Kept, execute, run, tasks
from tests.integration.commands import Folder
from tests.integration.machine import ended, quick, until

ROOT = Path(__file__).resolve().parents[2]


def shell(db: Path, **settings: Any) -> TaskRunner:  # noqa: ANN401 - each setting's own type
    """A runner that knows `shell.run`."""
    runner = quick(db, **settings)
    runner.include(tasks)
    return runner


async def result_of(runner: TaskRunner, argv: list[str], **arguments: Any) -> Finished:  # noqa: ANN401 - as in `run`
    """What comes of a program."""
    async with runner.working():
        return await (await run.enqueue(argv, **arguments)).result(timeout=15)


async def said(runner: TaskRunner, task_id: str) -> bool:
    """Whether the task has a progress message."""
    return (await runner.tasks.get(task_id)).progress_message != ""


# ── what comes back ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_how_it_ended_and_what_it_wrote(db: Path) -> None:
    """An exit code that is not 0 is a result, beside both outputs and the time that it took."""
    found = await result_of(shell(db), ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (found.exit_code, found.signal, found.timed_out) == (3, None, False)
    assert (found.stdout, found.stderr) == ("out\n", "err\n")
    assert (found.stdout_bytes, found.stdout_truncated, found.stderr_truncated) == (4, False, False)
    assert 0 < found.seconds < 10


async def test_a_signal_is_a_result(db: Path) -> None:
    """A program that a signal ends has no exit code, and the signal's name."""
    found = await result_of(shell(db), ["sh", "-c", "kill -SEGV $$"])
    assert (found.exit_code, found.signal) == (None, "SIGSEGV")


async def test_nothing_is_expanded(db: Path) -> None:
    """Arguments reach the program as they are: there is no shell."""
    words = ["$HOME", "*", "a b", "; echo x", "`id`", ""]
    found = await result_of(shell(db), ["printf", "%s|", *words])
    assert found.stdout == "".join(f"{word}|" for word in words)


async def test_its_environment_is_what_it_was_given(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's keys are not the program's: it gets four harmless variables, and what the task names."""
    monkeypatch.setenv("API_KEY", "secret")
    runner = shell(db)
    given = await result_of(runner, ["env"], env={"COLOUR": "red"})
    names = {line.partition("=")[0] for line in given.stdout.splitlines()}
    assert {"PATH", "COLOUR"} <= names <= {"PATH", "HOME", "LANG", "TZ", "COLOUR"}
    asked = await result_of(runner, ["env"], inherit=["API_KEY", "NOT_SET"])
    assert asked.stdout == "API_KEY=secret\n"


async def test_its_folder_and_its_input(db: Path, tmp_path: Path) -> None:
    """It runs in `cwd`, and reads nothing: its input is at its end at once."""
    found = await result_of(shell(db), ["sh", "-c", "pwd; cat"], cwd=str(tmp_path))
    assert found.stdout == f"{tmp_path}\n"


async def test_much_output_is_cut_and_takes_no_memory(db: Path) -> None:
    """Of 100 MB the beginning and the end are kept, the rest is counted, and the worker does not grow with it."""
    code = "import os; [os.write(1, b'x' * 65536) for _ in range(1600)]; os.write(1, b'the end')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = await result_of(shell(db), [sys.executable, "-c", code], keep=1_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found.stdout_bytes == 1600 * 65536 + 7
    assert found.stdout_truncated
    assert found.stdout.startswith("x" * 500 + "\n[… 104,856,607 bytes left out …]\nx")
    assert found.stdout.endswith("xthe end")
    assert len(found.stdout) < 1_100
    assert grown < 32 * 1024  # KiB


async def test_bytes_that_are_no_text(db: Path) -> None:
    """Every byte there is comes back as text, with U+FFFD for what is no UTF-8; the worst fits into a result."""
    code = "import os; os.write(1, bytes(range(256))); os.write(2, bytes(80_000))"
    found = await result_of(shell(db), [sys.executable, "-c", code], keep=80_000)
    assert found.stdout == bytes(range(256)).decode("utf-8", "replace")
    assert found.stderr == "\0" * 80_000
    assert not found.stderr_truncated


async def test_its_last_line_is_the_progress_message(db: Path) -> None:
    """While it runs, `list` and `show` say what it wrote last."""
    runner = shell(db)
    async with runner.working():
        handle = await run.enqueue(["sh", "-c", "echo one; echo two; sleep 60"])
        await until(lambda: said(runner, handle.id))
        assert (await handle.task()).progress_message == "two"
        await handle.cancel()


# ── once, and again ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_recorded_program_is_not_run_again(db: Path, tmp_path: Path) -> None:
    """It is a step: an attempt that follows has its recorded result, also as a step of one's own task."""
    runner = shell(db)
    log = tmp_path / "log"

    @runner.task(wait=0.01)
    async def build(ctx: TaskContext) -> int | None:
        made = await ctx.step("make", execute, Command(argv=["sh", "-c", f"echo made >> {log}"]))
        if ctx.attempt == 1:
            raise Retry(after=0)
        return made.exit_code

    task = await ended(runner, build.bind())
    assert (task.status, task.attempt, task.output) == ("completed", 2, 0)
    assert log.read_text(encoding="utf-8") == "made\n"


async def test_check_makes_an_exit_code_an_error(db: Path, tmp_path: Path) -> None:
    """With `check` a program that fails is run again, and at last the task says how it ended, with its last words."""
    log = tmp_path / "log"
    runner = shell(db)
    argv = ["sh", "-c", f"echo tried >> {log}; echo 'no space' >&2; exit 4"]
    async with runner.working():
        handle = await run.options(max_retries=1).enqueue(argv, check=True)
        await until(lambda: has_ended(runner, handle.id))
        task = await handle.task()
    assert (task.status, task.retry_count) == ("failed", 1)
    assert "'sh' ended with exit code 4: no space" in (task.error_message or "")
    assert log.read_text(encoding="utf-8") == "tried\n" * 2


async def has_ended(runner: TaskRunner, task_id: str) -> bool:
    """Whether the task has come to its end."""
    return (await runner.tasks.get(task_id)).status not in {"pending", "running"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"argv": ["no-such-program"]}, "argv[0]='no-such-program': it cannot be run (No such file or directory)"),
        ({"argv": ["/etc/passwd"]}, "argv[0]='/etc/passwd': it cannot be run (Permission denied)"),
        ({"argv": ["true"], "cwd": "/nowhere"}, "cwd='/nowhere': it cannot be run there (No such file or directory)"),
    ],
)
async def test_what_cannot_be_run_fails_once(db: Path, arguments: dict[str, Any], sentence: str) -> None:
    """A program or a folder that is not there fails the task at once, with one sentence: no retry would help."""
    task = await ended(shell(db), run.bind(**arguments))
    assert (task.status, task.attempt, task.retry_count) == ("failed", 1, 0)
    assert (task.error_message or "").endswith(sentence)


WRONG: list[tuple[Mapping[str, Any], str]] = [
    ({"argv": []}, "argv=[]: the name of a program is wanted"),
    ({"argv": [""]}, "argv=['']: the name of a program is wanted"),
    ({"argv": ["a\0b"]}, "argv=['a\\x00b']: U+0000 cannot be handed to a program"),
    ({"cwd": "a\0b"}, "cwd=['a\\x00b']: U+0000 cannot be handed to a program"),
    ({"env": {"A": "\0"}}, "env=['A', '\\x00']: U+0000 cannot be handed to a program"),
    ({"env": {"A=B": "C"}}, "env=['A=B']: a variable's name is not empty and has no ="),
    ({"timeout": 0.0}, "timeout=0.0: it must be more than 0 seconds"),
    ({"kill_after": -1.0}, "kill_after=-1.0: it must be from 0 to 3,600 seconds"),
    ({"keep": 80_001}, "keep=80001: it must be from 0 to 80,000 bytes"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_bad_arguments_are_refused(arguments: Mapping[str, Any], sentence: str) -> None:
    """One sentence names the value and the rule."""
    with pytest.raises(InvalidInput) as refused:
        Command(**{"argv": ["true"], **arguments})
    assert str(refused.value) == sentence


def test_what_is_kept_of_a_stream() -> None:
    """All of it up to `keep` bytes; then its beginning and its end, however it was cut into pieces."""
    for size in (1, 3, 7, 100):
        kept = Kept(7)
        for start in range(0, 26, size):
            kept.add(b"abcdefghijklmnopqrstuvwxyz"[start : start + size])
        assert (kept.text, kept.total) == ("abcd\n[… 19 bytes left out …]\nxyz", 26)
    kept = Kept(7)
    kept.add(b"abcdefg")
    assert (kept.text, kept.left_out) == ("abcdefg", 0)
    nothing = Kept(0)
    nothing.add(b"abc")
    assert nothing.text == "\n[… 3 bytes left out …]\n"


async def test_many_at_once(db: Path) -> None:
    """Programs run beside each other, and each has its own output."""
    runner = shell(db)
    async with runner.working(concurrency=20):
        handles = [await run.enqueue(["sh", "-c", f"sleep 0.2; echo {number}"]) for number in range(20)]
        with anyio.fail_after(15):
            assert [(await each.result()).stdout for each in handles] == [f"{number}\n" for number in range(20)]


def test_the_deployable_app(tmp_path: Path) -> None:
    """`taskrunner run workers.shell:runner` runs a program that the command line has enqueued."""
    (tmp_path / "workers").symlink_to(ROOT / "workers")
    folder = Folder.make(tmp_path)
    task_id = folder.ok("enqueue", "shell.run", 'argv=["echo", "hello"]', "check=true").strip()
    folder.ok("run", "workers.shell:runner", "--until-idle")
    task = folder.json("show", task_id)["task"]
    assert (task["status"], task["output"]["stdout"]) == ("completed", "hello\n")
