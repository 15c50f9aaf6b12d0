"""Is a supervisor dead? With real processes, killed, forked, replaced and hidden."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner.core.clock import Clock
from taskrunner.core.errors import StoreError
from taskrunner.core.model import SupervisorRow
from taskrunner.runtime import liveness
from taskrunner.runtime.liveness import Identity, OwnLock, folder_of, judge, parse_stat, remove_locks, wait_for_death

CLOCK = Clock()
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)

OWNER = """
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import Identity, OwnLock
clock = Clock()
lock = OwnLock.take(Path(sys.argv[1]), clock.new_id())
if "fork" in sys.argv and os.fork() == 0:
    os.setsid()
    time.sleep(3)
    os._exit(0)
if "fork in C" in sys.argv:  # which runs none of Python's own handlers
    import ctypes
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(3)
        os._exit(0)
print(json.dumps({"lock_name": lock.name, **asdict(Identity.of_this_process(clock))}), flush=True)
if "release" in sys.argv:
    sys.stdin.readline()
    lock.release(keep_file=True)
    print("released", flush=True)
sys.stdin.readline()
lock.release()
"""


def row_of(told: dict[str, Any]) -> SupervisorRow:
    """A supervisor's row, by what it told of itself."""
    return SupervisorRow(
        id=told["lock_name"].removesuffix(".lock"),
        expires_at=0,
        started_at=LONG_AGO,
        beat_at=LONG_AGO,
        ended_at=None,
        ended_how=None,
        **told,
    )


