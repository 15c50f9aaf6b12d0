"""The file between several processes for a long while: writers, checkpoints, strangers in our own process."""

from __future__ import annotations

import json
import random
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskRunner
from tests.integration.test_storage_processes import at_once, sound
from tests.rivals import started
from tests.stores import beside, sql
from tests.unit.processes import python

HAMMER = """
import asyncio, json, random, sys, time
from pathlib import Path
import anyio
from taskrunner.core.errors import StoreBusy
from taskrunner.storage.listing import Filter
from tests.stores import claim, end, new_task, open_store, register, sqlite_of

async def main(db, name, seconds):
    chance, acked, ends = random.Random(name), [], time.monotonic() + seconds
    async with open_store(db) as store, anyio.create_task_group() as group:
        await register(store, name, lease=600)

        async def write(number):
            while time.monotonic() < ends:
                many = chance.choice([1, 1, 20])
                sent = [new_task("x" * chance.choice([9, 9, 3_000]), queue=name) for _ in range(many)]
                try:
                    acked.extend(await store.tasks.enqueue_many(sent))
                except StoreBusy:
                    await asyncio.sleep(0.1)

        async def work():
            while time.monotonic() < ends:
                try:
                    for task in await claim(store, name, 20, [name]):
                        await end(store, task, chance.choice(["completed", "failed", "released"]))
                except StoreBusy:
                    await asyncio.sleep(0.1)

        async def look():
            while time.monotonic() < ends:
                await store.listing.rows(Filter(status="completed"), limit=500)
                await asyncio.sleep(0.01)

        def checkpoints():
            connection = sqlite_of(store)._connect(0.1)
            while time.monotonic() < ends:
                mode = chance.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
                try:
                    connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
                except Exception as error:
                    assert "Busy" in type(error).__name__, error
                time.sleep(chance.random() / 20)
            connection.close()

        for number in range(4):
            group.start_soon(write, number)
        group.start_soon(work)
        group.start_soon(look)
        group.start_soon(anyio.to_thread.run_sync, checkpoints)
    print(json.dumps(acked))

print("ready", flush=True)
sys.stdin.readline()
anyio.run(main, Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
"""


@pytest.mark.timeout(90)
def test_writers_and_checkpoints_of_three_processes(db: Path) -> None:
    """20 seconds of commits and checkpoints of every kind: what was acknowledged is there, the file is sound (B52)."""
    acked = [json.loads(told) for told in at_once(HAMMER, [(db, f"hammer {number}", "20") for number in range(3)])]
    assert all(len(each) > 50 for each in acked)
    found = {row[0] for row in sql(db, "SELECT id FROM tasks")}
    assert found == {task_id for each in acked for task_id in each}
    assert sql(db, "SELECT count(*) FROM tasks WHERE status = 'running' AND attempt = 0") == [[0]]
    ended = "SELECT count(*) FROM attempts WHERE task_id = tasks.id"
    assert sql(db, f"SELECT * FROM tasks WHERE attempt - (status = 'running') <> ({ended})") == []  # noqa: S608 - its own text
    sound(db)
    assert beside(db) == ["agent.db"]


# ── B53 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

NUMBERS = """
import sqlite3, sys, threading
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
connection = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
connection.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
print("ready", flush=True)
number = 0
while not ended.wait(0.002):
    number += 1
    connection.execute("INSERT INTO numbers VALUES (?)", (number,))
    if number % 20 == 0:  # it comes and goes: closing is what deletes a WAL that seems to be nobody's
        connection.close()
        connection = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
connection.close()
print(number, flush=True)
"""

STRANGE_TASK = """
import ctypes, os, sqlite3, sys
from pathlib import Path
import anyio
from taskrunner import TaskRunner, StoreError

db = Path(sys.argv[1])
link, second = db.with_name("link.db"), db.parent / "twin" / ".." / db.name
link.symlink_to(db)
(db.parent / "twin").mkdir()
names = [str(db), str(link), str(second), f"{db}-wal", f"{link}-shm", f"file:{db}?mode=ro"]
libc = ctypes.CDLL(None)
runner = TaskRunner(db)
refused = 0

@runner.task
async def stranger(number: int) -> int:
    global refused
    for name in names:
        try:
            sqlite3.connect(name, uri=True).execute("SELECT count(*) FROM tasks").fetchall()
        except StoreError:
            refused += 1
        for path in (str(db), str(link)):  # as a library in C does it, which no hook of Python can refuse
            descriptor = libc.open(os.fsencode(path), os.O_RDWR)
            assert descriptor >= 0
            libc.close(descriptor)
    return number

async def main():
    async with runner.working(concurrency=2):
        for number in range(100):
            handles = [await stranger.enqueue(number) for _ in range(2)]
            assert [await handle.result(timeout=10) for handle in handles] == [number, number]
    print("refused", refused)

print("ready", flush=True)
sys.stdin.readline()
anyio.run(main)
for fd in Path("/proc/self/fd").iterdir():
    if fd.is_symlink() and db.name in os.readlink(fd):
        print("still open", os.readlink(fd))
"""


@pytest.mark.timeout(60)
def test_a_task_that_opens_the_store_itself(db: Path) -> None:
    """200 times by every name, in Python and in C, while another process commits: no row is lost (B53)."""
    python(f"import anyio\nfrom taskrunner import TaskRunner\nanyio.run(TaskRunner({str(db)!r}).drain)")
    with started(NUMBERS, db) as numbers:
        (told,) = at_once(STRANGE_TASK, [(db,)])
        last, _ = numbers.communicate("\n")
    assert told == "refused 1200\n", told
    assert sql(db, "SELECT count(*), max(number) FROM numbers") == [[int(last), int(last)]]
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", 200]]
    sound(db)


# ── B02 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_claim_that_is_cancelled_leaves_nothing_running(db: Path) -> None:
    """Whoever cancels the supervisor at whatever moment: what it had claimed has run or is queued again (B02)."""
    runner = TaskRunner(db, durability="normal", grace=0.2, sweep=0.05)
    ran: list[int] = []
    chance = random.Random(2)

    @runner.task
    async def work(number: int) -> None:
        ran.append(number)

    async with runner:
        for batch in range(40):
            await runner.enqueue_many([work.bind(batch * 10 + number) for number in range(10)])
            with anyio.move_on_after(chance.random() / 50):
                await runner.run(concurrency=5, until_idle=True)
            assert sql(db, "SELECT * FROM tasks WHERE status = 'running'") == []
        await runner.drain()
    assert sorted(ran) == list(range(400))
    assert sql(db, "SELECT status, count(*), max(losses), max(retry_count) FROM tasks GROUP BY 1") == [
        ["completed", 400, 0, 0]
    ]
    assert sql(db, "SELECT outcome FROM attempts GROUP BY outcome ORDER BY outcome") in (
        [["completed"], ["released"]],
        [["completed"]],
    )
