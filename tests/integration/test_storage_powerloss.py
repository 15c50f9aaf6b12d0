"""The power is cut at every moment of a run of every verb: what was acknowledged is there, and nothing by halves."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from pathlib import Path

import anyio
import pytest

from taskrunner.chaos.disk.faulty_disk import Disk, Record, disk
from taskrunner.chaos.disk.judge import Judge, judging
from taskrunner.chaos.disk.power_cut import CutAt, cuts
from taskrunner.chaos.disk.verbs import VERBS, SeededClock, World, build
from taskrunner.core.errors import LeaseLost, TaskRunnerError
from taskrunner.storage.store import Store
from tests.stores import new_task, open_store, sqlite_of


class Run:
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

    async def record(self, verbs: int) -> None:
        """Make the world, and change it by so many verbs, with checkpoints and clean restarts in between."""
        world = await build(self._db)
        self.start = {self._db.name: self._db.read_bytes()}
        self.states.append(self._judge.state(self._db))
        self._disk.log = self.log
        done = 0
        while done < verbs:
            async with open_store(self._db, vfs="recording", clock=self._clock, durability=self._durability) as store:
                writer = sqlite_of(store)._writer
                assert writer is not None
                writer.connection.wal_autocheckpoint(24)
                for _ in range(self._chance.randrange(5, 15)):
                    await self._one(store, world)
                    done += 1
        self._disk.log = None

    async def _one(self, store: Store, world: World) -> None:
        verb = self._chance.choice([name for name in VERBS if name not in {"bury", "retire", "register"}])
        try:
            if self._chance.random() < 0.3:
                await store.tasks.enqueue(new_task(input=f'"{"x" * self._chance.choice([9, 900, 6_000])}"'))
            else:
                await VERBS[verb](store, world)
        except (LeaseLost, TaskRunnerError, ValueError):  # it has ended or is there already: nothing was written
            return
        self.states.append(self._judge.state(self._db))
        self.log.append(("ack", len(self.states) - 1))
        if self._chance.random() < 0.1:
            writer = sqlite_of(store)._writer
            assert writer is not None
            mode = self._chance.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
            writer.connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def verdict(self, cut: CutAt, state: str) -> str:
        """What is to be said of an image with this state."""
        found = [number for number, known in enumerate(self.states) if known == state]
        if not found:
            return "half applied"
        if any(cut.acked <= number <= cut.acked + 1 for number in found):
            return "right"
        return "lost" if max(found) < cut.acked else "ahead"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("durability", "seed"), [("full", 1), ("full", 2), ("full", 3), ("normal", 4)])
def test_the_power_is_cut(tmp_path: Path, durability: str, seed: int) -> None:
    """With "full" every acknowledged call survives; with "normal" a tail may be gone, and no file is broken (G7)."""
    place = tmp_path / "after the cut"
    place.mkdir()
    said: Counter[str] = Counter()
    chance, seen = random.Random(seed), set()
    with judging() as judge, disk("recording") as bad:
        run = Run(tmp_path / "agent.db", bad, judge, seed, durability)
        anyio.run(run.record, 34)
        for cut in cuts(run.start, run.log):
            for kind, image in cut.images(chance, 2):
                digest = hashlib.sha256(repr((cut.acked, sorted(image.items()))).encode()).digest()
                if digest in seen:
                    continue
                seen.add(digest)
                for name, content in image.items():
                    (place / name).write_bytes(content)
                sound, state = judge.look(place / "agent.db")
                verdict = run.verdict(cut, state) if sound == "ok" else sound
                said[verdict] += 1
                assert verdict == "right" or (durability == "normal" and verdict == "lost"), (kind, cut.acked, state)
                for path in place.iterdir():
                    path.unlink()
    assert said.total() > 150, said
    assert bool(said["lost"]) == (durability == "normal")  # the control: these images do find a commit without a sync
