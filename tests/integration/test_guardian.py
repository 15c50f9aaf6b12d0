"""The store's file under a running supervisor: opened by strangers, taken away, locked, on a full disk."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner import StoreBusy, StoreError, TaskContext, TaskDefinition, TaskHandle
from taskrunner.chaos.disk.full_disk import no_space
from tests.disks import small_disk
from tests.integration.commands import Folder, wait_until
from tests.integration.machine import Heard, quick, sql, until
from tests.integration.rival import Rival
from tests.rivals import started
from tests.stores import beside
from tests.unit.processes import python

ROUNDS = 200

X_COMMITS = """
import sqlite3, sys, threading
connection = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
connection.execute("CREATE TABLE numbers(number INTEGER PRIMARY KEY)")
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
print("ready", flush=True)
number = 0
while not ended.wait(0.002):
    number += 1
    connection.execute("INSERT INTO numbers VALUES (?)", (number,))
connection.close()
print(number, flush=True)
"""


def deleted_files() -> list[str]:
    """What this process has open and nobody can find any more."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]  # noqa: PTH115
    return [link for link in links if "agent.db" in link and link.endswith("(deleted)")]


# ── strangers in our own process ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(60)
async def test_a_task_that_opens_the_store_by_plain_sqlite_is_refused(db: Path, tmp_path: Path) -> None:
    """By its path, a link and a second path, 200 times; of another process's commits none is lost (B53)."""
    (tmp_path / "link.db").symlink_to(db)
    (tmp_path / "twin").symlink_to(tmp_path)
    names = [str(db), str(tmp_path / "link.db"), str(tmp_path / "twin" / "agent.db"), f"file:{db}?mode=ro"]
    runner = quick(db)

    @runner.task
    async def stranger(ctx: TaskContext, name: str) -> str:
        try:
            other = sqlite3.connect(name, uri=True)
        except StoreError as error:
            return str(error)
        other.execute("SELECT count(*) FROM tasks").fetchall()
        other.close()
        return "it was opened"

    async with runner.working(concurrency=4):
        with started(X_COMMITS, db) as other:
            handles = [await stranger.enqueue(names[number % len(names)]) for number in range(ROUNDS)]
            told = {await handle.result(timeout=30) for handle in handles}
            counted, _ = other.communicate("\n")
        assert deleted_files() == []
    way = "read it by `await runner.read(sql)`, or use another process"
    assert told == {f"{db}: open in this process, where a second opening loses locks and commits; {way}"}
    assert sql(db, "SELECT count(*), max(number) FROM numbers") == [[int(counted), int(counted)]]
    assert int(counted) > 5
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", ROUNDS]]


# ── a file that is taken away ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["deleted", "replaced", "its folder is gone"])
async def test_a_supervisor_whose_file_is_gone_ends_with_one_sentence(db: Path, tmp_path: Path, how: str) -> None:
    """It starts nothing more, lets its bodies go, and makes no new file in the place of the old one (B53, G8)."""
    folder = tmp_path / "folder"
    folder.mkdir()
    runner = quick(folder / "agent.db", grace=0.2)
    running = anyio.Event()
    begun: list[str] = []

    @runner.task
    async def job(name: str) -> None:
        begun.append(name)
        running.set()
        await anyio.sleep(30)

    async with runner:
        await job.enqueue("first")
    supervising = asyncio.create_task(runner.run())
    await running.wait()
    if how == "its folder is gone":
        folder.rename(tmp_path / "moved")
    else:
        for path in folder.glob("agent.db*"):
            if path.is_file():
                path.unlink()
    if how == "replaced":
        (folder / "agent.db").touch()
    with anyio.fail_after(10), pytest.raises(StoreError, match="deleted or replaced while it was open") as caught:
        await supervising
    assert not isinstance(caught.value, StoreBusy)
    assert begun == ["first"]
    assert [path.name for path in folder.glob("agent.db")] == (["agent.db"] if how == "replaced" else [])
    if how == "replaced":
        assert (folder / "agent.db").stat().st_size == 0


def test_the_command_ends_with_3_when_its_file_is_gone(tmp_path: Path) -> None:
    """`taskrunner run` says so in one sentence, and leaves no traceback."""
    folder = Folder.make(tmp_path)
    folder.ok("enqueue", "wait_for", "file=gate")
    with folder.started("run", "app:runner", "--grace", "100ms") as supervisor:
        wait_until(folder.has_begun)
        for path in tmp_path.glob("agent.db*"):
            if path.is_file():
                path.unlink()
        output, _ = supervisor.communicate(timeout=15)
    assert supervisor.returncode == 3
    lines = output.splitlines()
    assert (
        lines[-1] == f"taskrunner: {folder.db}: the file was deleted or replaced while it was open; nothing was written"
    )
    assert "Traceback" not in output
    assert not folder.db.exists()


