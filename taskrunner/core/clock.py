"""The seams for time and chance: wall clock, monotonic clock, boot id, random bits and new ids.

Nothing else in taskrunner asks the machine for the time or for randomness, so a test or a simulation that hands over
another `Clock` decides both.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import uuid6

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_RANDOM_BITS = 74  # what a version 7 UUID leaves beside its 48 bits of milliseconds, version and variant (RFC 9562)
_VARIANT = "89ab"  # the digit that holds the variant and, behind it, two of the random bits
_LAST = (1 << 60) - 1
_WORD = 16  # bytes
_WORDS = 256


class _Randomness:
    """Random words of 128 bits from the operating system, asked for in blocks.

    Each asking lets go of the interpreter's lock, and beside a busy thread it takes 30 µs to get it back. No word is
    given out twice: taking one from a list is atomic, and a forked child begins without any.
    """

    def __init__(self) -> None:
        self._words: list[int] = []
        os.register_at_fork(after_in_child=self._words.clear)

    def word(self) -> int:
        try:
            return self._words.pop()
        except IndexError:
            block = os.urandom(_WORD * _WORDS)
            words = [int.from_bytes(block[start : start + _WORD]) for start in range(0, len(block), _WORD)]
            word = words.pop()
            self._words.extend(words)
            return word


_randomness = _Randomness()


class Clock:
    """The machine's own time and randomness."""

    _head = (-1, "")  # the latest milliseconds, and how ids of that time begin; written and read as one, by any thread

    def now(self) -> datetime:
        """The wall clock: an aware datetime in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC: the same in all processes of one boot, deaf to changes of the wall clock."""
        return time.monotonic()

    def boot_id(self) -> str:
        """The id of this boot of the machine, or an empty text where the system does not tell one."""
        try:
            return _BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def bits(self, count: int) -> int:
        """`count` random bits from the operating system."""
        if count <= 8 * _WORD:
            return _randomness.word() >> (8 * _WORD - count)
        value = 0
        for _ in range(0, count, 8 * _WORD):
            value = value << 8 * _WORD | _randomness.word()
        return value >> -count % (8 * _WORD)

    def random(self) -> float:
        """A random float, 0.0 <= x < 1.0."""
        return self.bits(53) / (1 << 53)

    def new_id(self, moment: datetime | None = None) -> str:
        """A new UUID of version 7 of this moment (default: now), as text. It is an identity, never an order.

        Its beginning is uuid6's, made once in a millisecond; the random rest is written out here, in half the time.
        """
        milliseconds = int((moment or self.now()).timestamp() * 1_000)
        known, head = self._head
        if known != milliseconds:
            head = str(uuid6.UUID(int=milliseconds << 80, version=7))[:15]
            self._head = (milliseconds, head)
        bits = self.bits(_RANDOM_BITS)
        rest = f"{bits & _LAST:015x}"
        return f"{head}{bits >> 62:03x}-{_VARIANT[bits >> 60 & 3]}{rest[:3]}-{rest[3:]}"
