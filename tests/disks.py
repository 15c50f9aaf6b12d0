"""Small file systems for tests, which are skipped where there can be none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taskrunner.chaos.disk import full_disk


@contextmanager
def small_disk(place: Path, size: str = "2m") -> Iterator[Path]:
    """A file system of its own for as long as the block runs."""
    if not full_disk.can_mount():
        pytest.skip("a small file system cannot be mounted here")
    with full_disk.small_disk(place, size) as disk:
        yield disk