@pytest.mark.timeout(60)
def test_the_command_on_a_damaged_store(tmp_path: Path) -> None:
    """A page in the middle is spoilt: the supervisor ends with one sentence, or works, and never with a traceback."""
    folder = Folder.make(tmp_path)
    for _ in range(5):
        folder.ok("enqueue", "greet", f"name={'x' * 20_000}")
    with folder.db.open("r+b") as file:
        file.seek(-60_000, os.SEEK_END)
        file.write(os.urandom(20_000))
    for words in (("run", "app:runner", "--until-idle"), ("list",), ("doctor",), ("enqueue", "greet", "name=x")):
        done = folder.run(*words)
        assert "Traceback" not in done.stdout + done.stderr
        assert done.returncode in {0, 1, 3}
        if done.returncode and words != ("doctor",):
            assert re.search(r"corrupt|unreadable|damaged", done.stderr), done.stderr


# ── a full disk ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 20 MB of its own."""
    with small_disk(tmp_path / "small", "20m") as place:
        yield place


async def refused(task: TaskDefinition[[str], int, Any]) -> None:
    """Enqueue until there is no room for more."""
    with anyio.fail_after(5):
        try:
            while True:
                await task.enqueue("x" * 9_000)
        except StoreBusy as error:
            assert "nothing was written" in str(error)  # noqa: PT017 - of the first that is refused


@pytest.mark.timeout(60)
async def test_a_full_disk_under_running_jobs(small: Path) -> None:
    """B55: an enqueue is refused, jobs wait for their records, one line tells of it; all ends when there is room."""
    db = small / "agent.db"
    runner = quick(db, lease=2, heartbeat=0.2, busy_timeout=0.2)
    heard = Heard(runner, "store.trouble")
    runs: list[str] = []

    async def work(name: str) -> str:
        runs.append(name)
        await anyio.sleep(0.05)
        return name * 2_000

    @runner.task(max_retries=0)
    async def job(ctx: TaskContext, name: str) -> int:
        await ctx.progress(0.5, "half")
        return sum([len(await ctx.step("work", work, f"{name}{number}")) for number in range(8)])

    async with runner.working(concurrency=4):
        handles = [await job.enqueue(letter) for letter in "abcd"]
        await until(lambda: len(runs) > 4)
        with no_space(small):
            cpu = time.process_time()
            await refused(job)
            await anyio.sleep(4)
            spent = time.process_time() - cpu
            assert len(heard.events) == 1
        results = [await handle.result(timeout=20) for handle in handles]
    assert len(set(results)) == 1
    assert len(runs) == len(set(runs))  # no step ran twice: it waited for its record
    rows = sql(db, "SELECT status, attempt, losses, retry_count FROM tasks WHERE queue = 'default'")
    assert rows.count(["completed", 1, 0, 0]) >= 4
    assert {row[0] for row in rows} <= {"completed", "pending"}
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
    assert spent < 2.5, "it spins"


@pytest.mark.timeout(60)
def test_a_full_place_for_temporary_files(tmp_path: Path) -> None:
    """SQLite and supervisors need none: jobs run as ever (B55)."""
    folder = Folder.make(tmp_path)
    with small_disk(tmp_path / "tmp", "64k") as tmp, no_space(tmp):
        where = {"TMPDIR": str(tmp), "SQLITE_TMPDIR": str(tmp), "TEMP": str(tmp), "TMP": str(tmp)}
        for number in range(4):
            folder.ok("enqueue", "greet", f"name=x{number}", env=where)
        folder.ok("run", "app:runner", "--until-idle", env=where)
        assert [row["status"] for row in folder.json("list")] == ["completed"] * 4


# ── a lock that is held for long ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.timeout(60)
async def test_a_stranger_that_holds_the_lock_again_and_again(db: Path) -> None:
    """B57, a tenth of its times: longer than busy_timeout, shorter than the lease; no job is charged for it."""
    runner = quick(db, busy_timeout=0.5, lease=1.6, heartbeat=0.4)
    second = quick(db, busy_timeout=0.5, lease=1.6, heartbeat=0.4)
    heard = Heard(runner)
    runs: list[str] = []
    inside: set[str] = set()

    async def work(name: str) -> None:
        runs.append(name)
        await anyio.sleep(0.1)

    async def body(ctx: TaskContext, name: str) -> str:
        assert name not in inside
        inside.add(name)
        for number in range(6):
            await ctx.step("work", work, f"{name} {number}")
        inside.discard(name)
        return name

    for each in (runner, second):
        each.task(name="job", max_retries=0)(body)
    handles: list[TaskHandle[str]] = []
    async with runner.working(concurrency=3), second.working(concurrency=3):
        for round_ in range(3):
            handles += [await runner.enqueue("job", {"name": f"{round_}.{number}"}) for number in range(4)]
            rival = Rival(db)
            rival.hold(0.8)
            with pytest.raises(StoreBusy, match="nothing was written"):
                await runner.enqueue("job", {"name": "nobody"})
            await rival.gone()
            await anyio.sleep(1.2)
        for handle in handles:
            await handle.result(timeout=15)
    assert len(runs) == len(set(runs)) == 12 * 6
    assert sql(db, "SELECT count(*), sum(attempt), sum(losses), sum(retry_count) FROM tasks") == [[12, 12, 0, 0]]
    assert heard.of("lease.lost") == heard.of("task.fenced") == []


