"""Waiting for the death of a supervisor, and judging it from inside containers."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from taskrunner.core.clock import Clock
from taskrunner.core.model import SupervisorRow
from taskrunner.runtime.liveness import Identity, wait_for_death
from taskrunner.storage.bells import folder_of
from tests.unit.processes import owner, python, without_lock

CLOCK = Clock()


@pytest.fixture
def here() -> Identity:
    """Who we are."""
    return Identity.of_this_process(CLOCK)


@pytest.fixture
def folder(db: Path) -> Path:
    """The store's folder."""
    return folder_of(db)


async def end_of(row: SupervisorRow, here: Identity, folder: Path, end: Callable[[], None]) -> tuple[str, float]:
    """Wait for a death that comes while we wait: why, and how long after it we knew."""
    ended = 0.0

    async def soon() -> None:
        nonlocal ended
        await anyio.sleep(0.3)
        ended = time.monotonic()
        end()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(soon)
            reason = await wait_for_death(row, here, folder)
    return reason, time.monotonic() - ended


async def test_a_kill_wakes_whoever_waits(db: Path, here: Identity, folder: Path) -> None:
    """The end of another supervisor's process is known at once, at the latest a second after its SIGKILL (B07)."""
    with owner(db) as other:
        without_lock(other, folder)
        reason, late = await end_of(other.row, here, folder, lambda: other.kill(reap=False))
    assert reason == "its process is gone"
    assert late < 1


async def test_a_kill_is_noticed_where_only_the_lock_is_in_sight(db: Path, here: Identity, folder: Path) -> None:
    """In another container's eyes the process is unknown: its lock is tried every quarter of a second."""
    with owner(db) as other:
        row = replace(other.row, pid_namespace="pid:[1]")
        reason, late = await end_of(row, here, folder, other.kill)
    assert reason == "its lock was released"
    assert late < 1


async def test_without_pidfd_the_death_is_polled(
    db: Path, here: Identity, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel or a sandbox without pidfd: a quarter of a second later it is known all the same."""

    def forbidden(_pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    with owner(db) as other:
        _, late = await end_of(other.row, here, folder, other.kill)
    assert late < 1


async def test_who_is_dead_already_is_not_waited_for(db: Path, here: Identity, folder: Path) -> None:
    """It returns at once."""
    with owner(db) as other:
        other.kill()
        with anyio.fail_after(1):
            assert await wait_for_death(other.row, here, folder) == "its process is gone"


async def test_a_cancelled_wait_closes_what_it_opened(db: Path, here: Identity, folder: Path) -> None:
    """The death of others may never come: the wait can be cancelled, and leaves no descriptor."""
    with owner(db) as other:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no folder is meant
        for _ in range(3):
            with anyio.move_on_after(0.05) as scope:
                await wait_for_death(other.row, here, folder)
            assert scope.cancelled_caught
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - no folder is meant


# ── containers ────────────────────────────────────────────────────────────────────────────────────────────────────────

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.fixture(scope="session")
def containers() -> None:
    """Skip where we may not make namespaces."""
    command = [*CONTAINER, "--mount-proc", "true"]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us unshare a pid namespace")


def in_container(code: str, *args: str | Path, hidden: bool = False) -> str:
    """Run a program as process 1 of a namespace of its own; `hidden`: with the /proc of its parent."""
    proc = () if hidden else ("--mount-proc",)
    return python(HELPERS + code, *args, command=(*CONTAINER, *proc))


HELPERS = f"""
import json, os, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import Identity, OwnLock, judge
from taskrunner.storage.bells import folder_of
from tests.unit.processes import ours, owner, row_of, without_lock
db, here = Path(sys.argv[1]), Identity.of_this_process(Clock())
"""


def test_process_1_after_a_restart_of_its_container_is_another(db: Path, containers: None) -> None:
    """Same host name, same pid 1, killed and started again: the old one is dead, the new one alive (B08)."""
    with owner(db, command=(*CONTAINER, "--mount-proc")) as first:
        assert first.row.pid == 1
    assert first.row.pid == 1
    told = json.dumps({name: getattr(first.row, name) for name in ("lock_name", *Identity.__dataclass_fields__)})
    code = """
dead = row_of(json.loads(sys.argv[2]))
mine = OwnLock.take(db, Clock().new_id())
print(os.getpid(), judge(dead, here, folder_of(db)), judge(ours(here, mine), here, folder_of(db)), sep="|")
"""
    pid, old, new = in_container(code, db, told).split("|")
    assert pid == "1"
    assert old in {"its lock was released", "its process is gone"}
    assert new == "None"


def test_a_stranger_with_the_recycled_pid_survives(db: Path, containers: None) -> None:
    """An unrelated program gets the dead supervisor's pid: the supervisor is dead, the program is left alone (B08)."""
    code = """
with owner(db) as dead:
    dead.kill()
    without_lock(dead, folder_of(db))
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not last.exists():
        sys.exit(print("no ns_last_pid"))
    last.write_text(str(dead.row.pid - 1))
    time.sleep(0.05)  # a start time is counted in hundredths of a second
    sleeper = subprocess.Popen(["sleep", "60"])
    assert sleeper.pid == dead.row.pid, (sleeper.pid, dead.row.pid)
    print(judge(dead.row, here, folder_of(db)), sleeper.poll())
    sleeper.kill()
    sleeper.wait()
"""
    said = in_container(code, db)
    if said == "no ns_last_pid":
        pytest.skip("this kernel does not let us choose a pid")
    assert said.startswith("its process")
    assert said.endswith("is gone None")


def test_a_proc_of_another_namespace_proves_nothing(db: Path, containers: None) -> None:
    """With its parent's /proc a container reads of strangers under the pids of its own: nobody is called dead by it."""
    code = """
with owner(db) as other:
    print(os.readlink("/proc/self") != str(os.getpid()), judge(other.row, here, folder_of(db)))
    without_lock(other, folder_of(db))
    print(judge(other.row, here, folder_of(db)), judge(replace(other.row, pid=1), here, folder_of(db)))
"""
    assert in_container(code, db, hidden=True).split() == ["True", "None", "None", "None"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_hidden_processes_are_not_called_gone(db: Path, containers: None) -> None:
    """With `hidepid` /proc shows no processes of others: one that lives is not called gone, one that is gone is."""
    code = """
if subprocess.run(["mount", "-o", "remount,hidepid=2", "/proc"]).returncode:
    sys.exit(print("no hidepid"))
with owner(db) as other:
    without_lock(other, folder_of(db))
    sleeper = subprocess.Popen(["sleep", "60"])
    sleeper.kill()
    sleeper.wait()
    if (child := os.fork()) == 0:
        os.setgid(65534)
        os.setuid(65534)
        print(Path("/proc", str(other.row.pid)).exists(), judge(other.row, here, folder_of(db)))
        print(judge(replace(other.row, pid=sleeper.pid), here, folder_of(db)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
    said = in_container(code, db)
    if said == "no hidepid":
        pytest.skip("this machine cannot hide processes")
    first, second = said.splitlines()
    assert first == "False None"
    assert second.startswith("its process")
