"""What the machine does to a store: a full disk, another user, a folder that is read-only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from taskrunner.chaos.disk.full_disk import no_space
from taskrunner.core.errors import StoreBusy, StoreError
from taskrunner.storage.store import Store
from tests.disks import small_disk
from tests.stores import beside, claim, end, new_task, open_store, register, sql
from tests.unit.processes import python

NOBODY = 65534


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own."""
    with small_disk(tmp_path / "small") as place:
        yield place


async def fill(store: Store, size: int) -> list[str]:
    """Enqueue until there is no more room; what was acknowledged."""
    acked: list[str] = []
    for _ in range(2_000):
        try:
            acked.append(await store.tasks.enqueue(new_task(input=f'"{"x" * size}"')))
        except StoreBusy:
            return acked
    pytest.fail("the disk never became full")


@pytest.mark.parametrize("left", [0, 5_000, 50_000, 200_000])
async def test_a_full_disk_loses_nothing_and_ends_nothing(small: Path, left: int) -> None:
    """Each call says that nothing was written, and nothing was; when there is room again all goes on (B55, G8)."""
    db = small / "agent.db"
    async with open_store(db) as store:
        await register(store, "me")
        acked = await store.tasks.enqueue_many([new_task(str(number)) for number in range(20)])
        running = await claim(store, "me", 5)
        with no_space(small, left):
            acked += await fill(store, 700)
            for call in (
                lambda: store.tasks.enqueue(new_task(input=f'"{"x" * 9_000}"')),
                lambda: store.tasks.enqueue_many([new_task(input=f'"{"x" * 900}"') for _ in range(50)]),
            ):
                with anyio.fail_after(5), pytest.raises(StoreBusy, match="the disk is full; nothing was written"):
                    await call()
            assert (await store.tasks.counts())["pending"] == len(acked) - 5
        for task in running:
            assert await end(store, task) == "completed"
        acked.append(await store.tasks.enqueue(new_task("after")))
    assert {row[0] for row in sql(db, "SELECT id FROM tasks")} == set(acked)
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
    assert beside(db) == ["agent.db"]


async def test_a_store_is_closed_and_opened_on_a_full_disk(small: Path) -> None:
    """Closing loses nothing; opening says that the disk is full, or works; afterwards all is there."""
    db = small / "agent.db"
    told: list[str] = []
    with no_space(small), pytest.raises(StoreError, match=r"agent\.db: "):
        async with open_store(db):
            pass
    with ExitStack() as space:
        async with open_store(db) as store:
            acked = await store.tasks.enqueue_many([new_task(str(number)) for number in range(20)])
            space.enter_context(no_space(small))
            acked += await fill(store, 700)
        for writing in (True, False):
            try:
                async with open_store(db, writing=writing) as store:
                    found = await store.tasks.counts()
            except StoreError as error:
                told.append(str(error))
            else:
                assert found == {"pending": len(acked)}
    assert all(sentence.startswith(f"{db}: ") for sentence in told), told
    async with open_store(db) as store:
        acked.append(await store.tasks.enqueue(new_task("after")))
        assert await store.tasks.counts() == {"pending": len(acked)}
    assert {row[0] for row in sql(db, "SELECT id FROM tasks")} == set(acked)
    assert beside(db) == ["agent.db"]


# ── another user ──────────────────────────────────────────────────────────────────────────────────────────────────────

AS_NOBODY = """
import os, sys, tempfile
import anyio
from pathlib import Path
from taskrunner.core.errors import StoreError
from taskrunner.chaos.disk.full_disk import no_space
from tests.stores import beside, new_task, open_store

async def main(db, writing, tell=print):
    try:
        async with open_store(db, writing=writing) as store:
            tell((await store.tasks.counts()).get("pending", 0))
            if writing:
                await store.tasks.enqueue(new_task())
    except StoreError as error:
        tell(error)

with tempfile.TemporaryDirectory() as folder:  # what this needs is loaded before the rights are gone
    anyio.run(main, Path(folder) / "own.db", True, str)
    anyio.run(main, Path(folder) / "none.db", False, str)
os.setgid(65534)
os.setuid(65534)
anyio.run(main, Path(sys.argv[1]), sys.argv[2] == "writing")
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can reach, which pytest's own are not; the test sets what may be done there."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


async def make(db: Path) -> None:
    """A store with one task."""
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())


async def test_a_store_of_another_user(shared: Path) -> None:
    """It is private: who may not read it is told so, whatever he wants to do (G10)."""
    db = shared / "agent.db"
    await make(db)
    for how in ("writing", "reading"):
        assert (
            python(AS_NOBODY, db, how)
            == f"{db}: user 65534 may not read it (it belongs to user 0, mode 0600): use it as that user"
        )
    assert beside(db) == ["agent.db"]


@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o755), (0o444, 0o555), (0o644, 0o755)])
async def test_a_store_that_another_user_may_read(shared: Path, file: int, folder: int) -> None:
    """Reading gives the present state or one sentence, writing one sentence at once; nothing is created (B56)."""
    db = shared / "agent.db"
    await make(db)
    db.chmod(file)
    shared.chmod(folder)
    assert (
        python(AS_NOBODY, db, "writing")
        == f"{db}: user 65534 may not write to it (it belongs to user 0, mode {file:04o}): use it as that user"
    )
    told = python(AS_NOBODY, db, "reading")
    assert told == "1" or told.startswith(f"{db}: ")
    assert "\n" not in told
    assert beside(db) == ["agent.db"]


async def test_reading_another_user_s_store_beside_its_writer(shared: Path) -> None:
    """With a live writer: the present state or one sentence, never an old one (B56)."""
    db = shared / "agent.db"
    async with open_store(db) as store:
        for number in range(1, 4):
            await store.tasks.enqueue(new_task())
            for path in shared.iterdir():
                path.chmod(0o644)
            told = python(AS_NOBODY, db, "reading")
            assert told == str(number) or told.startswith(f"{db}: "), told
        assert beside(db) == ["agent.db", "agent.db-shm", "agent.db-wal"]
    assert beside(db) == ["agent.db"]


async def test_a_folder_that_takes_no_files(shared: Path) -> None:
    """No WAL can be made there: one sentence at once, and nothing is created."""
    db = shared / "agent.db"
    sentence = (
        f"{db}: user 65534 may not write to its folder, where SQLite keeps its WAL (it belongs to user 0, mode 0755)"
    )
    sentence += ": use it as that user, or choose another place"
    assert python(AS_NOBODY, db, "writing") == sentence
    await make(db)
    os.chown(db, NOBODY, NOBODY)
    assert python(AS_NOBODY, db, "writing") == sentence
    assert beside(db) == ["agent.db"]
