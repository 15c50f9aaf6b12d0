"""Time and chance: ids that nobody has twice, and random bits in their bounds."""

from __future__ import annotations

import subprocess
import sys
import threading
from uuid import UUID

import pytest

from taskrunner.core.clock import Clock

FORK = """
import os
from taskrunner.core.clock import Clock
clock = Clock()
clock.bits(64)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, f"{clock.bits(128)}".encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode() == str(clock.bits(128)))
"""


def test_ids_are_uuids_of_version_7() -> None:
    """An id is a UUID of version 7 that begins with the moment, so ids of one store lie near each other."""
    clock = Clock()
    before, made, after = clock.now().timestamp(), UUID(clock.new_id()), clock.now().timestamp()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert int(before * 1_000) <= made.int >> 80 <= after * 1_000
    assert str(made) == str(made).lower()


def test_no_id_is_made_twice_by_threads() -> None:
    """Threads that make ids at the same time make different ones."""
    clock = Clock()
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=lambda mine: mine.extend(clock.new_id() for _ in range(2_000)), args=(each,))
        for each in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id_ for each in made for id_ in each}) == 8_000


def test_a_forked_child_has_a_chance_of_its_own() -> None:
    """A program that forks does not get the same random bits in both processes."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("count", [0, 1, 53, 74, 128, 129, 1_000])
def test_random_bits(count: int) -> None:
    """As many bits as were asked for, and each of them is sometimes set."""
    clock = Clock()
    ones = 0
    for _ in range(60):
        bits = clock.bits(count)
        assert 0 <= bits < 1 << count
        ones |= bits
    assert ones == (1 << count) - 1
