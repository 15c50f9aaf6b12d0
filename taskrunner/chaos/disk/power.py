"""The power is cut at every moment of a run of every verb: what was acknowledged is there, and nothing by halves."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from taskrunner.chaos.disk.faulty_disk import Disk, Record, disk
from taskrunner.chaos.disk.judge import Bench, Judge, judging
from taskrunner.chaos.disk.power_cut import cuts, distinct, honest
from taskrunner.chaos.disk.verbs import VERBS, SeededClock, World, build
from taskrunner.chaos.plants import plant
from taskrunner.chaos.report import Tally
from taskrunner.chaos.stores import new_task, open_store, writer_of
from taskrunner.core.errors import LeaseLost, TaskRunnerError

if TYPE_CHECKING:
    from taskrunner.chaos.report import Breach, Order
    from taskrunner.storage.store import Store

DB: Final = "agent.db"
LARGEST: Final = 60
"""Verbs of a round."""

MANY: Final = 6
"""How often each way to lose something is tried, at each moment."""

NOT_RANDOM: Final = frozenset({"bury", "retire", "register"})
"""Verbs that end what the others need."""

BREACHES: Final[dict[str, Breach]] = {"lost": "lost", "corrupt": "corrupt", "half applied": "wrong", "ahead": "wrong"}


@dataclass(frozen=True, slots=True)
class Part:
    """What is cut: how the store is opened, which syncs its disk ignores, and the names under which it is counted."""

    name: str
    images: int
    """Of a whole run."""
    durability: str = "full"
    lies: Callable[[str], bool] = honest
    may: frozenset[str] = frozenset()
    """The verdicts that break no promise; that they occur shows that the judge sees them."""
    found: str = ""
    """What those are counted as."""


LYING: Final = frozenset(BREACHES)
PARTS: Final = (
    Part("images", 50_500),
    Part(
        "images with durability normal",
        4_000,
        durability="normal",
        may=frozenset({"lost"}),
        found="unsynced tails seen to be lost",
    ),
    Part(
        "images of a disk that ignores each sync of the WAL",
        1_000,
        lies=lambda name: name.endswith("-wal"),
        may=LYING,
        found="lies about the WAL that were found",
    ),
    Part(
        "images of a disk that ignores each sync of the database",
        1_000,
        lies=lambda name: name == DB,
        may=LYING,
        found="lies about the database that were found",
    ),
)


def run(order: Order) -> Tally:
    """Cut the power so often, with each kind of durability and each kind of disk; images lie in memory if they can."""
    plant(order.plant)
    tally = Tally(order.kind)
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    base = memory if memory.is_dir() else Path(order.folder)
    with tempfile.TemporaryDirectory(prefix="taskrunner-power-", dir=base) as folder, judging() as judge:
        for number, part in enumerate(PARTS):
            wanted, round_ = order.share(part.images), 0
            made = 0
            while made < wanted:
                seed = order.seed * 10_000 + number * 1_000 + round_
                made += one_round(
                    part, seed, min(LARGEST, 12 + (wanted - made) // 40), Path(folder), judge, tally=tally
                )
                round_ += 1
    return tally


def one_round(part: Part, seed: int, verbs: int, folder: Path, judge: Judge, *, tally: Tally) -> int:
    """Record a run of so many verbs, cut its power at every moment, and judge what the disk may hold: how many images.

    The folder is empty before and afterwards.
    """
    chance, made = random.Random(seed), 0
    with disk("recording") as bad:
        recording = Recording(folder / DB, bad, judge, seed, part.durability)
        anyio.run(recording.record, verbs)
    bench = Bench(folder / "images", judge, DB)

    moments = cuts(recording.start, recording.log, part.lies)
    for (place, acked, kind), sound, state in bench.look(distinct(moments, chance, MANY)):
        made += 1
        tally.faults += 1
        tally.count(part.name)
        tally.count(f"cut with {kind}")
        verdict = recording.verdict(acked, state) if sound == "ok" else sound
        if verdict in part.may:
            tally.count(part.found)
        elif verdict != "right":
            what = f"{part.name}, round {seed} of {verbs} verbs, cut {place} with {kind}"
            then = f"{acked} calls had returned, the last: {recording.names[acked]}"
            tally.broken(BREACHES[verdict], f"{what}: {verdict}; {then}: {state}")
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return made


class Recording:
    """A run of random verbs over a recording disk: its operations, and the state after each acknowledged call."""

    def __init__(self, db: Path, bad: Disk, judge: Judge, seed: int, durability: str) -> None:
        self._db = db
        self._disk = bad
        self._judge = judge
        self._chance = random.Random(seed)
        self._durability = durability
        self._clock = SeededClock(seed)
        self.start: dict[str, bytes] = {}
        self.log: list[Record] = []
        self.states: list[str] = []
        self.names: list[str] = ["nothing"]
        """The verb that has led to each state."""

    async def record(self, verbs: int) -> None:
        """Make the world, and change it by so many verbs in two stores on it, with checkpoints and clean restarts."""
        world = await build(self._db)
        self.start = {self._db.name: self._db.read_bytes()}
        self.states.append(self._judge.state(self._db))
        self._disk.log = self.log
        done = 0
        while done < verbs:
            async with self._opened() as first, self._opened() as second:
                for _ in range(self._chance.randrange(5, 15)):
                    await self._one(self._chance.choice([first, second]), world)
                    done += 1
        self._disk.log = None

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Store]:
        async with open_store(self._db, vfs="recording", clock=self._clock, durability=self._durability) as store:
            writer_of(store).wal_autocheckpoint(24)
            yield store

    async def _one(self, store: Store, world: World) -> None:
        name = self._chance.choice([name for name in VERBS if name not in NOT_RANDOM])
        try:
            if self._chance.random() < 0.3:
                size = self._chance.choice([9, 900, 6_000])
                name = f"enqueue {size} characters"
                await store.tasks.enqueue(new_task(input=f'"{"x" * size}"'))
            else:
                await VERBS[name](store, world)
        except (LeaseLost, TaskRunnerError, ValueError):  # it has ended or is there already: nothing was written
            return
        self.states.append(self._judge.state(self._db))
        self.names.append(name)
        self.log.append(("ack", len(self.states) - 1))
        if self._chance.random() < 0.1:
            mode = self._chance.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
            writer_of(store).execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def verdict(self, acked: int, state: str) -> str:
        """What is to be said of an image with this state."""
        found = [number for number, known in enumerate(self.states) if known == state]
        if not found:
            return "half applied"
        if any(acked <= number <= acked + 1 for number in found):
            return "right"
        return "lost" if max(found) < acked else "ahead"
