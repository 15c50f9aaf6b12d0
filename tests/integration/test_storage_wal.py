"""The WAL stays small, whoever reads; a checkpoint holds nobody up; the checkpointer ends with its store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import apsw
import pytest

from taskrunner import TaskRunner
from taskrunner.chaos.disk.faulty_disk import Disk, disk
from taskrunner.core.errors import StoreError
from taskrunner.storage.checkpoint import PASSIVE_ABOVE, TRUNCATE_ABOVE, WARN_ABOVE
from taskrunner.storage.store import Store
from tests.rivals import let_go, snapshot
from tests.stores import beside, new_task, open_store, sql, sqlite_of

MEGABYTE = 1024 * 1024


@pytest.fixture
def bad_disk() -> Iterator[Disk]:
    """A disk that fails on demand."""
    with disk("failing") as bad:
        yield bad


def wal_size(db: Path) -> int:
    """Bytes of the WAL."""
    try:
        return db.with_name(f"{db.name}-wal").stat().st_size
    except FileNotFoundError:
        return 0


class Writing:
    """Somebody who stores large tasks, and what the WAL and the waits came to."""

    def __init__(self, store: Store, size: int = MEGABYTE // 4) -> None:
        self._store = store
        self._input = f'"{"x" * size}"'
        self.largest = 0
        self.longest = 0.0

    async def megabytes(self, total: int, *, pause: float = 0.0) -> None:
        """Store so much, with a pause after each task."""
        for _ in range(total * MEGABYTE // len(self._input)):
            began = time.monotonic()
            await self._store.tasks.enqueue(new_task(input=self._input))
            self.longest = max(self.longest, time.monotonic() - began)
            self.largest = max(self.largest, wal_size(self._store.path))
            await asyncio.sleep(pause)


async def smaller_than(db: Path, size: int) -> bool:
    """Whether the WAL becomes smaller in time."""
    for _ in range(100):
        if wal_size(db) < size:
            return True
        await asyncio.sleep(0.05)
    return False


async def test_the_wal_is_bounded_beside_readers_of_our_own(db: Path) -> None:
    """Readers that hold a snapshot nearly all the time do not keep the WAL from being cut off, at 25 MB a second."""
    async with open_store(db, durability="normal") as store, anyio.create_task_group() as group:

        def long_look(connection: apsw.Connection) -> None:
            connection.execute("BEGIN; SELECT count(*) FROM tasks").fetchall()
            time.sleep(0.1)
            connection.execute("COMMIT")

        async def keep_looking() -> None:
            while True:
                await sqlite_of(store)._readers.run(long_look)

        for _ in range(3):
            group.start_soon(keep_looking)
        writing = Writing(store)
        await writing.megabytes(100, pause=0.01)
        group.cancel_scope.cancel()
        assert TRUNCATE_ABOVE < writing.largest < TRUNCATE_ABOVE + 40 * MEGABYTE
        assert writing.longest < 2
    assert beside(db) == ["agent.db"]


async def test_a_reader_of_another_program_holds_nobody_up(db: Path) -> None:
    """While it holds its snapshot the WAL grows, commits go on; when it has left, the WAL is cut off."""
    async with open_store(db, durability="normal", lease=4, heartbeat=1, busy_timeout=1) as store:
        await store.tasks.enqueue(new_task())
        writing = Writing(store)
        with snapshot(db) as reader:
            await writing.megabytes(50)
            assert writing.largest > 50 * MEGABYTE
            began = time.monotonic()
            for _ in range(20):
                await store.tasks.enqueue(new_task())
                await store.tasks.counts()
                await asyncio.sleep(0.05)
            assert time.monotonic() - began < 4  # a cut that fails is tried more and more rarely
            assert writing.longest < 1
            let_go(reader)
        for _ in range(200):
            await store.tasks.enqueue(new_task())
            if wal_size(db) < PASSIVE_ABOVE:
                break
            await asyncio.sleep(0.05)
        assert wal_size(db) < PASSIVE_ABOVE


async def test_the_checkpointer_of_one_process_serves_all(db: Path) -> None:
    """Two engines on one file: neither waits for the other, and no lock file stays behind."""
    async with open_store(db, durability="normal") as first, open_store(db, durability="normal") as second:
        await asyncio.gather(*(Writing(store).megabytes(20) for store in (first, second)))
        assert await first.tasks.counts() == await second.tasks.counts()
    assert beside(db) == ["agent.db"]


async def test_a_store_closes_while_it_checkpoints(db: Path) -> None:
    """At whatever moment of a checkpoint: closing waits for it and no longer, and nothing is lost."""
    for number in range(30):
        with anyio.fail_after(5):
            async with open_store(db, durability="normal") as store:
                await store.tasks.enqueue(new_task(input=f'"{"x" * (PASSIVE_ABOVE + 100)}"'))
                await asyncio.sleep(number % 10 / 400)
                await store.tasks.enqueue(new_task())
        assert beside(db) == ["agent.db"]
    assert sql(db, "SELECT count(*) FROM tasks") == [[60]]


async def test_a_sync_that_fails_in_a_checkpoint_ends_the_writing(db: Path, bad_disk: Disk) -> None:
    """The disk did not take what it was given: nothing more is acknowledged, and the WAL is kept (G8)."""
    async with open_store(db, vfs="failing") as store:
        await store.tasks.enqueue(new_task())
        writer = sqlite_of(store)._writer
        assert writer is not None
        large = new_task(input=f'"{"x" * PASSIVE_ABOVE}"')
        bad_disk.fail("a sync fails", 2)  # the first is the commit's own
        await store.tasks.enqueue(large)
        with anyio.fail_after(5):
            while not bad_disk.fired:  # noqa: ASYNC110 - a thread below SQLite sets it
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        bad_disk.heal()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"the disk failed to make a commit durable.*writes nothing more"):
                await store.tasks.enqueue(new_task())
        assert await store.tasks.counts() == {"pending": 2}
    assert beside(db) == ["agent.db", "agent.db-shm", "agent.db-wal"]
    assert sql(db, "SELECT count(*) FROM tasks") == [[2]]


async def test_a_checkpoint_that_cannot_be_made_is_made_later(db: Path, bad_disk: Disk) -> None:
    """A full disk under the database, or no more files for a connection: commits go on, a later checkpoint works."""
    async with open_store(db, vfs="failing", durability="normal") as store:
        bad_disk.fail("a file is not opened", 1, times=3)
        writing = Writing(store)
        await writing.megabytes(6)
        bad_disk.heal()
        await asyncio.sleep(0.2)
        await store.tasks.enqueue(new_task())
        before = db.stat().st_size
        assert await smaller_than(db, 40 * MEGABYTE)
        await asyncio.sleep(0.3)
        assert db.stat().st_size >= before
        bad_disk.fail("no room to write", 1, times=1_000_000)
        with pytest.raises(StoreError):
            await writing.megabytes(1)
        bad_disk.heal()
        await writing.megabytes(1)
    assert beside(db) == ["agent.db"]


@pytest.mark.timeout(60)
async def test_an_idle_supervisor_cuts_the_wal_off(db: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B45: another program's reader makes it grow: somebody is told, and after its end heartbeats will do."""
    runner = TaskRunner(db, durability="normal", lease=4, heartbeat=0.2)
    async with runner.working():
        await runner.enqueue("nothing")
        with snapshot(db) as reader:
            await Writing(runner.store, MEGABYTE - 100).megabytes(150)
            assert wal_size(db) > WARN_ABOVE
            let_go(reader)
        assert await smaller_than(db, 64 * MEGABYTE + 1)
    warnings = [
        record.getMessage() for record in caplog.records if "keeps a read transaction open" in record.getMessage()
    ]
    assert len(warnings) == 1
    assert "agent.db-wal has grown to 1" in warnings[0]
    assert beside(db) == ["agent.db"]
