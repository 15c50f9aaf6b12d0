"""What is checked about the database's file before SQLite opens it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from taskrunner.core.errors import StoreError
from taskrunner.storage import guard
from tests.unit.processes import python

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user or mount")

AS_NOBODY = f"""
import os, sys, json
from pathlib import Path
from taskrunner.storage import guard
from taskrunner.core.errors import StoreError
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
def said(path, writing):
    try: guard.check_access(Path(path), writing=writing)
    except StoreError as error: return str(error)
    return ""
print(json.dumps([[said(path, False), said(path, True)] for path in sys.argv[1:]]))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach (pytest's own are private)."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


# ── the library ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "version",
    ["3.7.0", "3.7.17", "3.40.1", "3.44.5", "3.45.9", "3.50.6", "3.51.0", "3.51.2", "3.8.11.1", "3.44", "3", "", "new"],
)
def test_a_library_that_loses_commits_is_refused(version: str) -> None:
    """A SQLite with the WAL-reset bug is refused by name, and the sentence says which versions are free of it (B52)."""
    with pytest.raises(StoreError, match=rf"SQLite {version} .* use 3\.51\.3 or later, 3\.50\.7 .* 3\.44\.6"):
        guard.check_library(version)


@pytest.mark.parametrize("version", ["3.44.6", "3.44.9", "3.50.7", "3.51.3", "3.52.0", "3.54.1", "3.100.0", "4.0.0"])
def test_a_corrected_library_is_taken(version: str) -> None:
    """Every release with the correction will do, the back-ports too (B52)."""
    guard.check_library(version)


def test_the_library_that_we_ship_is_a_corrected_one() -> None:
    """The SQLite inside apsw is free of the WAL-reset bug, whatever the system's own is (B52)."""
    guard.check_library(apsw.sqlite_lib_version())


# ── the name ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("db", ["", Path()])
def test_no_name_at_all_is_refused(db: str | Path) -> None:
    """Where nobody has named a store the sentence says how to name one."""
    with pytest.raises(StoreError, match=r"^no store is named: .* --db .* TASKRUNNER_DB$"):
        guard.resolve(db)


@pytest.mark.parametrize(
    ("db", "rule"),
    [
        (":memory:", "does not outlive its process"),
        (Path(":memory:"), "does not outlive its process"),
        ("file:agent.db?mode=ro", "URIs are not taken"),
        ("postgresql://host/agent", "PostgreSQL is not supported yet"),
        ("postgres://host/agent", "PostgreSQL is not supported yet"),
        (Path("postgresql://host/agent"), "PostgreSQL is not supported yet"),
        ("sqlite:///agent.db", "a URL is not taken"),
        ("agent\x00.db", r"U\+0000"),
        ("agent\ud800.db", "valid Unicode"),
        ("agent.db-wal", "beside a database"),
        ("agent.db-shm", "beside a database"),
    ],
)
def test_a_name_that_is_no_file_is_refused(db: str | Path, rule: str) -> None:
    """One sentence names the value as it was given, and the rule."""
    with pytest.raises(StoreError, match=rule) as caught:
        guard.resolve(db)
    assert f"db={str(db)!r}: " in str(caught.value)


def test_windows_is_refused(monkeypatch: pytest.MonkeyPatch, db: Path) -> None:
    """On Windows one sentence says so, before anything is created."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(StoreError, match="Windows is not supported"):
        guard.resolve(db)


def test_a_place_that_holds_no_database_is_refused(tmp_path: Path) -> None:
    """A missing folder, a folder, a file as folder, a socket, a device, a link to itself and a second hard link."""
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "twin").hardlink_to(file)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    for db, rule in {
        tmp_path / "missing" / "agent.db": "the folder .*missing does not exist",
        tmp_path: "is a folder",
        file / "agent.db": "Not a directory",
        tmp_path / "socket": "is not a regular file",
        tmp_path / "pipe": "is not a regular file",
        Path("/dev/null"): "is not a regular file",
        tmp_path / "loop": "cannot be followed",
        tmp_path / ("x" * 300): "File name too long",
        tmp_path / "twin": "2 hard links",
    }.items():
        with pytest.raises(StoreError, match=rule):
            guard.resolve(db)


def test_two_names_of_one_file_are_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbolic link, a relative path and a way around lead to the same file, also before it exists (B53)."""
    (tmp_path / "data").mkdir()
    real = tmp_path / "data" / "agent.db"
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "other.db").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    for exists in (False, True):
        if exists:
            real.touch()
        names = ["data/agent.db", "link/agent.db", "other.db", "data/../data/agent.db", str(real)]
        assert {guard.resolve(name) for name in names} == {real.resolve()}


