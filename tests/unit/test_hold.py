"""What a process holds while SQLite has the database's file open (B53)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from taskrunner.core.errors import StoreBusy, StoreError
from taskrunner.storage.hold import SharedHold, file_key, same_file
from tests.unit.processes import python

WRITE_AND_LEAVE = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
connection.set_busy_timeout(2000)
connection.execute("INSERT INTO notes VALUES (?)", (sys.argv[2],))
connection.close()
"""

COUNT = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
print(*connection.execute("SELECT count(*) FROM notes").fetchone(), connection.pragma("integrity_check"))
"""


def locks(db: Path) -> list[str]:
    """Every lock that any process has on the file, as /proc/locks tells: kind, mode, range."""
    inode = str(db.stat().st_ino)
    text = Path("/proc/locks").read_text(encoding="ascii")
    lines = [line.split() for line in text.splitlines() if "->" not in line]  # one that waits is none
    return [f"{line[1]} {line[3]} {line[6]}" for line in lines if line[5].split(":")[2] == inode]


OURS = f"OFDLCK READ {0x4000_0002}"


@pytest.fixture
def wal(db: Path) -> Iterator[apsw.Connection]:
    """A connection to a database in WAL mode, with a table."""
    connection = apsw.Connection(str(db))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE notes (text TEXT)")
    yield connection
    connection.close()


def test_the_lock_is_taken_dropped_and_given_back(db: Path, wal: apsw.Connection) -> None:
    """`lock` and `unlock` do what they say, as often as they are called; after `close` nothing is open."""
    hold = SharedHold.take(db, lock=False)
    assert OURS not in locks(db)
    for _ in range(2):
        hold.lock()
        assert locks(db).count(OURS) == 1
    for _ in range(2):
        hold.unlock()
        assert OURS not in locks(db)
    hold.lock()
    wal.close()
    for _ in range(2):
        hold.close()
        assert locks(db) == []
    hold.lock()
    hold.unlock()
    assert locks(db) == []


def test_two_holds_of_one_file_share_it(db: Path, wal: apsw.Connection, tmp_path: Path) -> None:
    """Two runners on one file in one process: the lock and SQLite's own locks stay until the last one is closed."""
    (tmp_path / "link.db").symlink_to(db)
    wal.execute("BEGIN IMMEDIATE")
    first, second = SharedHold.take(db), SharedHold.take(tmp_path / "link.db")
    assert first.key == second.key == file_key(db)
    first.unlock()
    first.close()
    assert locks(db).count(OURS) == 1
    assert any(line.startswith("POSIX READ") for line in locks(db))
    wal.execute("COMMIT")
    second.unlock()
    assert OURS not in locks(db)
    wal.close()
    second.close()
    assert not db.with_name("agent.db-wal").exists()


def test_the_switch_to_wal_needs_the_file_alone(db: Path) -> None:
    """A lock from before the switch would refuse it; `StoreBusy` says that another process is at it."""
    connection = apsw.Connection(str(db))
    connection.execute("CREATE TABLE notes (text TEXT)")
    hold = SharedHold.take(db)
    with pytest.raises(apsw.BusyError):
        connection.pragma("journal_mode", "wal")
    hold.unlock()
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreBusy, match="another process has it for itself"):
        hold.lock()
    with pytest.raises(StoreBusy):
        SharedHold.take(db)
    connection.execute("COMMIT")
    connection.pragma("journal_mode", "wal")
    hold.lock()
    hold.unlock()
    connection.close()
    hold.close()


STRANGER = """
import os, sqlite3, subprocess, sys
import apsw
from pathlib import Path
from taskrunner.storage import hold as holding
db, write, guarded = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "guarded"
connection = apsw.Connection(str(db))
connection.set_busy_timeout(2000)
connection.pragma("journal_mode", "wal")
connection.execute("CREATE TABLE notes (text TEXT)")
if guarded:
    hold = holding.SharedHold.take(db)
holding._files.clear()  # so that the openings below are not refused, as if by a library in C
for round in range(20):
    if round % 2:
        os.close(os.open(db, os.O_RDONLY))
    else:
        other = sqlite3.connect(db)
        other.execute("SELECT count(*) FROM notes").fetchall()
        other.close()
    subprocess.run([sys.executable, "-c", write, str(db), f"other {round}"], check=True)
    connection.execute("INSERT INTO notes VALUES ('ours')")
print(sum("(deleted)" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
          if os.path.islink(f"/proc/self/fd/{fd}")))
connection.close()
"""


def test_a_second_library_in_our_process_loses_nothing(db: Path) -> None:
    """A stranger in our process opens and closes the file while another process writes: every row is there (B53)."""
    assert python(STRANGER, db, WRITE_AND_LEAVE, "guarded") == "0"
    assert python(COUNT, db) == "40 ok"


