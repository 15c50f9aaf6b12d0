"""Bells: a commit of one process wakes the supervisors of others, and nobody has to poll.

Each supervisor has a Unix datagram socket beside its lock file, and its row names it. Who commits what concerns
supervisors (`changes.RUNG`) reads those names in the same transaction, and after the commit sends each of them a
datagram that says which topics. So nobody is missed: who is registered by then is rung, and who registers later looks
at the store after that. A bell wakes, it carries nothing: whoever hears it looks at the store. A lost ring costs a
second, for supervisors look at the store by themselves every `sweep`, and never a task.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import anyio

from taskrunner.storage.changes import RUNG, Changes

LONGEST_PATH: Final = 103
"""Bytes of a socket's path that every system takes: 107 on Linux, 103 on macOS."""

NAME_LENGTH: Final = 41
"""Bytes of a bell's name: the id of its supervisor, and `.bell`."""

MOST: Final = 64
"""Datagrams that are taken at a time."""

LOUD: Final = 8
"""So many at a time may have been more: by default a socket keeps some ten, and refuses the rest to their senders."""

_NAME = re.compile(r"[\w-]+\.bell", re.ASCII)


def folder_of(db: Path) -> Path:
    """The folder of a store beside its file, for what lives only while processes do."""
    return db.with_name(f"{db.name}.d")


class Bell:
    """The bell of one supervisor of this process."""

    def __init__(self, path: Path, own: socket.socket) -> None:
        self._path = path
        self._socket = own

    @property
    def name(self) -> str:
        """What the supervisor's row says, so that others find it."""
        return self._path.name

    @classmethod
    def hang(cls, folder: Path, supervisor_id: str) -> Self | None:
        """Make `<folder>/<supervisor id>.bell`; None where the system or the folder takes no such sockets.

        The folder is there: it holds the supervisor's lock file already.
        """
        path = folder / f"{supervisor_id}.bell"
        bell: Self | None = None
        with suppress(OSError, AttributeError):  # AttributeError: a system without Unix sockets
            bell = cls(path, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            bell._open(folder)
            return bell
        if bell is not None:
            bell.take_down()
        return None

    def _open(self, folder: Path) -> None:
        self._socket.settimeout(0)
        with _places(folder) as place:
            self._socket.bind(place(self.name))
        self._path.chmod(0o600)  # its folder is ours alone
        if os.geteuid() == 0:  # or the database's own user could not ring it
            owner = folder.stat()
            os.chown(self._path, owner.st_uid, owner.st_gid)

    async def heard(self) -> frozenset[str]:
        """Wait until it is rung; the topics of which it was told."""
        await anyio.wait_readable(self._socket)
        topics: set[str] = set()
        for count in range(MOST):
            try:
                datagram = self._socket.recv(256)
            except OSError:  # nothing is left
                return RUNG if count >= LOUD else RUNG & topics
            topics.update(datagram.decode("ascii", "replace").split())
        return RUNG

    def take_down(self) -> None:
        """Close and remove it; again is harmless."""
        self._socket.close()
        with suppress(OSError):
            self._path.unlink()


class Bells:
    """The bells of one open store: those of its own supervisors, and the way to those of other processes."""

    def __init__(self, folder: Path, changes: Changes) -> None:
        self._folder = folder
        self._changes = changes
        self._own: frozenset[str] = frozenset()
        self._socket: socket.socket | None = None

    def hang(self, supervisor_id: str) -> Bell | None:
        """Make the bell of a supervisor, before its row is stored; None where there can be none: polling is left."""
        bell = Bell.hang(self._folder, supervisor_id)
        if bell is not None:
            self._own |= {bell.name}
        return bell

    async def answer(self, bell: Bell) -> None:
        """Tell whoever listens in this process of each ring; until it is cancelled."""
        with self._changes.belled():
            while True:
                self._changes.announce(await bell.heard())

    def take_down(self, bell: Bell) -> None:
        """Remove a bell, after its supervisor's row has ended."""
        bell.take_down()
        self._own -= {bell.name}

    def ring(self, names: Iterable[str], topics: Iterable[str]) -> None:
        """Tell the bells of these names, but for our own, of a commit. For the writer's thread: it never waits."""
        foreign = [name for name in names if name not in self._own and _NAME.fullmatch(name)]
        if not foreign:
            return
        told = " ".join(topics).encode()
        with suppress(OSError, AttributeError):
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(0)
            with _places(self._folder) as place:
                for name in foreign:
                    with suppress(OSError):  # full: it is going to look; refused or missing: nobody is there
                        self._socket.sendto(told, place(name))

    def close(self) -> None:
        """Let go of the socket that rings. Nobody rings any more."""
        if self._socket is not None:
            self._socket.close()


@contextmanager
def _places(folder: Path) -> Iterator[Callable[[str], bytes]]:
    """How a socket of the folder is addressed: by its path or, where that is too long, through the open folder."""
    place, descriptor = os.fsencode(folder), -1
    if len(place) + 1 + NAME_LENGTH > LONGEST_PATH:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        place = b"/proc/self/fd/%d" % descriptor
    try:
        yield lambda name: place + b"/" + os.fsencode(name)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