# ── the mount ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /mnt/nfs rw,relatime shared:2 master:1 - nfs4 server:/export rw,vers=4.2
31 30 254:16 / /mnt/nfs/local rw - ext4 /dev/vdb rw
32 27 0:41 / /mnt/with\040space\134and\011tab rw - cifs //server/share rw
33 27 0:42 / /mnt/home rw - fuse.sshfs me@host: rw
34 27 0:43 / /mnt/ntfs rw - fuseblk /dev/sda1 rw
35 27 0:44 / /mnt/host rw - 9p share rw
36 27 0:45 / /mnt/auto rw - autofs /etc/auto.misc rw
37 36 0:46 / /mnt/auto rw - nfs server:/auto rw
38 27 0:47 / /mnt/vm rw - virtiofs share rw
39 27 0:48 / /mnt/disk rw - xfs /dev/sdb rw
40 27 0:49 / /mnt/diskette rw - afs AFS rw
41 27 254:0 /srv/one.db /app/one.db rw - ext4 /dev/vda rw
a line that nobody understands
"""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/srv/agent.db", ""),
        ("/mnt/nfs/agent.db", "it lies on /mnt/nfs, a mount of type nfs4"),
        ("/mnt/nfs/deep/agent.db", "nfs4"),
        ("/mnt/nfs/local/agent.db", ""),
        ("/mnt/nfsx/agent.db", ""),
        ("/mnt/with space\\and\ttab/agent.db", "cifs"),
        ("/mnt/home/agent.db", "fuse.sshfs"),
        ("/mnt/ntfs/agent.db", "fuseblk"),
        ("/mnt/host/agent.db", "9p"),
        ("/mnt/auto/agent.db", "nfs"),
        ("/mnt/vm/agent.db", "virtiofs"),
        ("/mnt/disk/agent.db", ""),
        ("/mnt/diskette/agent.db", "afs"),
        ("/app/one.db", "mounted as a single file"),
        ("/app/two.db", ""),
    ],
)
def test_a_mount_that_wal_is_not_safe_on_is_found(path: str, reason: str) -> None:
    """The longest mount point decides, and of two on one folder the later; its name may hold blanks and backslashes."""
    found = guard.unsafe_mount(MOUNTS, Path(path))
    assert reason in found
    assert bool(found) == bool(reason)


def test_an_unreadable_list_of_mounts_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not list its mounts, as on macOS, every place is taken."""
    assert guard.unsafe_mount("", tmp_path / "agent.db") == ""
    monkeypatch.setattr(guard, "_MOUNTINFO", tmp_path / "none")
    guard.check_mount(tmp_path / "agent.db", allow_unsafe=False)


