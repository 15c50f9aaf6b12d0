"""Is a supervisor dead? Proof, not suspicion: what cannot be told is "unknown", and unknown never kills.

A process is known by its boot, its pid namespace, its pid and the tick at which it started, and by an flock that it
holds on a file of its own while it lives. The first are exact and cheap but end at the namespace; the lock reaches
through containers that share the store's folder, but a child that was forked in C may inherit it. So each of them can
prove a death, and none of them life. (Whether a lease has run out is judged by the store.)
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self
from weakref import WeakSet

import anyio

from taskrunner.core.clock import Clock
from taskrunner.core.errors import StoreError
from taskrunner.core.model import SupervisorRow
from taskrunner.storage.bells import folder_of

POLL: Final = 0.25
"""Seconds between two looks at a supervisor whose process cannot be watched."""

_LOCK_NAME = re.compile(r"[\w-]+\.lock")
_PATIENCE = 100  # times that another process may remove our folder under us: more is no coincidence
_LARGEST_PID = 2**31 - 1


# ── who a process is ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What tells one process from every other one. Empty texts and 0 mean unknown."""

    boot_id: str
    pid: int
    pid_namespace: str
    """Within which `pid` and `start_time` mean something: the pid namespace, and the time namespace if there is one."""
    start_time: int
    """In clock ticks since boot: field 22 of /proc/PID/stat."""
    host: str
    """For people; it proves nothing."""

    @classmethod
    def of_this_process(cls, clock: Clock) -> Self:
        """Look at the own process. After a fork the child has to look again."""
        try:
            start_time = _stat_of("self").start_time
            namespace = _namespace()
        except OSError:  # no /proc
            start_time, namespace = 0, ""
        return cls(
            boot_id=clock.boot_id(),
            pid=os.getpid(),
            pid_namespace=namespace,
            start_time=start_time,
            host=socket.gethostname(),
        )


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What we read of /proc/PID/stat (proc(5))."""

    state: str
    threads: int
    start_time: int
    ticks: int = field(default=0, compare=False)
    """Of processor time that it has used."""

    @property
    def is_dead(self) -> bool:
        """A zombie, or about to vanish. One whose main thread alone has ended is a zombie too, and works on."""
        return self.state in {"Z", "X", "x"} and self.threads <= 1


def parse_stat(content: bytes) -> ProcessStat:
    """Read the content of /proc/PID/stat. Its name may hold blanks, brackets and newlines."""
    fields = content[content.rindex(b")") + 1 :].split()
    return ProcessStat(
        state=fields[0].decode(),
        threads=int(fields[17]),
        start_time=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
    )


def _stat_of(pid: int | str) -> ProcessStat:
    return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())


def start_time_of(pid: int) -> int:
    """The tick at which a process started; 0 where that cannot be told."""
    try:
        return _stat_of(pid).start_time
    except OSError:
        return 0


def work_of(pid: int) -> tuple[str, float]:
    """The state of a process (of its main thread), and the processor time that it has used, in seconds."""
    try:
        stat = _stat_of(pid)
    except OSError:
        return "", 0.0
    return stat.state, stat.ticks / os.sysconf("SC_CLK_TCK")


def _namespace() -> str:
    names = [os.readlink("/proc/self/ns/pid")]  # noqa: PTH115 - no file is meant
    with suppress(OSError):  # since Linux 5.6; it shifts the start times that a process sees
        names.append(os.readlink("/proc/self/ns/time"))  # noqa: PTH115 - no file is meant
    return " ".join(names)


# ── the lock ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class OwnLock:
    """The file that a supervisor keeps locked while its process lives: its last breath releases it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor  # -1: released, or left to the parent by a fork
        _own_locks.add(self)

    @property
    def name(self) -> str:
        """What the supervisor's row says, so that others find it."""
        return self.path.name

    @classmethod
    def take(cls, db: Path, supervisor_id: str) -> Self:
        """Create and lock `<db>.d/<supervisor id>.lock`, before the supervisor's row can be read by anybody.

        Raises:
            StoreError: the folder or the file cannot be made or locked.
        """
        path = folder_of(db) / f"{supervisor_id}.lock"
        try:
            for _ in range(_PATIENCE):
                _make_folder(path.parent, db)
                with suppress(FileNotFoundError):  # the last of the others has just removed the folder, or our file
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                    if _lock_at_its_place(descriptor, path):
                        return cls(path, descriptor)
        except OSError as error:
            message = f"{path}: a supervisor cannot make and lock this file ({error.strerror})"
            raise StoreError(message) from error
        message = f"{path}: a supervisor cannot make this file, for its folder cannot be made or goes away"
        raise StoreError(message)

    def release(self, *, keep_file: bool = False) -> None:
        """Unlock and remove the file, and the folder with the last one; again is harmless.

        `keep_file` leaves the unlocked file: the sign for others that this supervisor has gone, for when its row could
        not be ended.
        """
        if self._descriptor < 0:
            return
        if not keep_file:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1
        _own_locks.discard(self)
        with suppress(OSError):
            self.path.parent.rmdir()  # only when it is empty

    def leave_to_parent(self) -> None:
        """Close the copy that a fork has made, without a word to the lock: it belongs to both."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_own_locks: WeakSet[OwnLock] = WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_own_locks):
        lock.leave_to_parent()
    _own_locks.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _make_folder(folder: Path, db: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    if os.geteuid() == 0:  # or the database's own user could not use it after us
        with suppress(OSError):
            owner = db.stat()
            os.chown(folder, owner.st_uid, owner.st_gid)


def _lock_at_its_place(descriptor: int, path: Path) -> bool:
    """Lock our new file; False, and closed, when `remove_locks` of another process took it before it was locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        opened, found = os.fstat(descriptor), path.stat()
    except OSError:
        os.close(descriptor)
        raise
    if (opened.st_dev, opened.st_ino) == (found.st_dev, found.st_ino):
        return True
    os.close(descriptor)
    return False


