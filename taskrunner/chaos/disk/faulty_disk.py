"""A disk that fails on demand, below SQLite: a VFS that counts operations and lets the n-th one fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

Fault: TypeAlias = Callable[[], apsw.Error]
Record: TypeAlias = tuple[Any, ...]
"""One operation on the disk: its kind, the file's name, and what belongs to it."""


def _error(kind: type[apsw.Error], extended: int) -> Fault:
    def make() -> apsw.Error:
        error = kind("the disk failed")
        error.extendedresult = extended  # type: ignore[attr-defined]
        return error

    return make


FULL: Final = _error(apsw.FullError, apsw.SQLITE_FULL)
FAULTS: Final[dict[str, tuple[str, Fault]]] = {
    "no room to write": ("write", FULL),
    "a write fails": ("write", _error(apsw.IOError, apsw.SQLITE_IOERR_WRITE)),
    "a sync fails": ("sync", _error(apsw.IOError, apsw.SQLITE_IOERR_FSYNC)),
    "a read fails": ("read", _error(apsw.IOError, apsw.SQLITE_IOERR_READ)),
    "a truncation fails": ("truncate", _error(apsw.IOError, apsw.SQLITE_IOERR_TRUNCATE)),
    "a size is not told": ("size", _error(apsw.IOError, apsw.SQLITE_IOERR_FSTAT)),
    "a file is not opened": ("open", _error(apsw.CantOpenError, apsw.SQLITE_CANTOPEN)),
}
"""What may fail: the kind of operation, and the error that SQLite's own VFS reports then."""


class Disk:
    """The operations that were asked of it, and which of them is to fail."""

    def __init__(self) -> None:
        self.log: list[Record] | None = None
        self.fired = 0
        self._kind = ""
        self._fault: Fault = FULL
        self._left = 0
        self._nth = 0
        self._times = 0

    def fail(self, what: str, nth: int, *, times: int = 1) -> None:
        """Let the nth operation (from 1) of a kind of `FAULTS` fail, and those after it, `times` in all."""
        self._kind, self._fault = FAULTS[what]
        self._left, self._times, self.fired = nth, times, 0
        self._nth = nth

    @property
    def met(self) -> int:
        """How many operations of that kind were asked of it since."""
        return self._nth - self._left

    def heal(self) -> None:
        """Fail no more."""
        self._times = 0

    def hit(self, kind: str) -> None:
        """Fail now, if it is time for it."""
        if self._times == 0 or kind != self._kind:
            return
        self._left -= 1
        if self._left <= 0:
            self._times -= 1
            self.fired += 1
            raise self._fault()

    def note(self, *record: Any) -> None:  # noqa: ANN401 - as `Record`
        """Keep what was done."""
        if self.log is not None:
            self.log.append(record)


class _VFS(apsw.VFS):
    def __init__(self, name: str, disk: Disk, *, default: bool) -> None:
        self._disk = disk
        super().__init__(name, "unix", default)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's names
        return _File(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802, FBT001 - as above
        self._disk.hit("delete")
        super().xDelete(filename, syncdir)
        self._disk.note("delete", Path(filename).name, bool(syncdir))


class _File(apsw.VFSFile):  # the shared memory's methods are forwarded in C, so WAL works
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if path else ""
        disk.hit("open")
        new = bool(path) and not os.path.exists(str(path))  # noqa: PTH110 - where there may be no path
        super().__init__("unix", name, flags)
        if new:
            disk.note("create", self._name)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's names
        self._disk.hit("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - as above
        self._disk.hit("write")
        super().xWrite(data, offset)
        self._disk.note("write", self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 - as above
        self._disk.hit("truncate")
        super().xTruncate(newsize)
        self._disk.note("truncate", self._name, newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802 - as above
        self._disk.hit("sync")
        super().xSync(flags)
        self._disk.note("sync", self._name)

    def xFileSize(self) -> int:  # noqa: N802 - as above
        self._disk.hit("size")
        return super().xFileSize()


@contextmanager
def disk(name: str, *, default: bool = False) -> Iterator[Disk]:
    """A disk under SQLite's VFS of this name; `default`: and under whatever names none."""
    made = Disk()
    vfs = _VFS(name, made, default=default)
    try:
        yield made
    finally:
        vfs.unregister()
