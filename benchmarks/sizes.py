"""How much is measured: enough for figures that hold, or (`--quick`) just enough to see that everything runs."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.measure import Durability


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of everything."""

    rounds: int
    lone_full: int
    """Calls of a lone caller that waits for the disk each time."""
    lone_normal: int
    crowd: int
    """Calls of all callers together."""
    batch: int
    batches: int
    drained: int
    finished: tuple[int, ...]
    """Finished rows beside which tasks are claimed; the first is the empty table."""
    waiting: int
    """Pending tasks in front of each claim."""
    claims: int
    starts: int
    """Tasks whose way from enqueue to start is timed."""
    cancels: int
    """Running tasks that are cancelled from another process."""
    idle: float
    """Seconds for which an idle supervisor is watched."""
    recoveries: int
    """Killed supervisors that are recovered from, each in a store of its own."""
    remembered: tuple[int, ...]
    """Tasks after which the memory of a process is looked at."""

    def calls(self, callers: int, durability: Durability) -> int:
        """How many calls so many callers make together."""
        if callers == 1:
            return self.lone_full if durability == "full" else self.lone_normal
        return self.crowd


FULL = Sizes(
    rounds=5,
    lone_full=1_500,
    lone_normal=4_000,
    crowd=20_000,
    batch=1_000,
    batches=20,
    drained=10_000,
    finished=(0, 100_000, 1_000_000),
    waiting=10_000,
    claims=120,
    starts=300,
    cancels=200,
    idle=10.0,
    recoveries=5,
    remembered=(20_000, 100_000, 200_000),
)

QUICK = Sizes(
    rounds=1,
    lone_full=50,
    lone_normal=50,
    crowd=500,
    batch=100,
    batches=3,
    drained=300,
    finished=(0, 1_000, 10_000),
    waiting=400,
    claims=5,
    starts=20,
    cancels=5,
    idle=1.1,
    recoveries=1,
    remembered=(500, 1_000, 2_000),
)
