"""Several processes on one file: opened at once, killed half-way, claimed from, hammered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from taskrunner.chaos.disk.judge import judging
from taskrunner.storage.engine import load_migrations
from tests.rivals import INSERTS, started
from tests.stores import beside, claim, new_task, open_store, register, sql
from tests.unit.processes import python

LATEST = load_migrations("sqlite")[-1][0]

CLIENT = """
import sys, time
import anyio
from pathlib import Path
from tests.stores import new_task, open_store

async def main(db, name, rounds):
    for number in range(rounds):
        async with open_store(db) as store:
            await store.tasks.enqueue(new_task(f"{name} {number}"))

print("ready", flush=True)
sys.stdin.readline()
anyio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
"""


def at_once(code: str, arguments: Sequence[Sequence[str | Path]]) -> list[str]:
    """Run a program several times at once: each says `ready`, then all begin; what they printed afterwards."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for each in arguments
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return told


def sound(db: Path) -> None:
    """The file is whole."""
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
    assert sql(db, "PRAGMA foreign_key_check") == []


def test_sixteen_processes_open_a_new_store_at_once(db: Path) -> None:
    """One makes the schema, the others wait for it; all of them write, and one file is left."""
    at_once(CLIENT, [(db, f"client {number}", "1") for number in range(16)])
    assert sql(db, "SELECT count(*) FROM tasks") == [[16]]
    assert [row[0] for row in sql(db, "SELECT number FROM migrations")] == list(range(1, LATEST + 1))
    assert beside(db) == ["agent.db"]
    sound(db)


def test_processes_that_come_and_go(db: Path) -> None:
    """The last one to close meets the next one to open, over and over: every task is there (B53)."""
    at_once(CLIENT, [(db, f"client {number}", "40") for number in range(5)])
    assert sql(db, "SELECT count(*), count(DISTINCT type) FROM tasks") == [[200, 200]]
    assert beside(db) == ["agent.db"]
    sound(db)


KILLED = """
import os, signal, sys
import anyio
from pathlib import Path
from taskrunner.chaos.disk.faulty_disk import disk
from tests.stores import new_task, open_store

class Killing:
    # kills this process before, or after, its nth operation that changes the disk
    def __init__(self, nth):
        self.left = nth
    def __call__(self, kind, *_rest):
        if kind in ("write", "sync", "truncate", "delete", "create"):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

async def main(db):
    async with open_store(db, vfs="killing") as store:
        await store.tasks.enqueue(new_task())

nth = 1
while True:
    db = Path(sys.argv[1]) / f"{nth}.db"
    child = os.fork()  # nothing is open yet
    if child == 0:
        with disk("killing") as bad:
            bad.note = Killing(nth)
            anyio.run(main, db)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
    nth += 1 if nth < 20 else 5  # most of the later ones are pages of one transaction
"""


async def test_a_process_that_is_killed_while_it_makes_the_store(tmp_path: Path) -> None:
    """After any operation on the disk: the next one to open finds a store, or makes it."""
    python(KILLED, tmp_path)
    found = set()
    files = list(tmp_path.glob("*.db"))
    with judging() as judge:
        for db in files:
            async with open_store(db) as store:
                found.add((await store.tasks.counts()).get("pending", 0))
                await store.tasks.enqueue(new_task())
            judge.state(db)
            assert beside(db) == [db.name]
    assert found == {0, 1}  # the task was there, or it was not
    assert len(files) > 30


# ── B02 ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

X_LOOKS = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0.25, isolation_level=None)
print("ready", flush=True)
for line in sys.stdin:
    ids = json.loads(line)
    marks = ",".join("?" * len(ids))
    rows = connection.execute(f"SELECT status, lease_owner FROM tasks WHERE id IN ({marks})", ids).fetchall()
    print(json.dumps(rows), flush=True)
"""


@pytest.mark.timeout(60)
async def test_claims_beside_a_program_with_little_patience(db: Path) -> None:
    """500 claims of 5: who waits 250 ms at most is never locked out, and sees what was claimed at once (B02)."""
    async with open_store(db) as store:
        await store.tasks.enqueue_many([new_task() for _ in range(2_500)])
        with started(INSERTS, db, "0.25") as inserts, started(X_LOOKS, db) as looks:
            assert looks.stdin
            assert looks.stdout
            for number in range(500):
                owner = f"owner {number}"
                await register(store, owner)
                tasks = await claim(store, owner, 5)
                assert len(tasks) == 5
                looks.stdin.write(json.dumps([task.id for task in tasks]) + "\n")
                looks.stdin.flush()
                assert json.loads(looks.stdout.readline()) == [["running", owner]] * 5
                await anyio.sleep(0.002)  # what is claimed has to be run, too
            told, _ = inserts.communicate("\n")
    assert int(told) > 100
    assert sql(db, "SELECT count(*) FROM tasks WHERE type = 'x'") == [[int(told)]]
    assert sql(db, "SELECT count(*), sum(attempt) FROM tasks WHERE status = 'running'") == [[2_500, 2_500]]
