"""What this process holds while SQLite has the database's file open.

Two properties of the system shape this module. POSIX locks, which SQLite uses, belong to the process: closing *any*
descriptor of a file drops every lock that the process has on it, whoever took them (fcntl(2)). And two SQLite libraries
in one process do not see each other's locks. So nothing of ours opens the file beside SQLite, save `SharedHold`, which
knows when its descriptor may be closed; and Python code that tries to is refused.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import sys
import threading
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from taskrunner.core.errors import StoreBusy, StoreError
from taskrunner.core.loop import FORKED

FileKey: TypeAlias = tuple[int, int]
"""Which file it is, whatever its name: device and inode."""

_SHARED_FIRST, _SHARED_SIZE = 0x4000_0002, 510  # the bytes that SQLite's readers lock, by its file format
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)  # Linux only


def file_key(path: Path) -> FileKey:
    """Which file the path names now; an OSError says that it names none."""
    found = path.stat()
    return found.st_dev, found.st_ino


def same_file(path: Path, key: FileKey) -> bool:
    """Whether the path still names that file: False once it was deleted or replaced, True where that cannot be told."""
    try:
        return file_key(path) == key
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


class _OpenFile:
    """One database file that this process has open, and our one descriptor of it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor  # -1: closed, or left to the parent by a fork
        self.holds = 0
        self.locks = 0

    def set_lock(self, kind: int) -> None:
        if _SET_LOCK is not None:
            fcntl.fcntl(
                self.descriptor, _SET_LOCK, struct.pack(_FLOCK, kind, os.SEEK_SET, _SHARED_FIRST, _SHARED_SIZE, 0)
            )


_files: dict[FileKey, _OpenFile] = {}
_inherited: set[FileKey] = set()
"""Files that were open when this process was forked. SQLite's own memory of their locks came along, and is wrong."""

_files_lock = threading.Lock()
_watching = False


class SharedHold:
    """A read lock on the bytes that SQLite's readers lock, for as long as this process has the file open.

    It is an open file description lock: unlike SQLite's own ones it outlives a stray `open(db).close()` and another
    SQLite library in this process, so that no other process takes itself for the last one and deletes the WAL under us.
    Where the system has no such locks (macOS), it holds nothing.

    All holds of one file share one descriptor, which is closed with the last of them. So `take` one before the first
    connection is opened, unlocked; `lock` it when the file is in WAL mode (the switch wants the file for itself);
    `unlock` it before the last connection is closed (SQLite then can remove the WAL); and `close` it after that.

    After a fork the child closes its copy of the descriptor and forgets all holds: the lock belongs to the description,
    which the parent still has, and the child has no POSIX locks that the closing could drop. Holds from before the fork
    do nothing there, and the child may not open the file again: SQLite would believe in locks that only the parent has.
    """

    def __init__(self, file: _OpenFile, key: FileKey) -> None:
        self._file = file
        self._locked = False
        self._closed = False
        self.key = key
        """Device and inode of the file, for `same_file`."""

    @classmethod
    def take(cls, path: Path, *, lock: bool = True) -> SharedHold:
        """Say that this process is going to have the file open, and lock it, unless `lock` says not yet. It must exist.

        From now on an attempt of Python code in this process to open it, by `open` or `sqlite3.connect` and whatever
        its name, raises a `StoreError`.

        Raises:
            StoreBusy: another process has the file for itself at the moment.
            StoreError: it cannot be opened, its file system has no such locks, or this process was forked from one that
                had it open.
        """
        _watch_openings()
        try:
            with _files_lock:
                key = file_key(path)
                if key in _inherited:
                    message = f"{path}: {FORKED}"
                    raise StoreError(message)
                if key not in _files:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    opened = os.fstat(descriptor)
                    key = opened.st_dev, opened.st_ino
                    _files[key] = _OpenFile(path, descriptor)
                file = _files[key]
                file.holds += 1
        except OSError as error:
            message = f"{path}: it cannot be opened ({error.strerror})"
            raise StoreError(message) from error
        hold = cls(file, key)
        if lock:
            try:
                hold.lock()
            except StoreError:
                hold.close()
                raise
        return hold

    def lock(self) -> None:
        """Take the lock; again is harmless.

        Raises:
            StoreBusy: another process has the file for itself at the moment.
            StoreError: there are no such locks on this file system.
        """
        with _files_lock:
            if self._locked or self._file.descriptor < 0:
                return
            try:
                self._file.set_lock(fcntl.F_RDLCK)
            except (BlockingIOError, PermissionError) as error:
                message = f"{self._file.path}: another process has it for itself"
                raise StoreBusy(message) from error
            except OSError as error:
                message = f"{self._file.path}: it cannot be locked ({error.strerror})"
                raise StoreError(message) from error
            self._locked = True
            self._file.locks += 1

    def unlock(self) -> None:
        """Drop the lock, unless another hold of this process wants it, and keep the descriptor; again is harmless."""
        with _files_lock:
            self._unlock()

    def close(self) -> None:
        """Give up the hold. Every connection that was opened under it must be closed by now; again is harmless."""
        with _files_lock:
            if self._closed:
                return
            self._unlock()
            self._closed = True
            self._file.holds -= 1
            if self._file.holds == 0 and self._file.descriptor >= 0:
                del _files[self.key]
                os.close(self._file.descriptor)
                self._file.descriptor = -1

    def _unlock(self) -> None:
        if not self._locked:
            return
        self._locked = False
        self._file.locks -= 1
        if self._file.locks == 0 and self._file.descriptor >= 0:
            self._file.set_lock(fcntl.F_UNLCK)


def _watch_openings() -> None:
    global _watching  # noqa: PLW0603 - an audit hook cannot be removed: there is one, once it is needed
    with _files_lock:
        if not _watching:
            sys.addaudithook(_refuse_second_opening)
            _watching = True


def _refuse_second_opening(event: str, args: tuple[Any, ...]) -> None:
    if not _files or event not in {"open", "sqlite3.connect"}:
        return
    try:
        name = os.fsdecode(args[0])
        if event == "sqlite3.connect" and name.startswith("file:"):
            name = unquote(re.sub(r"^file:(//[^/]*)?", "", name).split("?")[0].split("#")[0])
        name = re.sub(r"-(wal|shm)$", "", name)  # closing one of these drops locks, too
        found = os.stat(name)  # noqa: PTH116 - it runs at every opening of a file in this process
    except (OSError, TypeError, ValueError):
        return  # not the name of a file
    if file := _files.get((found.st_dev, found.st_ino)):
        message = (
            f"{file.path}: open in this process, where a second opening loses locks and commits; read it by "
            "`await runner.read(sql)`, or use another process"
        )
        raise StoreError(message)


def _forget_inherited_files() -> None:
    global _files_lock  # noqa: PLW0603 - another thread of the parent may have held it
    _files_lock = threading.Lock()
    _inherited.update(_files)
    for file in _files.values():
        os.close(file.descriptor)
        file.descriptor = -1
    _files.clear()


os.register_at_fork(after_in_child=_forget_inherited_files)
