"""Bells: sockets of the store's folder that are rung without waiting, whatever has become of who is rung."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from taskrunner.storage.bells import Bell, Bells, folder_of
from taskrunner.storage.changes import CANCEL, OWNERS, RUNG, WORK, Changes


@pytest.fixture
def folder(db: Path) -> Path:
    """The store's folder."""
    made = folder_of(db)
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def ringer(folder: Path) -> Iterator[Bells]:
    """Another process's way to the bells of this folder."""
    made = Bells(folder, Changes(lambda _wanted: None))
    yield made
    made.close()


async def heard(bell: Bell) -> set[str]:
    """The topics of the next ring, which has to come."""
    with anyio.fail_after(1):
        return set(await bell.heard())


async def silent(bell: Bell) -> bool:
    """Whether it is not rung."""
    with anyio.move_on_after(0.05) as waited:
        await bell.heard()
    return waited.cancelled_caught


async def test_a_bell_is_private_rung_and_taken_down(folder: Path, ringer: Bells) -> None:
    """It is a socket of mode 0600 in the store's folder; it says which topics, and leaves nothing."""
    bell = Bell.hang(folder, "one")
    assert bell is not None
    found = (folder / bell.name).stat()
    assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o600)
    ringer.ring([bell.name], [WORK])
    ringer.ring([bell.name], [CANCEL, "a topic of a later version"])
    assert await heard(bell) == {WORK, CANCEL}
    assert await silent(bell)
    bell.take_down()
    bell.take_down()
    assert list(folder.iterdir()) == []


async def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    """A socket's path has 108 bytes at most: a store that lies deeper has bells all the same."""
    folder = tmp_path / ("ü" * 100) / ("x" * 100)
    folder.mkdir(parents=True)
    bell = Bell.hang(folder, "0190" * 9)
    assert bell is not None
    ringer = Bells(folder, Changes(lambda _wanted: None))
    ringer.ring([bell.name], [WORK])
    assert await heard(bell) == {WORK}
    ringer.close()
    bell.take_down()
    assert list(folder.iterdir()) == []


async def test_a_ring_never_waits(folder: Path, ringer: Bells) -> None:
    """Of a thousand rings that nobody answers most are lost; the one who was rung then looks at everything."""
    bell = Bell.hang(folder, "one")
    assert bell is not None
    for _ in range(1_000):
        ringer.ring([bell.name], [OWNERS])
    assert await heard(bell) == RUNG
    bell.take_down()


async def test_whoever_is_not_there_is_not_rung(folder: Path, ringer: Bells) -> None:
    """A bell of a killed process, one that was removed, and names that no supervisor has: the others are rung."""
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    dead.bind(str(folder / "dead.bell"))
    dead.close()
    (folder / "a file.bell").touch()
    (folder / "file.bell").touch()
    outside = Bell.hang(folder.parent, "outside")
    bell = Bell.hang(folder, "one")
    assert outside is not None
    assert bell is not None
    names = [
        "dead.bell",
        "none.bell",
        "file.bell",
        "a file.bell",
        "../outside.bell",
        "",
        "x" * 300 + ".bell",
        "a\0.bell",
    ]
    ringer.ring([*names, bell.name], [WORK])
    assert await heard(bell) == {WORK}
    assert await silent(outside)
    for each in (outside, bell):
        each.take_down()


async def test_ones_own_bell_is_not_rung(folder: Path, ringer: Bells) -> None:
    """A commit of one's own process is told without a bell."""
    bell = ringer.hang("one")
    assert bell is not None
    ringer.ring([bell.name], [WORK])
    assert await silent(bell)
    ringer.take_down(bell)
    assert list(folder.iterdir()) == []


async def test_a_folder_that_takes_no_sockets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is not there, a system without Unix sockets: there is no bell, and no error."""
    assert Bell.hang(folder / "missing", "one") is None
    with monkeypatch.context() as patch:
        patch.delattr(socket, "AF_UNIX")
        assert Bell.hang(folder, "one") is None
        Bells(folder, Changes(lambda _wanted: None)).ring(["one.bell"], [WORK])
    assert list(folder.iterdir()) == []
