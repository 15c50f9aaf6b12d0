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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self
from weakref import WeakSet

import anyio

from taskrunner.core.clock import Clock
from taskrunner.core.errors import StoreError
from taskrunner.core.model import SupervisorRow
from taskrunner.runtime.proc import processes, start_time_of
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
        pid, start_time, namespace = processes.get().this()
        return cls(
            boot_id=clock.boot_id(),
            pid=pid,
            pid_namespace=namespace,
            start_time=start_time,
            host=socket.gethostname(),
        )


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
    if _is_comparable(row, here) and processes.get().has_ended(row.pid, row.start_time):
        return "its process is gone"
    return "its lock was released" if lock == "free" else None


async def wait_for_death(row: SupervisorRow, here: Identity, folder: Path) -> str:
    """Wait until a supervisor is certainly dead, and return why. It may take for ever: cancel it.

    Where its process can be watched this returns a few milliseconds after its end; otherwise its lock is tried every
    quarter of a second, and where there is no lock to see either, only the lease is left. (One that has ended in a
    process that goes on is found by `judge`: its lock is free.)
    """
    watch = processes.get().watch(row.pid, row.start_time) if _is_comparable(row, here) else None
    try:
        while (reason := judge(row, here, folder)) is None:
            if watch is None:
                await anyio.sleep(POLL)
                continue
            await watch.ended()
            return "its process is gone"
        return reason
    finally:
        if watch is not None:
            watch.close()


def kill_left(row: SupervisorRow, children: Collection[tuple[int, int]], here: Identity) -> bool:
    """Kill what a dead supervisor has left: its children, by pid and start time, with their process groups.

    True when none of them can be running any more; False where that cannot be told from here. A process that has come
    to have the number of one of them is another one, and is left alone.
    """
    if not _is_comparable(row, here) or not processes.get().has_ended(row.pid, row.start_time):
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
