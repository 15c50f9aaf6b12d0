"""Small file systems that may be filled up."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def small_disk(place: Path, size: str = "2m") -> Iterator[Path]:
    """A file system of its own for as long as the block runs.

    Raises:
        OSError: none can be mounted here.
    """
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"a small file system cannot be mounted here: {done.stderr.strip()}"
        raise OSError(message)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)  # noqa: S607 - as `mount` above


@contextmanager
def no_space(place: Path, left: int = 0) -> Iterator[None]:
    """Fill the disk, but for about `left` bytes, for as long as the block runs."""
    hog = place / "hog"
    with hog.open("wb", buffering=0) as file:
        found = os.statvfs(place)
        file.write(b"x" * max(1, found.f_bavail * found.f_bsize - left))
    try:
        yield
    finally:
        hog.unlink()


def can_mount() -> bool:
    """Whether a small file system can be mounted here."""
    with suppress(OSError), tempfile.TemporaryDirectory() as folder, small_disk(Path(folder) / "disk"):
        return True
    return False