def test_an_unsafe_mount_can_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`allow_unsafe_mount=True` overrides the check, and the refusal says so."""
    (tmp_path / "mounts").write_text(f"1 0 0:1 / {tmp_path} rw - nfs server:/ rw\n")
    monkeypatch.setattr(guard, "_MOUNTINFO", tmp_path / "mounts")
    with pytest.raises(StoreError, match=r"type nfs, .*allow_unsafe_mount=True"):
        guard.check_mount(tmp_path / "agent.db", allow_unsafe=False)
    guard.check_mount(tmp_path / "agent.db", allow_unsafe=True)


def test_this_machine_has_a_place_for_a_database(db: Path) -> None:
    """The real list of mounts lets a temporary folder pass."""
    guard.check_mount(guard.resolve(db), allow_unsafe=False)


# ── access ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ones_own_file_is_taken(db: Path) -> None:
    """A writer may create it, a reader may not; once there, both may open it."""
    guard.check_access(db, writing=True)
    with pytest.raises(StoreError, match="there is no such file"):
        guard.check_access(db, writing=False)
    guard.create_private(db)
    guard.check_access(db, writing=True)
    guard.check_access(db, writing=False)


def test_a_file_marked_as_read_only_is_not_written(db: Path) -> None:
    """Mode 0444 means that nobody should write, be it root; reading is fine."""
    guard.create_private(db)
    db.chmod(0o444)
    guard.check_access(db, writing=False)
    with pytest.raises(StoreError, match=r"read-only|may not write to it"):
        guard.check_access(db, writing=True)


@needs_root
def test_another_user_s_file_is_refused_by_what_is_missing(open_folder: Path) -> None:
    """As another user: 0600 is not read, 0644 not written, and a closed folder or WAL is named (B56)."""
    names = ["private", "readable", "shared", "closed/shared", "wal"]
    closed = open_folder / "closed"
    closed.mkdir(0o755)
    for name, mode in zip(names, (0o600, 0o644, 0o666, 0o666, 0o666), strict=True):
        (open_folder / name).touch()
        (open_folder / name).chmod(mode)
    (open_folder / "wal-wal").touch(mode=0o600)
    said = json.loads(python(AS_NOBODY, *(open_folder / name for name in names), open_folder / "new", closed / "new"))
    missing = "there is no such file"
    for (reading, writing), (read_rule, write_rule) in zip(
        said,
        [
            (
                f"user {NOBODY} may not read it (it belongs to user 0, mode 0600): use it as that user",
                "may not read it",
            ),
            ("", f"user {NOBODY} may not write to it (it belongs to user 0, mode 0644): use it as that user"),
            ("", ""),
            ("", "may not write to its folder"),
            ("", "may not use wal-wal beside it"),
            (missing, ""),
            (missing, "may not write to its folder"),
        ],
        strict=True,
    ):
        assert read_rule in reading
        assert write_rule in writing
        assert bool(reading) == bool(read_rule)
        assert bool(writing) == bool(write_rule)


@needs_root
def test_a_read_only_mount_is_refused_to_root_too(open_folder: Path) -> None:
    """Root may write everywhere but on a mount that is read-only; a new file there is refused as well (B56)."""
    (open_folder / "agent.db").touch()
    code = """
import subprocess, sys
from pathlib import Path
from taskrunner.storage import guard
from taskrunner.core.errors import StoreError
folder = Path(sys.argv[1])
subprocess.run(["mount", "--bind", folder, folder], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
guard.check_access(folder / "agent.db", writing=False)
for name in ("agent.db", "new.db"):
    try: guard.check_access(folder / name, writing=True)
    except StoreError as error: print(error)
"""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", code, str(open_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this machine lets us mount nothing")
    assert done.stdout.count("a mount that is read-only") == 2, done


# ── creating ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_file_is_private(db: Path) -> None:
    """A new database is for its owner alone, whatever the umask; an existing file keeps its content and its mode."""
    before = os.umask(0)
    try:
        guard.create_private(db)
    finally:
        os.umask(before)
    assert stat.S_IMODE(db.stat().st_mode) == 0o600
    db.chmod(0o640)
    python("import sys; open(sys.argv[1], 'w').write('content')", db)
    guard.create_private(db)
    assert stat.S_IMODE(db.stat().st_mode) == 0o640
    assert db.stat().st_size == len("content")


def test_a_file_that_cannot_be_created_is_one_sentence(tmp_path: Path) -> None:
    """The sentence names the file and what the system said."""
    with pytest.raises(StoreError, match=r"agent\.db: it cannot be created \(No such file"):
        guard.create_private(tmp_path / "missing" / "agent.db")
