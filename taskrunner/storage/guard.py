"""What is checked about the database's file before SQLite opens it.

Everything asks by name (stat, access, statvfs) and nothing opens the file: closing a descriptor of it would drop the
locks that SQLite has in this process (see `hold`).
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from taskrunner.core.errors import StoreError

SAFE_SINCE: Final = (3, 51, 3)
SAFE_BACKPORTS: Final = ((3, 50, 7), (3, 44, 6))
"""SQLite 3.7.0 to 3.51.2 can lose commits when a checkpoint meets a commit (sqlite.org/wal.html#walresetbug); these
releases and all later ones of their branch have the correction."""

UNSAFE_TYPES: Final = frozenset(
    "9p afp afs beegfs ceph cifs coda davfs drvfs fuse fuseblk gfs2 glusterfs gpfs lustre ncp ncpfs nfs nfs3 nfs4 "  # noqa: SIM905 - reads better than a column of 34 quoted words
    "ocfs2 orangefs panfs prl_fs pvfs2 smb smb2 smb3 smbfs vboxsf virtiofs vmhgfs webdav wekafs".split()
)
"""File systems without the shared memory or the locks that WAL stands on. All of `fuse.*` belong to them."""

_MOUNTINFO = Path("/proc/self/mountinfo")
_SIDE_FILES = ("-wal", "-shm")
_OCTAL = re.compile(r"\\([0-7]{3})")


def check_library(version: str) -> None:
    """Refuse a SQLite library that can lose commits.

    Raises:
        StoreError: `version`, such as `"3.40.1"`, is not one of the corrected ones.
    """
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    if numbers >= SAFE_SINCE or any(numbers[:2] == fixed[:2] and numbers >= fixed for fixed in SAFE_BACKPORTS):
        return
    fixed = ", ".join(f"{'.'.join(map(str, fixed))} or later of {fixed[0]}.{fixed[1]}" for fixed in SAFE_BACKPORTS)
    message = (
        f"SQLite {version} is not among the versions without the WAL-reset bug, which loses commits: "
        f"use {'.'.join(map(str, SAFE_SINCE))} or later, {fixed}"
    )
    raise StoreError(message)


# ── the name ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def resolve(db: str | Path) -> Path:
    """The real path of the database's file, which need not exist yet: two names of one file give one path.

    Raises:
        StoreError: no database can live there.
    """
    if str(db) in {"", "."}:
        message = "no store is named: give the path of its file in code, with --db or in TASKRUNNER_DB"
        raise StoreError(message)
    if reason := _bad_name(str(db)) or _bad_platform(sys.platform):
        message = f"db={str(db)!r}: {reason}"
        raise StoreError(message)
    try:
        path = Path(db).resolve()
    except (OSError, RuntimeError) as error:
        message = f"db={str(db)!r}: its path cannot be followed ({_reason(error)})"
        raise StoreError(message) from error
    folder = _stat(path.parent)
    if folder is None:
        message = f"{path}: the folder {path.parent} does not exist"
        raise StoreError(message)
    if (found := _stat(path)) and not stat.S_ISREG(found.st_mode):
        kind = "is a folder" if stat.S_ISDIR(found.st_mode) else "is not a regular file"
        message = f"{path}: it {kind}, and a database is a regular file"
        raise StoreError(message)
    if found and found.st_nlink > 1:
        message = f"{path}: it has {found.st_nlink} hard links, and a database has one name only, that of its WAL"
        raise StoreError(message)
    return path


def _bad_name(name: str) -> str:
    return next((reason for applies, reason in _BAD_NAMES if applies(name)), "")


def _is_not_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


_BAD_NAMES: Final[tuple[tuple[Callable[[str], object], str], ...]] = (
    (lambda name: name == ":memory:", "a database in memory does not outlive its process; name a file"),
    (lambda name: name.startswith("file:"), "SQLite's file: URIs are not taken; give the plain path"),
    # one slash will do: a Path has made one of two
    (re.compile(r"postgres(ql)?:/").match, "PostgreSQL is not supported yet; give the path of a file"),
    (re.compile(r"[A-Za-z][\w+.-]*:/").match, "a URL is not taken; give the plain path of a file"),
    (lambda name: "\x00" in name, "a file's name cannot contain U+0000"),
    (_is_not_unicode, "SQLite takes names in valid Unicode only"),
    (lambda name: name.endswith(_SIDE_FILES), "SQLite keeps files of such names beside a database"),
)


def _bad_platform(platform: str) -> str:
    return "Windows is not supported; use Linux, such as in WSL on its own disk" if platform == "win32" else ""


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        message = f"{path}: it cannot be looked at ({_reason(error)})"
        raise StoreError(message) from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# ── the place ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_mount(path: Path, *, allow_unsafe: bool) -> None:
    """Refuse a mount that WAL is not safe on; where the system does not list its mounts, every place is taken.

    `allow_unsafe`: the user vouches that one machine only opens the file, and that locks and mmap work there.

    Raises:
        StoreError: the mount is unsafe, and not allowed.
    """
    if allow_unsafe:
        return
    try:
        mounts = os.fsdecode(_MOUNTINFO.read_bytes())
    except OSError:
        return
    if reason := unsafe_mount(mounts, path):
        message = f"{path}: {reason}; choose another place, or allow_unsafe_mount=True if one machine only uses it"
        raise StoreError(message)


def unsafe_mount(mountinfo: str, path: Path) -> str:
    """Why a database at `path` is not safe, by the text of /proc/self/mountinfo (proc(5)); empty: it is."""
    best, best_type = "", ""
    for line in mountinfo.split("\n"):
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 6 or not right:  # noqa: PLR2004 - the fields before the optional ones
            continue
        point = _OCTAL.sub(lambda escaped: chr(int(escaped[1], 8)), fields[4])
        inside = point in {"/", str(path)} or str(path).startswith(f"{point}/")
        if inside and len(point) >= len(best):  # equal: mounted over it later
            best, best_type = point, right.split(" ")[0]
    if best_type in UNSAFE_TYPES or best_type.startswith("fuse."):
        return f"it lies on {best}, a mount of type {best_type}, where SQLite's WAL can lose data"
    if best == str(path):
        return "it is mounted as a single file, so that others do not see its WAL; mount its folder"
    return ""


def check_access(path: Path, *, writing: bool) -> None:
    """Refuse a file that this user cannot read or, when `writing`, cannot write with what SQLite keeps beside it.

    Raises:
        StoreError: it cannot be used; when not `writing`, also if there is no such file. Or it is gone and has left a
            WAL with commits behind, which SQLite would delete as soon as it opened a new file in its place.
    """
    wal = _stat(path.with_name(f"{path.name}-wal"))  # looked at first: who makes a store makes its WAL last
    found = _stat(path)
    if wal and wal.st_size and not (found and found.st_size):
        message = (
            f"{path}: it is {'empty' if found else 'missing'}, and its WAL is there with {wal.st_size:,} bytes of what "
            "it held: put the file back, or move the WAL away if nothing of it is wanted"
        )
        raise StoreError(message)
    if found is None and not writing:
        message = f"{path}: there is no such file; name another one, or start a supervisor or a client, which makes it"
        raise StoreError(message)
    obstacles = _obstacles_to_writing(path, found) if writing else _obstacles_to_reading(path, found)
    if reason := next(obstacles, ""):
        message = f"{path}: {reason}"
        raise StoreError(message)


def _obstacles_to_reading(path: Path, found: os.stat_result | None) -> Iterator[str]:
    if found and not _may(path, os.R_OK):
        yield f"user {os.geteuid()} may not read it ({_owner(found)}): use it as that user"


def _obstacles_to_writing(path: Path, found: os.stat_result | None) -> Iterator[str]:
    if _is_mounted_read_only(path.parent) or (found and _is_mounted_read_only(path)):
        yield "it lies on a mount that is read-only: mount it for writing, or choose another place"
    yield from _obstacles_to_reading(path, found)
    if found and not _may(path, os.W_OK):
        yield f"user {os.geteuid()} may not write to it ({_owner(found)}): use it as that user"
    if found and not found.st_mode & 0o222:  # root could, but somebody has said that nobody should
        yield f"it is marked as read-only ({_owner(found)}): chmod u+w it, or choose another place"
    if not _may(path.parent, os.W_OK | os.X_OK):
        yield (
            f"user {os.geteuid()} may not write to its folder, where SQLite keeps its WAL "
            f"({_owner(path.parent.stat())}): use it as that user, or choose another place"
        )
    for beside in (path.with_name(path.name + suffix) for suffix in _SIDE_FILES):
        if (other := _stat(beside)) and _is_closed_to_us(beside):
            yield f"user {os.geteuid()} may not use {beside.name} beside it ({_owner(other)}): use it as that user"


def _is_closed_to_us(beside: Path) -> bool:
    """Whether one of the WAL's files may not be used. That it has just gone, with its last user, is no such thing."""
    return all(_stat(beside) and not _may(beside, os.R_OK | os.W_OK) for _ in range(5))


def _is_mounted_read_only(place: Path) -> bool:
    try:
        return bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _owner(found: os.stat_result) -> str:
    return f"it belongs to user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can use (0600), if there is none. Others may do so at the same time.

    Raises:
        StoreError: it cannot be created.
    """
    try:
        try:
            os.mknod(path, 0o600 | stat.S_IFREG)  # without a descriptor: closing one would drop another thread's locks
        except PermissionError:  # macOS grants mknod to root alone
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        message = f"{path}: it cannot be created ({_reason(error)})"
        raise StoreError(message) from error
