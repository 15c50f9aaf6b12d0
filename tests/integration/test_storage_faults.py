"""Every verb with every operation of the disk failing in turn: what is reported is what is in the file."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from taskrunner.chaos.disk.faulty_disk import FAULTS, Disk, disk
from taskrunner.chaos.disk.judge import Judge, judging
from taskrunner.chaos.disk.verbs import VERBS, SeededClock, Verb, World, build
from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown
from taskrunner.storage.store import Store
from tests.stores import beside, new_task, open_store, sqlite_of

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
    """One verb with one fault: what was reported, what the file holds then, and whether it goes on."""

    def __init__(self, template: Path, world: World, judge: Judge, bad: Disk, db: Path) -> None:
        self.template = template
        self.world = world
        self.judge = judge
        self.bad = bad
        self.db = db
        self.verb: Verb = nothing
        self.checkpoints = False
        self.reported = ""
        self.state = ""
        self.later = ""

    async def run(self, what: str, nth: int, times: int) -> bool:
        """Run it on a fresh copy; False when the fault was never reached."""
        shutil.copy(self.template, self.db)
        async with open_store(self.db, vfs="failing", clock=SeededClock(2)) as store:
            if self.checkpoints:
                await store.tasks.enqueue(new_task("first"))  # else a WAL would be made first
                writer = sqlite_of(store)._writer
                assert writer is not None
                writer.connection.wal_autocheckpoint(1)
            self.bad.fail(what, nth, times=times)
            self.reported = await self._outcome(self.verb(store, self.world))
            self.bad.heal()
            self.state = self.judge.state(self.db)
            self.later = await self._outcome(store.tasks.enqueue(new_task("later")))
        if (
            what == "a sync fails" and self.bad.fired
        ):  # a WAL that may not be on the disk is not copied into the database
            assert beside(self.db) == ["agent.db", "agent.db-shm", "agent.db-wal"]
        self.judge.state(self.db)
        assert beside(self.db) == ["agent.db"]
        self.db.unlink()
        return self.bad.fired > 0

    @staticmethod
    async def _outcome(call: Awaitable[object]) -> str:
        try:
            with anyio.fail_after(10):
                await call
        except StoreUnknown:
            return "unknown"
        except StoreBusy:
            return "busy"
        except StoreError:
            return "error"
        return "done"


@pytest.fixture
def trial(world: tuple[Path, World], judge: Judge, bad_disk: Disk, tmp_path: Path) -> Trial:
    """A verb under test, which the test sets."""
    return Trial(*world, judge, bad_disk, tmp_path / "agent.db")


async def nothing(_store: Store, _world: World) -> None:
    """The verb that does nothing."""


WITH_CHECKPOINTS = ("enqueue a batch", "claim", "record a step with all that belongs to it", "complete")


@pytest.mark.parametrize(
    ("verb", "checkpoints"), [*((verb, False) for verb in VERBS), *((verb, True) for verb in WITH_CHECKPOINTS)]
)
async def test_what_is_reported_is_what_is_there(trial: Trial, verb: str, checkpoints: bool) -> None:
    """Done is applied, busy and error are not, a failed sync is unknown and final, and nothing is half (G1, G8)."""
    trial.checkpoints = checkpoints
    states = []
    for trial.verb in (VERBS[verb], nothing):
        assert not await trial.run("a write fails", FROM_THEN_ON, 0)
        assert (trial.reported, trial.later) == ("done", "done")
        states.append(trial.state)
    after, before = states
    trial.verb = VERBS[verb]
    seen: Counter[tuple[str, str]] = Counter()
    for what, times in (
        *(
            (what, 1)
            for what in ("no room to write", "a write fails", "a sync fails", "a truncation fails", "a read fails")
        ),
        *((what, FROM_THEN_ON) for what in ("no room to write", "a write fails")),
    ):
        nth = 1
        while await trial.run(what, nth, times):
            case = f"{verb}: {what}, number {nth}, {times} times: {trial.reported}"
            seen[what, trial.reported] += 1
            assert trial.state in {before, after}, f"{case}: half applied"
            if trial.reported != "unknown":
                assert trial.state == (after if trial.reported == "done" else before), case
            assert trial.later == ("error" if trial.reported == "unknown" else "done"), f"{case}, later {trial.later}"
            if what == "no room to write":
                assert trial.reported in {"done", "busy"}, case
            if what == "a sync fails":
                assert trial.reported == "unknown", case
            nth += 1 if nth < 8 and times == 1 else 5
    if before != after:
        assert seen["no room to write", "busy"]
        assert seen["a write fails", "busy"]
        assert seen["a sync fails", "unknown"]
        assert checkpoints == bool(seen["a write fails", "done"] + seen["no room to write", "done"])


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
