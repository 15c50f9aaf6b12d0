"""Opening and closing a store: whole or not at all, nothing left behind, one sentence for what cannot be opened."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
from pathlib import Path

import anyio
import apsw
import pytest

from taskrunner.core.clock import Clock
from taskrunner.core.errors import StoreBusy, StoreError
from taskrunner.storage.engine import load_migrations
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.sqlite_connection import APPLICATION_ID
from tests.conftest import what_is_open
from tests.rivals import write_lock
from tests.stores import bare, beside, new_task, open_store, sql, sqlite_of

LATEST = load_migrations("sqlite")[-1][0]


def empty_database(db: Path) -> None:
    """A database with a header and without tables, as a process leaves it that dies before its first migration."""
    connection = sqlite3.connect(db)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert db.stat().st_size > 0


async def left_behind(before: set[str]) -> set[str]:
    """What is open now and was not before; a thread has a moment for its last breath."""
    for _ in range(50):
        if not what_is_open() - before:
            break
        await asyncio.sleep(0.01)
    return what_is_open() - before


async def fails(db: Path, why: str, *, writing: bool = True, kind: type[StoreError] = StoreError) -> None:
    """The store cannot be opened, for this reason, and nothing is changed by the attempt."""
    before = {path.name: path.read_bytes() for path in db.parent.iterdir() if path.is_file()}
    with pytest.raises(kind, match=why):
        async with open_store(db, writing=writing, lease=1.5, heartbeat=0.3):
            pass
    assert {path.name: path.read_bytes() for path in db.parent.iterdir() if path.is_file()} == before


# ── what is opened ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_store_is_private_and_in_its_schema(db: Path) -> None:
    """The file, its WAL and its shared memory are for their owner alone; WAL, application id and version are set."""
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
        assert beside(db) == ["agent.db", "agent.db-shm", "agent.db-wal"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in db.parent.iterdir()} == {0o600}
    assert beside(db) == ["agent.db"]
    assert sql(db, "SELECT * FROM pragma_application_id, pragma_user_version, pragma_journal_mode") == [
        [APPLICATION_ID, LATEST, "wal"]
    ]
    assert [row[0] for row in sql(db, "SELECT number, applied_at, version FROM migrations")] == list(
        range(1, LATEST + 1)
    )


async def test_what_each_connection_is_told(db: Path) -> None:
    """Durable commits, foreign keys, stable plans, no surprises from the file's own schema."""
    async with open_store(db) as full, open_store(db, durability="normal") as normal:
        for store, synchronous in ((full, 2), (normal, 1)):
            writer = sqlite_of(store)._writer
            assert writer is not None
            pragmas = {
                "synchronous": synchronous,
                "foreign_keys": 1,
                "cell_size_check": 1,
                "temp_store": 2,
                "query_only": 0,
            }
            assert {name: writer.connection.pragma(name) for name in pragmas} == pragmas
            for option in (apsw.SQLITE_DBCONFIG_ENABLE_QPSG, apsw.SQLITE_DBCONFIG_DEFENSIVE):
                assert writer.connection.config(option, -1)
            assert not writer.connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, -1)


async def test_an_empty_file_is_taken_over(db: Path) -> None:
    """What `touch` or a package has put there becomes a store; an empty database too."""
    db.touch()
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
    empty = db.with_name("empty.db")
    empty_database(empty)
    async with open_store(empty) as store:
        await store.tasks.enqueue(new_task())
    assert sql(db, "SELECT count(*) FROM tasks") == sql(empty, "SELECT count(*) FROM tasks") == [[1]]


@pytest.mark.parametrize("writing", [True, False])
async def test_a_database_of_another_program_is_left_alone(db: Path, writing: bool) -> None:
    """Its tables or its application id show it, and not a byte of it changes."""
    connection = sqlite3.connect(db)
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()
    await fails(db, "this is a database of another program, not a taskrunner store", writing=writing)
    connection = sqlite3.connect(db)
    connection.execute("DROP TABLE notes")
    connection.execute("PRAGMA application_id = 7")
    connection.close()
    await fails(db, "this is a database of another program", writing=writing)


@pytest.mark.parametrize("writing", [True, False])
async def test_a_newer_schema_is_refused(db: Path, writing: bool) -> None:
    """An older taskrunner does not touch what a newer one has written."""
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
    sql(db, f"PRAGMA user_version = {LATEST + 1}")
    await fails(
        db,
        f"its schema is version {LATEST + 1}, this taskrunner knows up to {LATEST}: install a newer taskrunner",
        writing=writing,
    )


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("content", [b"x" * 4_096, b"not a database", b"SQLite format 3\x00" + b"\xff" * 500])
async def test_what_is_no_database_is_refused(db: Path, writing: bool, content: bytes) -> None:
    """It stays as it is."""
    db.write_bytes(content)
    await fails(db, "agent.db: ", writing=writing)


@pytest.mark.parametrize("writing", [True, False])
async def test_a_corrupt_store_is_named_so(db: Path, writing: bool) -> None:
    """The sentence says what to do."""
    bare(db).close()
    with db.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 900)
    with pytest.raises(StoreError, match=r"the database is corrupt \(.*\); restore it from a backup"):
        async with open_store(db, writing=writing):
            pass


