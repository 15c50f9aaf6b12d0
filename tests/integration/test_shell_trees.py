"""`shell.run`: whatever ends a program, nothing of it is left running."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from taskrunner import StepFailed, TaskCancelled, TaskContext, TaskRunner
from taskrunner.workers.shell import Command, CommandFailed, execute, run
from tests.integration.commands import Folder, wait_until
from tests.integration.machine import EffectLog, ended, program, until
from tests.integration.test_shell import ROOT, result_of, said, shell

TREE = ["sh", "-c", "sleep 60 & echo $! $$; wait"]
"""A program with a child of its own; it prints the numbers of both."""

FORKS_A_CHILD = """
from taskrunner.workers.shell import tasks
runner.include(tasks)

@runner.task
async def fork():
    if (child := os.fork()) == 0:
        for number in range(3):
            os.close(number)
        time.sleep(5)
        os._exit(0)
    return child

anyio.run(runner.run)
"""


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def processes_of(runner: TaskRunner, task_id: str) -> list[int]:
    """The numbers that TREE has printed, by the task's progress message."""
    await until(lambda: said(runner, task_id))
    return [int(word) for word in (await runner.tasks.get(task_id)).progress_message.split()]


async def test_a_timeout_ends_the_whole_tree(db: Path) -> None:
    """B36: the program and its children are gone after `timeout`, and the result says so, with all that was written."""
    found = await result_of(shell(db), TREE, timeout=0.3)
    assert (found.timed_out, found.exit_code, found.signal) == (True, None, "SIGTERM")
    pids = [int(word) for word in found.stdout.split()]
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


async def test_who_ignores_sigterm_is_killed(db: Path) -> None:
    """After `kill_after` SIGKILL ends what SIGTERM did not; with `check` a timeout is an error."""
    runner = shell(db)
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; sleep 60; sleep 60"]
    found = await result_of(runner, stubborn, timeout=0.3, kill_after=0.2)
    assert (found.timed_out, found.signal, found.stdout) == (True, "SIGKILL", "ready\n")
    command = Command(argv=["sleep", "60"], timeout=0.1, check=True)

    @runner.task(max_retries=0)
    async def checked(ctx: TaskContext) -> None:
        with pytest.raises(StepFailed) as failed:
            await ctx.step("sleep", execute, command)
        assert isinstance(failed.value.__cause__, CommandFailed)
        raise failed.value

    task = await ended(runner, checked.bind())
    assert "'sleep' was ended after 0.1" in (task.error_message or "")


async def test_a_cancel_ends_the_whole_tree(db: Path) -> None:
    """A cancelled task's program is gone, with its children, when the task is cancelled."""
    runner = shell(db)
    async with runner.working():
        handle = await run.enqueue(TREE)
        pids = await processes_of(runner, handle.id)
        assert all(is_running(pid) for pid in pids)
        await handle.cancel()
        with pytest.raises(TaskCancelled):
            await handle.result(timeout=5)
        await until(lambda: not any(is_running(pid) for pid in pids))


async def test_a_stop_ends_the_whole_tree(db: Path) -> None:
    """A supervisor that stops hands the task back unharmed, and leaves nothing of its program."""
    runner = shell(db, grace=0.2)
    async with runner:
        async with runner.working():
            handle = await run.enqueue(TREE)
            pids = await processes_of(runner, handle.id)
        assert not any(is_running(pid) for pid in pids)
        task = await handle.task()
    assert (task.status, task.retry_count, task.losses) == ("pending", 0, 0)