def test_without_the_hold_the_second_library_splits_the_store(db: Path) -> None:
    """The control: the same program without the hold works on deleted files, or loses rows (B53)."""
    deleted = python(STRANGER, db, WRITE_AND_LEAVE, "alone")
    assert deleted != "0" or python(COUNT, db) != "40 ok"


@pytest.mark.parametrize("name", ["agent.db", "link.db", "twin/../agent.db", "agent.db-wal", "agent.db-shm"])
def test_opening_the_live_file_beside_us_is_refused(
    db: Path, wal: apsw.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`open` and `sqlite3.connect` of the live file in our process raise one sentence, whatever its name (B53)."""
    (tmp_path / "link.db").symlink_to(db)
    (tmp_path / "twin").mkdir()
    monkeypatch.chdir(tmp_path)
    before = locks(db)
    hold = SharedHold.take(db)
    openings: list[Callable[[], object]] = [
        lambda: open(name, "rb"),  # noqa: PTH123, SIM115 - as users write it
        lambda: os.open(name.encode(), os.O_RDONLY),
        lambda: Path(name).read_bytes(),
        lambda: sqlite3.connect(name),
        lambda: sqlite3.connect(f"file:{name}?mode=ro", uri=True),
        lambda: sqlite3.connect(f"file://{(tmp_path / name).resolve()}", uri=True),
    ]
    for opening in openings:
        with pytest.raises(StoreError, match=r"agent\.db: open in this process, .* use another process"):
            opening()
    assert set(before) <= set(locks(db))
    assert python("import sys; print(len(open(sys.argv[1], 'rb').read(15)))", db) == "15"
    wal.close()
    hold.close()
    assert db.read_bytes().startswith(b"SQLite format 3")


def test_other_files_are_opened_as_ever(db: Path, wal: apsw.Connection, tmp_path: Path) -> None:
    """While a store is open, every other file and database opens; and what is no name fails as in Python."""
    hold = SharedHold.take(db)
    (tmp_path / "notes.txt").write_text("content")
    with os.fdopen(os.open(tmp_path / "notes.txt", os.O_RDONLY)) as file:
        assert file.read() == "content"
    other = sqlite3.connect(tmp_path / "other.db")
    other.close()
    sqlite3.connect(":memory:").close()
    with pytest.raises(ValueError, match="null byte"):
        open("a\x00b", "rb")  # noqa: PTH123, SIM115 - as users write it
    with pytest.raises(FileNotFoundError):
        (tmp_path / "none").read_text()
    wal.close()
    hold.close()


FORK = """
import os, sys
from pathlib import Path
import apsw
from taskrunner.storage.hold import SharedHold
db = Path(sys.argv[1])
connection = apsw.Connection(str(db))
connection.pragma("journal_mode", "wal")
connection.execute("CREATE TABLE notes (text TEXT)")
hold = SharedHold.take(db)
def locked():
    inode = ":" + str(os.stat(db).st_ino)
    return sorted(line.split()[1] for line in Path("/proc/locks").read_text().splitlines() if inode in line.split()[5])
def opened():
    return sum(os.path.realpath(f"/proc/self/fd/{fd}") == str(db) for fd in os.listdir("/proc/self/fd"))
print(opened(), *locked(), flush=True)
if (child := os.fork()) == 0:
    hold.unlock(); hold.lock(); hold.close(); hold.close()
    print(opened(), *locked(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(opened(), *locked(), flush=True)
hold.unlock()
print(opened(), *locked(), flush=True)
"""


def test_a_forked_child_takes_nothing_with_it(db: Path) -> None:
    """A fork leaves the parent's locks alone, whatever the child does; the child keeps no copy of our descriptor."""
    before, in_child, after, unlocked = python(FORK, db.resolve()).splitlines()
    assert before == after == "2 OFDLCK POSIX"  # our descriptor and SQLite's
    assert in_child == "1 OFDLCK POSIX"
    assert unlocked == "2 POSIX"


def test_a_file_that_was_deleted_or_replaced_is_noticed(db: Path, tmp_path: Path) -> None:
    """Somebody removes the database or puts another in its place while we have it open: the path tells (B53)."""
    db.touch()
    key = file_key(db)
    assert same_file(db, key)
    db.rename(tmp_path / "moved.db")
    assert same_file(tmp_path / "moved.db", key)
    assert not same_file(db, key)
    db.touch()
    assert not same_file(db, key)
    assert not same_file(db / "below", key)
    assert same_file(tmp_path / ("x" * 300), key)  # cannot be told


def test_a_missing_file_is_not_held(db: Path) -> None:
    """The file must be there: the hold creates nothing."""
    with pytest.raises(StoreError, match=r"agent\.db: it cannot be opened \(No such file"):
        SharedHold.take(db)
    assert not db.exists()
