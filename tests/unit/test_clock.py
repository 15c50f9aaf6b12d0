"""Time and chance: ids that nobody has twice, and random bits in their bounds."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime
from uuid import UUID

import pytest
import uuid6

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


class KnownClock(Clock):
    """A clock whose moment and random bits are given."""

    def __init__(self, moment: datetime, bits: int) -> None:
        self.moment = moment
        self.given = bits

    def now(self) -> datetime:
        """The moment that was given."""
        return self.moment

    def bits(self, count: int) -> int:
        """The bits that were given."""
        assert self.given < 1 << count
        return self.given


@pytest.mark.parametrize("bits", [0, 1, (1 << 62) - 1, 1 << 62, (1 << 74) - 1, 0x2AB_CDEF_0123_4567_89AB])
def test_an_id_holds_the_moment_and_the_random_bits(bits: int) -> None:
    """An id is what the library `uuid6` makes of the same moment and the same bits."""
    for moment in (datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, 12, 0, 0, 999_999, tzinfo=UTC)):
        milliseconds = int(moment.timestamp() * 1_000)
        whole = milliseconds << 80 | (bits >> 62) << 64 | bits & ((1 << 62) - 1)
        assert KnownClock(moment, bits).new_id() == str(uuid6.UUID(int=whole, version=7))


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
