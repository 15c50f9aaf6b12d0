"""What the system can tell of a store's file: who keeps it locked, who works on a deleted one, who may read it.

Nothing here opens the file (see `hold`): it is looked at by its name, in /proc and in the list of locks. Where the
system does not tell, nothing is wrong.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MUCH_WAL: Final = 64 * 1024 * 1024
"""Bytes of a WAL that somebody keeps from being cut off."""

LITTLE_SPACE: Final = 64 * 1024 * 1024
"""Bytes on the disk that a WAL may need."""

LOOKS: Final = 20
"""Who holds a lock each time of so many holds it on: others take it for milliseconds."""

_LOCKS = Path("/proc/locks")
_WRITER = 120  # the bytes of the shared memory's file that stand for SQLite's locks, by its file format
_READERS = range(123, 128)


def troubles(path: Path, *, opened: bool) -> Iterator[str]:
    """What is wrong around a store's file, one sentence each; where it cannot be opened, it may be none of ours."""
    for process, name in _users_of_deleted(path):
        yield (
            f"{process} has {name} open, which was deleted or replaced: nothing that it writes will be found again; "
            "end it, put the right file in its place, and start it again"
        )
    with suppress(OSError):
        if opened:
            yield from _rights(path, path.stat())
        space = os.statvfs(path.parent)
        if (free := space.f_bavail * space.f_frsize) < LITTLE_SPACE:
            yield f"{path}: {free >> 20} MiB are free on its disk; when it is full nothing is written: make room"


def lock_troubles(path: Path, pause: Callable[[], object]) -> Iterator[str]:
    """Who keeps others from writing, or the WAL from being cut off. It looks often, and calls `pause` between."""
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    writers, readers = _holders(path)
    for _ in range(LOOKS - 1):
        if not writers and not readers:
            break
        pause()
        again = _holders(path)
        writers, readers = writers & again[0], readers & again[1]
    for pid in sorted(writers):
        yield f"{path}: {_process(pid)} keeps its write lock, and nobody else can write: end what it does there"
    if size > MUCH_WAL:
        who = " and ".join(_process(pid) for pid in sorted(readers))
        what = f"{who} reads from one snapshot of it and keeps it" if who else "some reader may keep it"
        yield f"{path}: its WAL has {size // 1024 // 1024} MiB; {what} from being cut off: end that read"


def _rights(path: Path, found: os.stat_result) -> Iterator[str]:
    if found.st_mode & 0o007:
        mode = stat.S_IMODE(found.st_mode)
        yield f"{path}: every user of this machine may use it (mode {mode:04o}): chmod it to 0600"
    folder = Path(f"{path}.d")
    owner = folder.stat().st_uid if folder.is_dir() else found.st_uid
    if owner != found.st_uid:
        yield (
            f"{folder}: it belongs to user {owner}, and the store to user {found.st_uid}, whose supervisors can lock "
            "nothing there: remove it when no supervisor runs"
        )


def _users_of_deleted(path: Path) -> Iterator[tuple[str, str]]:
    """The processes that have the store's file, or its WAL, open under its name, and it is gone."""
    names = {f"{path}{suffix} (deleted)": f"{path}{suffix}" for suffix in ("", "-wal")}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # another user's, or it has ended
            open_here = {os.readlink(link) for link in folder.iterdir()}  # noqa: PTH115 - no file is meant
            for link in sorted(open_here & names.keys())[:1]:
                yield _process(int(folder.parent.name)), names[link]


def _holders(path: Path) -> tuple[set[int], set[int]]:
    """The processes that hold the WAL's write lock, and those that hold a snapshot, but for this one."""
    writers: set[int] = set()
    readers: set[int] = set()
    with suppress(OSError, ValueError):
        found = Path(f"{path}-shm").stat()
        place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1:2] != ["POSIX"] or words[5] != place or int(words[4]) in {0, os.getpid()}:
                continue  # 0: a process of another namespace
            held = range(int(words[6]), int(words[7]) + 1)
            if words[3] == "WRITE" and _WRITER in held:
                writers.add(int(words[4]))
            elif words[3] == "READ" and any(byte in held for byte in _READERS):
                readers.add(int(words[4]))
    return writers, readers


def _process(pid: int) -> str:
    with suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return f"process {pid} ({name})"
    return f"process {pid}"
