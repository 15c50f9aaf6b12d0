"""Is a supervisor dead? With real processes, killed, forked and replaced."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from taskrunner.core.clock import Clock
from taskrunner.core.errors import StoreError
from taskrunner.runtime import proc
from taskrunner.runtime.liveness import Identity, OwnLock, judge, remove_locks
from taskrunner.runtime.proc import parse_stat
from taskrunner.storage.bells import folder_of
from tests.unit.processes import ours, owner, python, without_lock

CLOCK = Clock()


@pytest.fixture
def here() -> Identity:
    """Who we are."""
    return Identity.of_this_process(CLOCK)


@pytest.fixture
def folder(db: Path) -> Path:
    """The store's folder."""
    return folder_of(db)


# ── identity ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [b"python", b"a b", b") Z 1 (", b"(((", b")\n)", b"\xff\xfe"])
def test_a_process_may_be_called_anything(name: bytes) -> None:
    """A name with brackets, blanks or newlines does not make a living process a zombie, nor another one."""
    rest = b"S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 7 0 123456 1000000 300 18446744073709551615 1 1 0\n"
    assert parse_stat(b"42 (" + name + b") " + rest) == proc.ProcessStat(state="S", threads=7, start_time=123456)


@pytest.mark.parametrize(
    ("state", "threads", "dead"), [("Z", 1, True), ("X", 0, True), ("Z", 3, False), ("S", 1, False), ("T", 1, False)]
)
def test_a_zombie_is_dead_and_a_stopped_process_is_not(state: str, threads: int, dead: bool) -> None:
    """A zombie whose other threads go on is alive: its main thread alone has ended."""
    assert proc.ProcessStat(state, threads, 1).is_dead is dead


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

    def no_proc(_pid: object) -> proc.ProcessStat:
        raise FileNotFoundError

    monkeypatch.setattr(proc, "_stat_of", no_proc)
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
from taskrunner.runtime.liveness import OwnLock, remove_locks
from taskrunner.storage.bells import folder_of
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
    """A killed one's lock and bell stay while its row is alive: they prove the death. A living one's always stay."""
    mine = OwnLock.take(db, CLOCK.new_id())
    with owner(db) as dead:
        dead.kill()
    bells = [Path(lock).with_suffix(".bell").name for lock in (mine.name, dead.row.lock_name)]
    for bell in (*bells, "one that has no lock.bell", "notes.txt"):
        (folder / bell).touch()
    remove_locks(folder, [mine.name, dead.row.lock_name])
    there = {mine.name, dead.row.lock_name, *bells, "notes.txt"}
    assert {path.name for path in folder.iterdir()} == there
    there -= {dead.row.lock_name, bells[1]}
    remove_locks(folder, [mine.name])
    assert {path.name for path in folder.iterdir()} == there
    remove_locks(folder, [])
    assert {path.name for path in folder.iterdir()} == there
    for each in ("notes.txt", bells[0]):
        (folder / each).unlink()
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
        gone = "its process is gone"
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
        assert judge(recycled, here, folder) == "its process is gone"
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
        assert judge(dead.row, here, folder) == "its process is gone"
        assert judge(replace(dead.row, pid_namespace="pid:[1]"), here, folder) is None
        without_lock(dead, folder)


def test_a_child_of_ours_leaves_our_lock_alone(db: Path, here: Identity, folder: Path) -> None:
    """A forked child that exits, or that calls `release` on what it inherited, neither unlocks nor removes the lock."""
    code = """
import os, sys
from pathlib import Path
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import OwnLock
from taskrunner.storage.bells import folder_of
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
    assert python(code, db).split() == ["0", "True", "1"]