# ── another user ──────────────────────────────────────────────────────────────────────────────────────────────────────

AS_NOBODY = """
import contextlib, io, json, os, sys, tempfile
from taskrunner.cli.program import main
def call(db, *words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([*words, "--db", db])
    return code, out.getvalue(), err.getvalue()
db, folder, task = sys.argv[1:]
os.chdir(folder)
COMMANDS = [("list",), ("show", task), ("doctor",)]
COMMANDS += [("enqueue", "greet", "name=x"), ("run", "app:runner", "--until-idle")]
with tempfile.TemporaryDirectory() as place:  # what these need is loaded before the rights are gone
    for words in COMMANDS:
        call(os.path.join(place, "own.db"), *words)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(json.dumps([call(db, *words) for words in COMMANDS]))
"""


@pytest.fixture
def shared() -> Iterator[Folder]:
    """A folder that everybody can reach, which pytest's own are not, with an app and a store of root's in it."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.make(Path(place))
        folder.path.chmod(0o755)
        folder.ok("enqueue", "greet", "name=x")
        yield folder
        folder.path.chmod(0o755)


def as_nobody(folder: Folder) -> list[tuple[int, str, str]]:
    """The commands as another user: each one's exit code, output and errors."""
    (task,) = sql(folder.db, "SELECT id FROM tasks ORDER BY seq LIMIT 1")
    told = python(AS_NOBODY, folder.db, folder.path, task[0])
    return [(int(code), str(out), str(err)) for code, out, err in json.loads(told)]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("file", "place"), [(0o600, 0o755), (0o644, 0o755), (0o444, 0o755), (0o444, 0o555)])
def test_commands_of_another_user(shared: Folder, file: int, place: int, live: bool) -> None:
    """Reading commands tell the present state or one sentence; a worker refuses at once; nothing is created (B56)."""
    with started(WRITES_AND_STAYS if live else NOTHING, shared.db):
        for path in shared.path.glob("agent.db*"):
            path.chmod(file)
        shared.path.chmod(place)
        before = sorted(path.name for path in shared.path.iterdir())
        for words, (code, out, err) in zip(
            ("list", "show", "doctor", "enqueue", "run"), as_nobody(shared), strict=True
        ):
            assert "Traceback" not in out + err
            assert len(err.splitlines()) <= (9 if words == "doctor" else 1), err
            if words in {"enqueue", "run"}:
                assert (code, out) == (3, ""), words
                assert f"user 65534 may not {'read it' if file == 0o600 else 'write to it'}" in err
            elif code in {0, 1}:
                assert "pending" in out
            else:
                assert code == 3
                assert err.startswith(f"taskrunner: {shared.db}: ")
        assert sorted(path.name for path in shared.path.iterdir()) == before
        shared.path.chmod(0o755)


WRITES_AND_STAYS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("UPDATE tasks SET priority = 4")
print("open", flush=True)
sys.stdin.readline()
"""
NOTHING = """
import sys
print("here", flush=True)
sys.stdin.readline()
"""

READ_ONLY_MOUNT = """
import subprocess, sys
from pathlib import Path
folder = sys.argv[1]
subprocess.run(["mount", "--bind", folder, folder], check=True)
subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
for words in (["list"], ["doctor"], ["enqueue", "greet", "name=x"], ["run", "app:runner", "--until-idle"]):
    done = subprocess.run([sys.executable, "-m", "taskrunner", *words], cwd=folder, capture_output=True, text=True)
    print(done.returncode, "Traceback" in done.stderr, done.stderr.splitlines()[:1])
"""


def test_commands_on_a_mount_that_is_read_only(shared: Folder) -> None:
    """To root, too: who reads is told the present state or one sentence, who writes is refused at once (B56)."""
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        "-c",
        READ_ONLY_MOUNT,
        str(shared.path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=shared.env)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this machine lets us mount nothing")
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done
    for line in lines[:2]:
        assert line.startswith(("0 False []", "1 False", "3 False")), line
    for line in lines[2:]:
        assert line.startswith("3 False"), line
        assert "it lies on a mount that is read-only: mount it for writing, or choose another place" in line
    assert beside(shared.db) == ["agent.db"]