def remove_locks(folder: Path, living: Collection[str]) -> None:
    """Remove the lock files that nobody holds, their bells, and the folder if it is empty then: what the killed left.

    `living` are the lock names in the rows that have not ended; they stay, as the proof of a death that is yet to be
    found. So does what is locked: its supervisor is alive, and its row is about to be written.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if _LOCK_NAME.fullmatch(path.name) and path.name not in living:
                _remove_if_free(path)
            elif path.suffix == ".bell" and not path.with_suffix(".lock").exists():
                path.unlink(missing_ok=True)  # its lock was made before it, and removed before it
        folder.rmdir()


def _remove_if_free(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            path.with_suffix(".bell").unlink(missing_ok=True)
        finally:
            os.close(descriptor)


# ── the judgement ─────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(row: SupervisorRow, here: Identity, folder: Path) -> str | None:
    """Why this supervisor is certainly dead; None when it lives, or when that cannot be told from here.

    `here` is who asks, `folder` the store's own (`folder_of`). It takes some 30 µs and waits for nobody.
    """
    lock = _state_of_lock(folder, row.lock_name)
    if row.boot_id and here.boot_id and row.boot_id != here.boot_id and lock != "held":
        # A held lock is held by this very kernel: some containers (systemd-nspawn) are given a boot id of their own.
        return "the machine was restarted"
    if _is_comparable(row, here) and _is_gone(row.pid, row.start_time):
        return f"its process {row.pid} is gone"
    return "its lock was released" if lock == "free" else None


async def wait_for_death(row: SupervisorRow, here: Identity, folder: Path) -> str:
    """Wait until a supervisor is certainly dead, and return why. It may take for ever: cancel it.

    Where its process can be watched this returns a few milliseconds after its end; otherwise its lock is tried every
    quarter of a second, and where there is no lock to see either, only the lease is left. (One that has ended in a
    process that goes on is found by `judge`: its lock is free.)
    """
    watched = _open_process(row, here)
    try:
        while (reason := judge(row, here, folder)) is None:
            if watched is None:
                await anyio.sleep(POLL)
                continue
            await anyio.wait_readable(watched)
            return f"its process {row.pid} is gone"
        return reason
    finally:
        if watched is not None:
            os.close(watched)


def kill_left(row: SupervisorRow, children: Collection[tuple[int, int]], here: Identity) -> bool:
    """Kill what a dead supervisor has left: its children, by pid and start time, with their process groups.

    True when none of them can be running any more; False where that cannot be told from here. A process that has come
    to have the number of one of them is another one, and is left alone.
    """
    if not _is_comparable(row, here) or not _is_gone(row.pid, row.start_time):
        return False
    for pid, start_time in children:
        if 0 < start_time == start_time_of(pid):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
    return True


def _state_of_lock(folder: Path, name: str) -> Literal["held", "free", "unknown"]:
    """Whether anybody holds a supervisor's lock. A missing file tells nothing: the folder may be somewhere else."""
    if not _LOCK_NAME.fullmatch(name):
        return "unknown"
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two who look do not see each other
    except BlockingIOError:
        return "held"
    except OSError:
        return "unknown"
    else:
        return "free"
    finally:
        os.close(descriptor)


def _is_comparable(row: SupervisorRow, here: Identity) -> bool:
    """Whether the row's pid and start time mean here what they meant there."""
    same = row.boot_id == here.boot_id and row.pid_namespace == here.pid_namespace
    return same and bool(row.boot_id and row.pid_namespace) and 0 < row.pid <= _LARGEST_PID


def _is_gone(pid: int, start_time: int) -> bool:
    """Whether that process has certainly ended, in our own pid namespace."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - this /proc shows another namespace's pids
            return False
        stat = _stat_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return _has_no_process(pid)
    except OSError:
        return False
    return stat.is_dead or (start_time > 0 and stat.start_time != start_time)


def _has_no_process(pid: int) -> bool:
    """Whether the kernel knows no process of this number: /proc may hide those of other users (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _open_process(row: SupervisorRow, here: Identity) -> int | None:
    """A descriptor that becomes readable when the supervisor's process ends; None where there is none to be had."""
    if not (_is_comparable(row, here) and hasattr(os, "pidfd_open") and _is_running(row)):
        return None
    try:
        descriptor = os.pidfd_open(row.pid)
    except OSError:
        return None
    if _is_running(row):  # so it had not been replaced before it was opened
        return descriptor
    os.close(descriptor)
    return None


def _is_running(row: SupervisorRow) -> bool:
    try:
        stat = _stat_of(row.pid)
    except OSError:
        return False
    return not stat.is_dead and 0 < stat.start_time == row.start_time
