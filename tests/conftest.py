"""The world that every test lives in."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time: what fails, fails again. No deadline: a busy machine is no error.
settings.register_profile("house", deadline=None, derandomize=True)
settings.load_profile("house")

GRACE = 2.0
"""Seconds in which a test's threads, processes and files may end after it."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop that `async def` tests run on."""
    return "asyncio"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Where a test's store may stand; nothing is there yet."""
    return tmp_path / "agent.db"


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """A test fails when it leaves a thread of ours, a child process or an open file behind."""
    before = what_is_open()
    yield
    deadline = time.monotonic() + GRACE
    while (left := what_is_open() - before) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    assert not left, f"left behind: {', '.join(sorted(left))}"


def what_is_open() -> set[str]:
    """This process's threads of ours, children (a dead one that nobody has waited for too) and file descriptors."""
    return {*our_threads(), *children(), *descriptors()}


def our_threads() -> Iterator[str]:
    """Our threads: those that `core.loop` named."""
    for thread in threading.enumerate():
        if thread.name.startswith("taskrunner "):
            yield f"thread {thread.name!r} ({thread.ident})"


def children() -> Iterator[str]:
    """The child processes, by /proc: field 4 of `stat`, the second after the name in its parentheses."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:
            continue  # it has ended meanwhile
        if rest.split()[1] == str(os.getpid()):
            yield f"process {head})"


def descriptors() -> Iterator[str]:
    """The open file descriptors with what they stand for."""
    for link in Path("/proc/self/fd").glob("*"):
        try:
            yield f"file {link.name} → {link.readlink()}"
        except OSError:
            continue  # the one by which this folder was read
