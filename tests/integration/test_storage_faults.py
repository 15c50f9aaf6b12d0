"""Openings, closings and looks with every operation of the disk failing in turn (calls: `chaos --kind errors`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from taskrunner.chaos.disk.faulty_disk import FAULTS, Disk, disk
from taskrunner.chaos.disk.judge import Judge, judging
from taskrunner.chaos.disk.verbs import SeededClock, World, build
from taskrunner.core.errors import StoreError
from tests.stores import beside, new_task, open_store

FROM_THEN_ON = 1_000_000


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """Somebody who looks at the files."""
    with judging() as judge:
        yield judge


@pytest.fixture
def bad_disk() -> Iterator[Disk]:
    """A disk that fails on demand."""
    with disk("failing") as bad:
        yield bad


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, World]:
    """A store with something of everything."""
    db = tmp_path_factory.mktemp("world") / "agent.db"
    return db, anyio.run(build, db)


class Trial:
    """What a trial needs: a store with something of everything to copy, and where to."""

    def __init__(self, template: Path, world: World, db: Path) -> None:
        self.template = template
        self.world = world
        self.db = db


@pytest.fixture
def trial(world: tuple[Path, World], tmp_path: Path) -> Trial:
    """A fresh place."""
    return Trial(*world, tmp_path / "agent.db")


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("new", [True, False])
async def test_an_opening_that_meets_a_bad_disk(
    trial: Trial, judge: Judge, bad_disk: Disk, what: str, new: bool
) -> None:
    """It succeeds or says why in one sentence, leaves nothing open, and the next opening finds all that was there."""
    db, nth, fired = trial.db, 0, True
    told: list[str] = []
    if not new:
        shutil.copy(trial.template, db)
    before = None if new else judge.state(db)
    while fired:
        nth += 1 if nth < 10 else 5
        bad_disk.fail(what, nth)
        try:
            with anyio.fail_after(10):
                async with open_store(db, vfs="failing", busy_timeout=1) as store:
                    bad_disk.heal()
                    await store.tasks.counts()
        except StoreError as error:
            told.append(str(error))
        bad_disk.heal()
        fired = bad_disk.fired > 0
        async with open_store(db, vfs="failing") as store:
            await store.tasks.counts()
        assert beside(db) == ["agent.db"]
        if new:
            db.unlink()
        else:
            assert judge.state(db) == before
    assert not [sentence for sentence in told if not sentence.startswith(f"{db}: ")]
    assert told or what == "a truncation fails" or not new  # an opening of what is there need not write


@pytest.mark.parametrize("what", FAULTS)
async def test_a_closing_that_meets_a_bad_disk(trial: Trial, judge: Judge, bad_disk: Disk, what: str) -> None:
    """What was acknowledged is there at the next opening, however the closing went."""
    fired, nth = True, 0
    while fired:
        nth += 1
        shutil.copy(trial.template, trial.db)
        async with open_store(trial.db, vfs="failing", clock=SeededClock(2)) as store:
            await store.tasks.enqueue(new_task())
            state = judge.state(trial.db)
            bad_disk.fail(what, nth, times=3)
        bad_disk.heal()
        fired = bad_disk.fired > 0
        assert judge.state(trial.db) == state
        for path in trial.db.parent.glob("agent.db*"):
            path.unlink()


@pytest.mark.parametrize("what", ["a read fails", "a size is not told", "a file is not opened"])
async def test_a_look_that_meets_a_bad_disk(trial: Trial, bad_disk: Disk, what: str) -> None:
    """It is told in one sentence, nobody waits for ever, and the next look works."""
    shutil.copy(trial.template, trial.db)
    async with open_store(trial.db, vfs="failing") as store:
        for nth in range(1, 40):
            bad_disk.fail(what, nth, times=5)
            for _ in range(3):  # more than there are readers
                with anyio.fail_after(5), suppress(StoreError):
                    await store.tasks.get(trial.world.first.id)
            bad_disk.heal()
            assert (await store.tasks.get(trial.world.first.id)).id == trial.world.first.id
