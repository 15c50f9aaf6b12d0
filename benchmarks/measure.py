"""How a figure comes about: samples, rounds, medians, and what the machine says of itself."""

from __future__ import annotations

import gc
import os
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Literal, TypeAlias

import apsw

Durability: TypeAlias = Literal["full", "normal"]
Measurement: TypeAlias = Callable[[Path, Durability], Awaitable["Sample"]]
"""One run in an empty folder. What it prepares is not on the clock."""

DURABILITIES: tuple[Durability, Durability] = ("full", "normal")

MICRO = 1_000_000


@dataclass(slots=True)
class Sample:
    """So many operations took so many seconds, and so many seconds of this process's processors."""

    operations: int
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    @property
    def cost(self) -> float:
        """Microseconds of processor time per operation: it hardly changes when other programs are busy too."""
        return self.cpu / self.operations * MICRO


@contextmanager
def clocked(operations: int) -> Iterator[Sample]:
    """Time a block."""
    sample = Sample(operations)
    cpu, began = time.process_time(), time.perf_counter()
    yield sample
    sample.seconds, sample.cpu = time.perf_counter() - began, time.process_time() - cpu


@dataclass(frozen=True, slots=True)
class Race:
    """One workload, done by taskrunner and by the raw loop."""

    name: str
    ours: Measurement
    raw: Measurement
    target: float | None = None
    """The share of the raw loop's rate that ours has to reach."""


@dataclass(slots=True)
class Result:
    """One row of the table. `ratio` is ours to what stands beside it; `target` is its bound, `at_least` or at most."""

    name: str
    unit: str
    ours: float
    durability: Durability | None = None
    beside: float | None = None
    beside_what: str = ""
    ratio: float | None = None
    target: float | None = None
    at_least: bool = True
    cpu: tuple[float, float] | None = None
    """Microseconds of processor time per operation: ours, and what stands beside it."""

    @property
    def is_met(self) -> bool:
        """Whether the target is reached; True when there is none."""
        if self.target is None or self.ratio is None:
            return True
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


@dataclass(slots=True)
class _Track:
    """The samples of one race at one durability, round by round."""

    ours: list[Sample] = field(default_factory=list)
    raw: list[Sample] = field(default_factory=list)


async def run_races(races: Sequence[Race], rounds: int, folder: Path) -> list[Result]:
    """Run every race once per round, ours and raw in turn and each first in every other round.

    The figures are medians over the rounds; the ratio is the median of the rounds' ratios, so that a busy minute of the
    machine, which both see, does not become a difference between them.
    """
    tracks = {(race.name, durability): _Track() for race in races for durability in DURABILITIES}
    for number in range(rounds):
        for durability in DURABILITIES:
            for race in races:
                track = tracks[race.name, durability]
                sides = [(race.ours, track.ours), (race.raw, track.raw)]
                for measure, samples in sides if number % 2 == 0 else reversed(sides):
                    with tempfile.TemporaryDirectory(dir=folder) as place:
                        gc.collect()
                        samples.append(await measure(Path(place), durability))
    return [_result(race, durability, tracks[race.name, durability]) for race in races for durability in DURABILITIES]


def _result(race: Race, durability: Durability, track: _Track) -> Result:
    return Result(
        race.name,
        "/s",
        median(sample.rate for sample in track.ours),
        durability=durability,
        beside=median(sample.rate for sample in track.raw),
        beside_what="raw",
        ratio=median(ours.rate / raw.rate for ours, raw in zip(track.ours, track.raw, strict=True)),
        target=race.target,
        cpu=(median(sample.cost for sample in track.ours), median(sample.cost for sample in track.raw)),
    )


def percentile(values: Sequence[float], hundredth: int) -> float:
    """The value that so many of a hundred do not exceed."""
    return quantiles(values, n=100, method="inclusive")[hundredth - 1]


def machine(folder: Path) -> dict[str, str]:
    """What the figures depend on, the disk's wait among it: an overwrite of 4 KiB made durable, as a commit does it."""
    waits = _fdatasync_waits(folder)
    return {
        "cores": f"{len(os.sched_getaffinity(0))}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
        "fdatasync p50": f"{percentile(waits, 50):.2f} ms",
        "fdatasync p99": f"{percentile(waits, 99):.2f} ms",
    }


def _fdatasync_waits(folder: Path, count: int = 200, size: int = 4_096) -> list[float]:
    """Milliseconds of each of `count` writes in a file that has its length already."""
    waits: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(size * 64), 0)
        os.fsync(descriptor)
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(descriptor, os.urandom(size), size * (number % 64))
            os.fdatasync(descriptor)
            waits.append((time.perf_counter() - began) * 1_000)
    return waits