async def test_the_death_of_the_worker_ends_the_whole_tree(db: Path, tmp_path: Path) -> None:
    """B36: after kill -9 of the worker its program and the program's children are gone, and the task runs again.

    A child that another task has forked meanwhile, and that lives on, does not hide the worker's death.
    """
    log = EffectLog(tmp_path / "effects")
    code = FORKS_A_CHILD
    runner = shell(db)
    async with runner:
        handle = await run.enqueue([*TREE[:2], f"echo begun >> {log.path}; {TREE[2]}"])
        with program(db, log, code) as worker:
            pids = await processes_of(runner, handle.id)
            forked = await (await runner.enqueue("fork")).result(timeout=5)
            worker.kill(signal.SIGKILL)
            worker.wait()
            await until(lambda: not any(is_running(pid) for pid in pids))
            assert is_running(forked)
            os.kill(forked, signal.SIGKILL)
        async with runner.working():
            await until(lambda: len(log.lines()) == 2)
            await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result(timeout=5)


def test_a_supervisor_that_stops_waits_for_no_program(tmp_path: Path) -> None:
    """B36: it ends in its time, though a program ignores SIGTERM for longer; that one's guard sees it to its end."""
    (tmp_path / "workers").symlink_to(ROOT / "workers")
    folder = Folder.make(tmp_path)
    argv = json.dumps(["sh", "-c", "trap '' TERM; echo $$; while :; do sleep 0.1; done"])
    task_id = folder.ok("enqueue", "shell.run", f"argv={argv}", "kill_after=1.8").strip()
    with folder.started("run", "workers.shell:runner", "--grace", "0.1") as supervisor:
        wait_until(lambda: folder.json("show", task_id)["task"]["progress_message"] != "")
        pid = int(folder.json("show", task_id)["task"]["progress_message"])
        began = time.monotonic()
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(10) == 0
        assert time.monotonic() - began < 0.1 + 2
        wait_until(lambda: not is_running(pid))
    task = folder.json("show", task_id)["task"]
    assert (task["status"], task["retry_count"], task["losses"]) == ("pending", 0, 0)


def test_programs_of_child_processes(tmp_path: Path) -> None:
    """B36: the same in a child process, and the death of the child or of the supervisor ends the whole tree."""
    (tmp_path / "workers").symlink_to(ROOT / "workers")
    folder = Folder.make(tmp_path)
    first = folder.ok("enqueue", "shell.run", 'argv=["sleep", "60"]', "timeout=0.2", "check=false").strip()
    with folder.started("run", "workers.shell:runner", "--processes", "1") as supervisor:
        wait_until(lambda: folder.json("show", first)["task"]["status"] == "completed")
        ended = folder.json("show", first)["task"]["output"]
        assert (ended["timed_out"], ended["signal"]) == (True, "SIGTERM")
        tree = folder.ok("enqueue", "shell.run", f"argv={json.dumps(TREE)}").strip()
        seen: set[str] = set()
        for kill in (child_of, lambda pid: pid):
            wait_until(lambda: folder.json("show", tree)["task"]["progress_message"] not in {"", *seen})
            said = folder.json("show", tree)["task"]["progress_message"]
            seen.add(said)
            pids = [int(word) for word in said.split()]
            assert all(is_running(pid) for pid in pids)
            os.kill(kill(supervisor.pid), signal.SIGKILL)
            wait_until(lambda pids=pids: not any(is_running(pid) for pid in pids))  # type: ignore[misc]
        supervisor.wait()


def child_of(pid: int) -> int:
    """The one child of a process."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return int(child)


async def test_what_a_program_leaves_running_is_ended(db: Path) -> None:
    """A program that ends and leaves a child with its output does not hold the task up, and the child is gone."""
    found = await result_of(shell(db), ["sh", "-c", "sleep 60 & echo $!"])
    assert found.exit_code == 0
    assert found.seconds < 10
    assert not is_running(int(found.stdout))


async def test_a_daemon_does_not_hold_the_task_up(db: Path) -> None:
    """What has left the process group lives on, as the docstring says, but its hold on the output holds up nobody."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid, flush=True)"
    found = await result_of(shell(db), [sys.executable, "-W", "ignore", "-c", code])
    pid = int(found.stdout)
    try:
        assert is_running(pid)
        assert found.seconds < 10
    finally:
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # where we are the one that orphans are given to
            os.waitpid(pid, 0)
