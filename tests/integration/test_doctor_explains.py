"""`doctor` says of each trouble with a store's file, in one sentence, what it is and what to do about it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from taskrunner.cli.program import main
from taskrunner.storage import surroundings
from tests.disks import small_disk
from tests.rivals import snapshot, started, write_lock
from tests.stores import bare, new_task, open_store, sql
from tests.unit.plain_round import fill
from tests.unit.plain_sql import task_in
from tests.unit.processes import python

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

Doctor = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def doctor(db: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """`taskrunner doctor` on the test's store: its exit code, and the troubles that it tells."""

    def ask(path: Path = db) -> tuple[int, list[str]]:
        code = main(["doctor", "--db", str(path)])
        told = capsys.readouterr().err.splitlines()
        assert all(line.startswith("taskrunner: ") for line in told)
        return code, [line.removeprefix("taskrunner: ") for line in told]

    return ask


def make(db: Path, tasks: int = 0) -> None:
    """A store, at rest, with so many cancelled tasks."""
    connection = bare(db)
    for number in range(tasks):
        task_in(connection, "cancelled", f"t{number}")
    connection.close()


def found(told: tuple[int, list[str]], *sentences: str, code: int = 1) -> None:
    """These troubles, in this order, and no others."""
    assert told[0] == code
    assert len(told[1]) == len(sentences), told
    for line, sentence in zip(told[1], sentences, strict=True):
        assert re.search(sentence, line), f"{line!r} is not {sentence!r}"


# ── what cannot be opened ─────────────────────────────────────────────────────────────────────────────────────────────


def _newer(db: Path) -> None:
    make(db)
    sql(db, "PRAGMA user_version = 99")


def _another_program(db: Path) -> None:
    sql(db, "CREATE TABLE notes (text TEXT)")


def _wal_alone(db: Path) -> None:
    db.with_name("agent.db-wal").write_bytes(b"x" * 4_096)


def _corrupt_head(db: Path) -> None:
    make(db)
    with db.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 900)


UNOPENED: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda _: None, "there is no such file; name another one, or start a supervisor or a client"),
    "an empty file": (Path.touch, "its schema is older than version 1: start a supervisor or a client on it first"),
    "no database": (lambda db: db.write_bytes(b"x" * 4_096), "not a SQLite database: name another one, or restore it"),
    "another program's": (_another_program, "a database of another program, not a taskrunner store"),
    "a newer one": (_newer, "its schema is version 99, .* install a newer taskrunner"),
    "a WAL without its file": (
        _wal_alone,
        r"it is missing, and its WAL is there with 4,096 bytes .* put the file back",
    ),
    "a corrupt head": (_corrupt_head, "the database is corrupt .* restore it from a backup"),
}