async def test_a_reader_creates_and_changes_nothing(db: Path) -> None:
    """It needs a store of the present schema; it refuses to write, and leaves one file behind (B56)."""
    await fails(db, "there is no such file", writing=False)
    assert beside(db) == []
    db.touch()
    await fails(db, "its schema is older than version 1: start a supervisor or a client on it first", writing=False)
    assert db.stat().st_size == 0
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
    before = db.read_bytes()
    async with open_store(db, writing=False) as reader:
        assert await reader.tasks.counts() == {"pending": 1}
        with anyio.fail_after(1), pytest.raises(StoreError, match="this store was opened for reading only"):
            await reader.tasks.enqueue(new_task())
        with reader.engine.listen(["work"]) as news:
            await news.wait(0.1)
            sql(db, "UPDATE tasks SET priority = 3")
            assert await news.wait(2)
    assert beside(db) == ["agent.db"]
    sql(db, "UPDATE tasks SET priority = 5")
    assert len(before) == db.stat().st_size


async def test_a_reader_beside_a_writer_sees_what_is_new(db: Path) -> None:
    """No stale answer, whoever closes first (B56)."""
    async with open_store(db) as store, open_store(db, writing=False) as reader:
        for number in range(1, 20):
            await store.tasks.enqueue(new_task())
            assert await reader.tasks.counts() == {"pending": number}
        await store.engine.close()
        assert await reader.tasks.counts() == {"pending": 19}
    assert beside(db) == ["agent.db"]


# ── whole, or not at all ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_opening_and_closing_leaves_nothing(db: Path) -> None:
    """Fifty times: no file descriptor, no thread, no file beside the store, no row of a writer."""
    async with open_store(db):
        pass
    before = what_is_open()
    for _ in range(50):
        async with open_store(db) as store:
            await store.tasks.enqueue(new_task())
            await store.tasks.counts()
    assert await left_behind(before) == set()
    assert beside(db) == ["agent.db"]
    assert sql(db, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM writers)") == [[50, 0]]


async def test_an_opening_that_is_cancelled_leaves_nothing(db: Path) -> None:
    """At whatever moment: no thread goes on opening behind the caller's back, and the next opening works."""
    before = what_is_open()
    clock = Clock()
    for microseconds in range(0, 20_000, 400):
        opened = None
        with anyio.move_on_after(microseconds / 1e6):
            opened = await SQLiteEngine.open(db, clock=clock)
        if opened is not None:
            with anyio.CancelScope() as scope:
                scope.cancel()
                await opened.close()
        assert await left_behind(before) == set()
    assert beside(db) == ["agent.db"]
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())


async def test_a_locked_store_is_opened_late_or_not_at_all(db: Path) -> None:
    """A new file that somebody keeps locked: `StoreBusy` within the busy timeout. A store: it opens all the same."""
    empty_database(db)
    with write_lock(db, "EXCLUSIVE"), anyio.fail_after(5):
        await fails(db, "another program held the write lock for too long", kind=StoreBusy)
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
    with write_lock(db), anyio.fail_after(5):
        async with open_store(db, lease=1.5, heartbeat=0.3) as store:
            assert await store.tasks.counts() == {"pending": 1}
            with pytest.raises(StoreBusy):
                await store.tasks.enqueue(new_task())


async def test_many_openings_at_once(db: Path) -> None:
    """A new file opened by twelve at once in one process has one schema, and all of them write."""

    async def client() -> None:
        async with open_store(db) as store:
            await store.tasks.enqueue(new_task())

    await asyncio.gather(*(client() for _ in range(12)))
    assert sql(db, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM migrations)") == [[12, LATEST]]
    assert beside(db) == ["agent.db"]


@pytest.mark.parametrize("writing", [True, False])
async def test_a_store_opens_in_every_event_loop_of_a_process(db: Path, writing: bool) -> None:
    """Threads with loops of their own may have the same file open; none closes it for the others."""
    async with open_store(db) as store:
        errors: list[BaseException] = []

        async def use() -> None:
            for _ in range(5):
                async with open_store(db, writing=writing) as mine:
                    await mine.tasks.counts()

        def work() -> None:
            try:
                anyio.run(use)
            except BaseException as error:  # noqa: BLE001 - it is told below
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(100):
            await store.tasks.enqueue(new_task(str(number)))
        for thread in threads:
            thread.join()
        assert errors == []
    assert sql(db, "SELECT count(*) FROM tasks") == [[100]]


# ── the file under a running store ────────────────────────────────────────────────────────────────────────────────────


async def test_a_file_that_is_deleted_or_replaced_takes_no_writes(db: Path) -> None:
    """What would be written to a file that nobody can open any more is refused, not acknowledged and lost (B53)."""
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task("first"))
        moved = db.with_name("moved")
        db.rename(moved)
        with pytest.raises(
            StoreError, match=r"the file was deleted or replaced while it was open; nothing was written"
        ):
            await store.tasks.enqueue(new_task())
        db.write_bytes(b"a backup that somebody restores")
        with pytest.raises(StoreError, match="deleted or replaced"):
            await store.tasks.enqueue(new_task())
        db.unlink()
        moved.rename(db)
        await store.tasks.enqueue(new_task("second"))
    assert sql(db, "SELECT type FROM tasks") == [["first"], ["second"]]


async def test_plain_code_that_opens_the_store_is_refused(db: Path, tmp_path: Path) -> None:
    """In this process nobody opens the live file beside us, by no name and no way (B53)."""
    link = tmp_path / "link"
    link.symlink_to(db)
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
        for name in (db, link, f"{db}-wal", f"{db}-shm", f"file:{db}?mode=ro"):
            with pytest.raises(StoreError, match="open in this process"):
                sqlite3.connect(name, uri=True).close()
        with pytest.raises(StoreError, match="open in this process"):
            os.open(db, os.O_RDONLY)
        async with open_store(link) as same:
            assert same.path == store.path
            assert await same.tasks.counts() == {"pending": 1}
        await store.tasks.enqueue(new_task())
    sqlite3.connect(db).close()