class Owner:
    """A process that holds a supervisor's lock."""

    def __init__(self, db: Path, *options: str, command: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", OWNER, str(db), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.row = row_of(json.loads(self.process.stdout.readline()))

    def say(self) -> None:
        """Let it go on."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """What it says."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def kill(self, *, reap: bool = True) -> None:
        """End it with SIGKILL; unless `reap`, it stays a zombie."""
        self.process.kill()
        if reap:
            self.process.wait()
        else:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        """Leave nothing of it."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@contextmanager
def owner(db: Path, *options: str, command: tuple[str, ...] = ()) -> Iterator[Owner]:
    """Run a process that holds a supervisor's lock."""
    started = Owner(db, *options, command=command)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture
def here() -> Identity:
    """Who we are."""
    return Identity.of_this_process(CLOCK)


@pytest.fixture
def folder(db: Path) -> Path:
    """The store's folder."""
    return folder_of(db)


def ours(here: Identity, lock: OwnLock) -> SupervisorRow:
    """A row of this very process."""
    names = ("boot_id", "pid", "pid_namespace", "start_time", "host")
    return row_of({"lock_name": lock.name, **{name: getattr(here, name) for name in names}})


# ── identity ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [b"python", b"a b", b") Z 1 (", b"(((", b")\n)", b"\xff\xfe"])
def test_a_process_may_be_called_anything(name: bytes) -> None:
    """A name with brackets, blanks or newlines does not make a living process a zombie, nor another one."""
    rest = b"S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 7 0 123456 1000000 300 18446744073709551615 1 1 0\n"
    assert parse_stat(b"42 (" + name + b") " + rest) == liveness.ProcessStat(state="S", threads=7, start_time=123456)


@pytest.mark.parametrize(
    ("state", "threads", "dead"), [("Z", 1, True), ("X", 0, True), ("Z", 3, False), ("S", 1, False), ("T", 1, False)]
)
def test_a_zombie_is_dead_and_a_stopped_process_is_not(state: str, threads: int, dead: bool) -> None:
    """A zombie whose other threads go on is alive: its main thread alone has ended."""
    assert liveness.ProcessStat(state, threads, 1).is_dead is dead


def test_our_identity_is_that_of_this_process(here: Identity) -> None:
    """Pid, boot and namespace are the system's; the start time lies before now and after the boot."""
    assert here.pid == os.getpid()
    assert here.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert here.pid_namespace.startswith("pid:[")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert 0 < here.start_time <= uptime * os.sysconf("SC_CLK_TCK") + 1
    assert here == Identity.of_this_process(CLOCK)


def test_without_proc_the_identity_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc, as on macOS, the pid proves nothing, and the lock and the lease are left."""

    def no_proc(_pid: object) -> liveness.ProcessStat:
        raise FileNotFoundError

    monkeypatch.setattr(liveness, "_stat_of", no_proc)
    found = Identity.of_this_process(CLOCK)
    assert (found.start_time, found.pid_namespace) == (0, "")


# ── our own lock ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_lock_stands_in_a_private_folder_and_leaves_nothing(db: Path, folder: Path) -> None:
    """The folder is 0700, the file 0600; each release removes its file, the last one the folder."""
    first, second = OwnLock.take(db, CLOCK.new_id()), OwnLock.take(db, CLOCK.new_id())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()] == [0o600, 0o600]
    first.release()
    first.release()
    assert [path.name for path in folder.iterdir()] == [second.name]
    second.release()
    assert not folder.exists()


def test_a_lock_that_cannot_be_made_is_one_sentence(db: Path, folder: Path, tmp_path: Path) -> None:
    """A file in the folder's place, a missing parent, a link to nowhere: the sentence names the lock's file."""
    folder.touch()
    with pytest.raises(StoreError, match=r"agent\.db\.d/one\.lock: .*Not a directory"):
        OwnLock.take(db, "one")
    with pytest.raises(StoreError, match="No such file"):
        OwnLock.take(tmp_path / "missing" / "agent.db", "one")
    folder.unlink()
    folder.symlink_to("nowhere")
    with pytest.raises(StoreError, match="its folder cannot be made or goes away"):
        OwnLock.take(db, "one")


def test_locks_are_taken_while_others_clean_up(db: Path, folder: Path) -> None:
    """Processes start, stop and clean up at the same time: each gets its lock, and nothing is left."""
    code = """
import sys
from pathlib import Path
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import OwnLock, folder_of, remove_locks
db = Path(sys.argv[1])
for _ in range(300):
    lock = OwnLock.take(db, Clock().new_id())
    assert lock.path.exists()
    remove_locks(folder_of(db), ())
    assert lock.path.exists()
    lock.release()
"""
    processes = [subprocess.Popen([sys.executable, "-c", code, str(db)]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert not folder.exists()


def test_what_the_dead_left_is_removed_once_their_rows_have_ended(db: Path, folder: Path) -> None:
    """A killed supervisor's file stays while its row is alive: it proves the death. A living one's always stays."""
    mine = OwnLock.take(db, CLOCK.new_id())
    with owner(db) as dead:
        dead.kill()
    (folder / "notes.txt").touch()
    remove_locks(folder, [mine.name, dead.row.lock_name])
    assert len(list(folder.iterdir())) == 3
    remove_locks(folder, [mine.name])
    assert {path.name for path in folder.iterdir()} == {mine.name, "notes.txt"}
    remove_locks(folder, [])
    assert {path.name for path in folder.iterdir()} == {mine.name, "notes.txt"}
    (folder / "notes.txt").unlink()
    mine.release()
    remove_locks(folder, [])
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
def test_root_leaves_a_folder_that_the_owner_of_the_database_can_use(db: Path, folder: Path) -> None:
    """A supervisor that was once started as root does not lock out the database's own user."""
    db.touch()
    os.chown(db, 65_534, 65_534)
    lock = OwnLock.take(db, CLOCK.new_id())
    assert (folder.stat().st_uid, folder.stat().st_gid) == (65_534, 65_534)
    lock.release()


# ── judgement ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def without_lock(owner: Owner, folder: Path) -> None:
    """Take away what the lock can tell."""
    (folder / owner.row.lock_name).unlink()


def test_a_living_supervisor_is_not_dead(db: Path, here: Identity, folder: Path) -> None:
    """Neither another process nor our own, running or stopped, with its lock in sight or not."""
    lock = OwnLock.take(db, CLOCK.new_id())
    assert judge(ours(here, lock), here, folder) is None
    with owner(db) as other:
        assert judge(other.row, here, folder) is None
        other.process.send_signal(signal.SIGSTOP)
        assert judge(other.row, here, folder) is None
        without_lock(other, folder)
        assert judge(other.row, here, folder) is None
    lock.release()


@pytest.mark.parametrize("reap", [True, False])
def test_a_killed_supervisor_is_dead_at_once(db: Path, here: Identity, folder: Path, reap: bool) -> None:
    """By its process alone and by its lock alone, whether its parent has waited for it or not (B07)."""
    with owner(db) as dead:
        dead.kill(reap=reap)
        gone = f"its process {dead.row.pid} is gone"
        assert judge(dead.row, here, folder) == gone
        assert judge(replace(dead.row, pid_namespace="pid:[1]"), here, folder) == "its lock was released"
        without_lock(dead, folder)
        assert judge(dead.row, here, folder) == gone
        assert judge(replace(dead.row, pid_namespace="pid:[1]"), here, folder) is None


def test_a_recycled_pid_is_not_the_supervisor(db: Path, here: Identity, folder: Path) -> None:
    """A stranger has its pid: the start time tells; without one, the pid alone proves nothing (B08)."""
    with owner(db) as other:
        without_lock(other, folder)
        recycled = replace(other.row, start_time=other.row.start_time - 1)
        assert judge(recycled, here, folder) == f"its process {other.row.pid} is gone"
        assert judge(replace(other.row, start_time=0), here, folder) is None
        assert other.process.poll() is None


@pytest.mark.parametrize("pid", [0, -1, 2**31, 2**63 - 1])
def test_a_row_that_no_process_can_have_written_proves_nothing(
    db: Path, here: Identity, folder: Path, pid: int
) -> None:
    """A damaged row kills nobody, and signals nobody."""
    lock = OwnLock.take(db, CLOCK.new_id())
    row = replace(ours(here, lock), pid=pid)
    assert judge(row, here, folder) is None
    for name in ("", "..", "../agent.db", "/etc/passwd", "a\x00.lock", "none.lock"):
        assert judge(replace(row, lock_name=name), here, folder) is None
    lock.release()


def test_a_restart_of_the_machine_ends_every_supervisor(db: Path, here: Identity, folder: Path) -> None:
    """Another boot id is proof, an unknown one is not; and a lock that is held is held by a process of this boot."""
    with owner(db) as other:
        another = replace(other.row, boot_id="00000000-0000-4000-8000-000000000000")
        assert judge(another, here, folder) is None  # a container with a boot id of its own
        without_lock(other, folder)
        assert judge(another, here, folder) == "the machine was restarted"
        assert judge(replace(other.row, boot_id="", start_time=1), here, folder) is None
        assert judge(replace(other.row, start_time=1), replace(here, boot_id=""), folder) is None


def test_a_released_lock_is_the_end_of_a_supervisor_in_a_living_process(db: Path, here: Identity, folder: Path) -> None:
    """An embedded supervisor that has stopped without ending its row: the process goes on, its lock tells."""
    with owner(db, "release") as other:
        assert judge(other.row, here, folder) is None
        other.say()
        assert other.hear() == "released"
        assert judge(other.row, here, folder) == "its lock was released"


def test_a_forked_child_does_not_keep_its_supervisor_alive(db: Path, here: Identity, folder: Path) -> None:
    """Python's fork closes the child's copy of the lock, so that the kill of the parent releases it."""
    with owner(db, "fork") as dead:
        dead.kill()
        assert judge(replace(dead.row, pid_namespace="pid:[1]"), here, folder) == "its lock was released"


def test_a_child_forked_in_c_keeps_the_lock_and_proves_nothing(db: Path, here: Identity, folder: Path) -> None:
    """Such a child inherits the lock: for those who can see only the lock its supervisor is alive, for others dead."""
    with owner(db, "fork in C") as dead:
        dead.kill()
        assert judge(dead.row, here, folder) == f"its process {dead.row.pid} is gone"
        assert judge(replace(dead.row, pid_namespace="pid:[1]"), here, folder) is None
        without_lock(dead, folder)


def test_a_child_of_ours_leaves_our_lock_alone(db: Path, here: Identity, folder: Path) -> None:
    """A forked child that exits, or that calls `release` on what it inherited, neither unlocks nor removes the lock."""
    code = """
import os, sys
from pathlib import Path
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import OwnLock, folder_of
lock = OwnLock.take(Path(sys.argv[1]), "one")
if (child := os.fork()) == 0:
    lock.release()
    print(sum("one.lock" in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(lock.path.exists())
inode = ":" + str(lock.path.stat().st_ino)
print(sum("FLOCK" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()))
lock.release()
"""
    done = subprocess.run([sys.executable, "-c", code, db], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True", "1"]


# ── waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert reason == f"its process {other.row.pid} is gone"
    assert late < 1


async def test_a_kill_is_noticed_where_only_the_lock_is_in_sight(db: Path, here: Identity, folder: Path) -> None:
    """In another container's eyes the process is unknown: its lock is tried every quarter of a second."""
    with owner(db) as other:
        row = replace(other.row, pid_namespace="pid:[1]")
        reason, late = await end_of(row, here, folder, other.kill)
    assert reason == "its lock was released"
    assert late < 1


async def test_a_released_lock_wakes_whoever_waits_for_the_process(db: Path, here: Identity, folder: Path) -> None:
    """The process lives on, its supervisor does not: the lock is looked at every second."""
    with owner(db, "release") as other:
        reason, late = await end_of(other.row, here, folder, other.say)
    assert reason == "its lock was released"
    assert late < 2


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
            assert await wait_for_death(other.row, here, folder) == f"its process {other.row.pid} is gone"


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
    command = [*CONTAINER, *proc, sys.executable, "-c", HELPERS + code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HELPERS = f"""
import os, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_liveness import *
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
    assert old in {"its lock was released", "its process 1 is gone"}
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