@pytest.mark.parametrize("what", UNOPENED)
def test_what_cannot_be_opened(db: Path, doctor: Doctor, what: str) -> None:
    """Exit code 3, one sentence with the remedy, and nothing is created or changed (G8)."""
    prepare, sentence = UNOPENED[what]
    prepare(db)
    before = {path.name: path.read_bytes() for path in db.parent.iterdir() if path.is_file()}
    found(doctor(), f"^{db}: .*{sentence}", code=3)
    assert {path.name: path.read_bytes() for path in db.parent.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("empty", [True, False])
async def test_a_wal_without_its_file_is_not_thrown_away(db: Path, empty: bool) -> None:
    """Who opens a store whose file is gone, and whose WAL holds what was acknowledged, is stopped (G1, G8)."""
    _wal_alone(db)
    if empty:
        db.touch()
    for writing in (True, False):
        with pytest.raises(Exception, match="its WAL is there with 4,096 bytes of what it held"):
            async with open_store(db, writing=writing):
                pass
    assert db.with_name("agent.db-wal").stat().st_size == 4_096


# ── what is wrong inside ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_store(db: Path, doctor: Doctor) -> None:
    """No trouble at all, with tables and indexes of the user's own beside ours."""
    make(db, 3)
    sql(db, "CREATE TABLE mine(x)", "CREATE INDEX mine_x ON mine(x)", "ANALYZE")
    found(doctor(), code=0)


def test_a_missing_index_can_be_made_again_by_what_is_said(db: Path, doctor: Doctor) -> None:
    """Without it every claim fails; the sentence has the statement that mends it."""
    make(db)
    sql(db, "DROP INDEX tasks_claim")
    told = doctor()
    found(
        told, r"its index tasks_claim is missing: stop everybody and make it again with CREATE INDEX", "no such index"
    )
    sql(db, told[1][0].partition("again with ")[2])
    found(doctor(), code=0)


def test_triggers_that_are_missing_or_changed(db: Path, doctor: Doctor) -> None:
    """A rule that somebody has taken away or softened."""
    make(db)
    sql(
        db,
        "DROP TRIGGER tasks_final",
        "DROP TRIGGER steps_once",
        "CREATE TRIGGER steps_once BEFORE INSERT ON steps BEGIN SELECT 1; END",
    )
    found(
        doctor(),
        "its trigger steps_once is not as this version makes it: restore",
        "its trigger tasks_final is missing",
    )


def test_indexes_and_triggers_of_others(db: Path, doctor: Doctor) -> None:
    """They slow our writes down, or refuse them; the sentence says how to be rid of them."""
    make(db)
    sql(db, "CREATE INDEX theirs ON tasks(type)", "CREATE TRIGGER more BEFORE UPDATE ON tasks BEGIN SELECT 1; END")
    told = doctor()
    found(
        told, "the index theirs on tasks is none of taskrunner's, .*'DROP INDEX theirs'", "the trigger more on tasks .*"
    )
    sql(db, *(re.findall(r"'(DROP [^']*)'", line)[0] for line in told[1]))
    found(doctor(), code=0)


SPOIL = """
import sqlite3, sys
def connect():
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("PRAGMA writable_schema = ON")
    return connection
connection = connect()
row = connection.execute("SELECT * FROM sqlite_schema WHERE name = 'idx_tasks_status'").fetchone()
connection.execute("DELETE FROM sqlite_schema WHERE name = 'idx_tasks_status'")
connection.close()
connection = connect()
connection.execute("DELETE FROM tasks WHERE id = 't1'")
connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", row)
connection.close()
"""


def test_an_index_that_does_not_agree_with_its_table(db: Path, doctor: Doctor) -> None:
    """It gives wrong answers; REINDEX mends it, and the sentence says so."""
    make(db, 3)
    python(SPOIL, db)
    found(doctor(), "its index idx_tasks_status does not agree with its table: .*'REINDEX idx_tasks_status'")
    sql(db, "REINDEX idx_tasks_status")
    found(doctor(), code=0)


def test_a_spoilt_page(db: Path, doctor: Doctor) -> None:
    """Damage in the middle: what can be told is told, and how to save what can be read."""
    connection = bare(db)
    fill(connection, 300)
    connection.close()
    size = int(sql(db, "PRAGMA page_size")[0][0])
    page = int(sql(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'steps'")[0][0])
    with db.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)
    code, told = doctor()
    assert code == 1
    assert "restore it from a backup" in told[0]


def test_statistics_that_mislead(db: Path, doctor: Doctor) -> None:
    """Somebody's ANALYZE saw a young file: the sentence says how to take new ones."""
    connection = bare(db)
    fill(connection, 20)
    connection.execute("ANALYZE")
    fill_more = (
        "WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 3000) "
        "INSERT INTO messages(id, session_id, role, content, created_at) SELECT 'more' || n, 't', 'user', '', '' FROM n"
    )
    connection.execute(fill_more)
    connection.execute("DELETE FROM tasks WHERE status <> 'running'")
    connection.execute("UPDATE tasks SET parent_task_id = NULL")
    connection.close()
    _code, told = doctor()
    assert any(
        re.search("its statistics say that messages has 20 rows, and it has 3,020: .* ANALYZE", line) for line in told
    )
    sql(db, "ANALYZE")
    assert not any("statistics" in line for line in doctor()[1])


# ── what is wrong around it ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_for_everybody(db: Path, doctor: Doctor) -> None:
    """Conversations are nobody else's business (G10)."""
    make(db)
    db.chmod(0o644)
    found(doctor(), r"every user of this machine may use it \(mode 0644\): chmod it to 0600")
    db.chmod(0o640)  # a group is somebody's choice
    found(doctor(), code=0)


@needs_root
def test_a_folder_of_another_user(db: Path, doctor: Doctor) -> None:
    """Root has run a supervisor once, and left its folder: the owner's supervisors cannot lock anything there."""
    make(db)
    db.with_name("agent.db.d").mkdir()
    os.chown(db, 65_534, 65_534)
    found(
        doctor(), "agent.db.d: it belongs to user 0, and the store to user 65534, .* remove it when no supervisor runs"
    )


def test_a_disk_that_is_nearly_full(tmp_path: Path, doctor: Doctor) -> None:
    """Before supervisors stop writing (B55)."""
    with small_disk(tmp_path / "small") as small:
        make(small / "agent.db")
        found(doctor(small / "agent.db"), "1 MiB are free on its disk; when it is full nothing is written: make room")


def test_a_write_lock_that_somebody_keeps(db: Path, doctor: Doctor) -> None:
    """Who it is, by the system's list of locks (B57)."""
    make(db)
    with write_lock(db) as rival:
        found(
            doctor(), rf"process {rival.pid} \(.*\) keeps its write lock, and nobody else can write: end what it does"
        )
    found(doctor(), code=0)


async def test_a_wal_that_a_reader_keeps(
    db: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A large WAL, and who keeps it from being cut off (B45)."""
    monkeypatch.setattr(surroundings, "MUCH_WAL", 1024 * 1024)
    async with open_store(db) as store:
        await store.tasks.enqueue(new_task())
        with snapshot(db) as reader:
            for _ in range(8):
                await store.tasks.enqueue(new_task(input=f'"{"x" * 300_000}"'))
            told = await anyio.to_thread.run_sync(lambda: list(surroundings.lock_troubles(db, lambda: None)))
    assert len(told) == 1
    assert re.search(
        rf"its WAL has 2 MiB; process {reader.pid} \(.*\) reads from one snapshot of it .* end that read", told[0]
    )


HAS_IT_OPEN = """
import anyio, sys
from pathlib import Path
from tests.stores import new_task, open_store
async def main():
    async with open_store(Path(sys.argv[1])) as store:
        await store.tasks.enqueue(new_task())
        print("open", flush=True)
        sys.stdin.readline()
anyio.run(main)
"""


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_was_taken_from_under_a_process(db: Path, doctor: Doctor, how: str) -> None:
    """It works on a file that nobody can open any more: who it is, and what to do (B53)."""
    with started(HAS_IT_OPEN, db) as user:
        if how == "deleted":
            for path in db.parent.glob("agent.db*"):
                path.unlink()
        else:
            make(db.with_name("new"))
            for suffix in ("-wal", "-shm"):
                db.with_name(f"agent.db{suffix}").unlink()
            db.with_name("new").rename(db)
        code, told = doctor()
        sentence = rf"process {user.pid} \(.*\) has {db} open, which was deleted or replaced: .* end it, put the right"
        assert any(re.search(sentence, line) for line in told), told
        assert code == (3 if how == "deleted" else 1)
        if how == "deleted":
            assert not db.exists()


# ── --invariants ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_invariants_are_told_with_ids(db: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--invariants` ends with 0 where all hold, else with 1 and a sentence for each row; `--json` has them by name."""
    make(db, 30)
    assert main(["doctor", "--db", str(db), "--invariants"]) == 0
    assert re.search(r"invariants +(\d+) of \1 hold", capsys.readouterr().out)
    spoil = sqlite3.connect(db, isolation_level=None)
    spoil.execute("PRAGMA ignore_check_constraints = ON")
    spoil.execute("UPDATE tasks SET losses = 9")
    spoil.close()
    assert main(["doctor", "--db", str(db), "--invariants", "--json"]) == 1
    told = capsys.readouterr()
    document = json.loads(told.out)["invariants"]
    assert document["I4 ended once"] == []
    assert {"id": "t7", "says": "it has 9 losses, and may have 5"} in document["I15 retries and losses within bounds"]
    assert "I15 retries and losses within bounds does not hold for t0: it has 9 losses, and may have 5" in told.err
    assert "I15 retries and losses within bounds does not hold for 10 more; --json names them" in told.err
