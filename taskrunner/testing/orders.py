"""What a sweep and the processes that it kills say to each other, and the log that outlives each of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from taskrunner.core.model import NewTask
from taskrunner.runtime.origin import Origin

if TYPE_CHECKING:
    from pathlib import Path

Moment: TypeAlias = Literal["before", "after"]
"""Of a COMMIT: all is written but it is not; or it is, and nobody was told."""

HELLO: Final = "hello.json"
LOG: Final = "log"
DB: Final = "test.db"
END: Final = "end.json"


class Hello(msgspec.Struct, frozen=True):
    """What the killed processes are told once: which program, and which task of it."""

    origin: Origin
    path: list[bytes]
    argv: list[bytes]
    settings: dict[str, Any]
    new: NewTask


class Order(msgspec.Struct, frozen=True):
    """Enqueue the task (`root` is empty), or work on it until there is nothing to do, or until that commit."""

    folder: bytes
    root: str = ""
    kill_at: int = 0
    """Which commit of the run, from 1; 0: none."""
    moment: Moment = "before"


class Ready(msgspec.Struct, frozen=True):
    """The program is imported, or why it is not."""

    trouble: str = ""
    forks: bool = True
    """Whether a fork of this process is safe: it has one thread, and no database open."""


class Ended(msgspec.Struct, frozen=True):
    """A fork has ended, with an exit code or a signal as a negative number."""

    code: int


class End(msgspec.Struct, frozen=True):
    """How a process came to its end by itself; or what keeps the task from coming to one."""

    root: str = ""
    status: str = ""
    output: Any = None
    error_type: str = ""
    error: str = ""
    trouble: str = ""
    waits: str = ""


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """A transaction that wrote something came to its COMMIT."""

    what: str


class Killed(msgspec.Struct, frozen=True, tag="killed"):
    """The process killed itself there, as it was ordered to."""

    what: str


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """The clock went on by so many seconds, because there was nothing to do before."""

    seconds: float


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A step that had no record: its function was about to be called, with arguments of this digest."""

    history_id: str
    scope: str
    name: str
    occurrence: int
    function: str
    digest: str


class Repeated(msgspec.Struct, frozen=True, tag="repeated"):
    """A step whose function was called again, though its record had been committed before this process began."""

    label: str


Line: TypeAlias = Commit | Killed | Skipped | Called | Repeated


class Log:
    """A run's log: appended to by one process after the other. A line is in the system's hands when `write` returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG
        self._file = -1

    def write(self, line: Line) -> None:
        """Append a line."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def lines(self) -> list[Line]:
        """All that was written."""
        if not self._path.exists():
            return []
        return msgspec.json.Decoder(Line).decode_lines(self._path.read_bytes())
