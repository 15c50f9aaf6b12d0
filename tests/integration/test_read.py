"""`runner.read(sql)`: a user's own SELECT on the open store, which cannot write, whatever stands in it (G10)."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from taskrunner import InvalidInput, NotOpen, StoreError, TaskContext, TaskRunner
from tests.integration import children_app
from tests.integration.children_app import at_work
from tests.integration.machine import quick

ENDLESS: Final = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) AS c FROM n"


@pytest.fixture
async def runner(db: Path) -> AsyncIterator[TaskRunner]:
    """An open one with three tasks in its store, of which one has ended."""
    runner = quick(db)

    @runner.task
    async def greet(ctx: TaskContext, name: str) -> str:
        return await ctx.step("say", str.upper, name)

    async with runner:
        session = await runner.sessions.create(title="talk")
        await session.add("user", "hello")
        await greet.enqueue("ann")
        await runner.drain()
        await greet.options(priority=1).enqueue("bob")
        await greet.options(delay="1h").enqueue("eve")
        yield runner


async def test_rows_come_as_the_file_has_them(runner: TaskRunner) -> None:
    """Each row is a dict by column; JSON and times are text, and SQLite's own functions work on them."""
    rows = await runner.read(
        "SELECT type, status, input ->> 'name' AS name FROM tasks WHERE status = :status ORDER BY priority",
        {"status": "pending"},
    )
    assert rows == [
        {"type": "greet", "status": "pending", "name": "bob"},
        {"type": "greet", "status": "pending", "name": "eve"},
    ]
    assert await runner.read("SELECT count(*) AS n, max(created_at) < '2' AS old FROM tasks;") == [{"n": 3, "old": 0}]
    assert await runner.read("SELECT id FROM tasks WHERE 0 -- none") == []
    assert await runner.read("SELECT x'00ff' AS b, NULL AS n, 1.5 AS f") == [{"b": b"\x00\xff", "n": None, "f": 1.5}]
    assert await runner.read("WITH t AS (SELECT 1 AS a) SELECT count(*) AS n FROM t") == [{"n": 1}]
    assert (await runner.read("SELECT value FROM json_each('[1,2]')"))[1] == {"value": 2}
    assert await runner.read("SELECT task_id FROM leases") == []
    assert "tasks" in {row["name"] for row in await runner.read("SELECT name FROM sqlite_schema")}
    assert await runner.read("EXPLAIN QUERY PLAN SELECT * FROM tasks")


REFUSED: Final = {
    "": "sql: it is empty: write one SELECT",
    " ; -- nothing": "sql: it is empty: write one SELECT",
    "SELECT 1; DELETE FROM tasks": "sql: it would do DELETE, and read only reads: write a SELECT",
    "SELECT 1; SELECT 2": "sql: it has several statements: write one SELECT",
    "DELETE FROM tasks": "sql: it would do DELETE, and read only reads: write a SELECT",
    "UPDATE tasks SET status = 'completed'": "sql: it would do UPDATE, ",
    "INSERT INTO sessions (id) VALUES ('x')": "sql: it would do INSERT, ",
    "CREATE TABLE t (a)": "sql: it would do ",
    "CREATE TEMP TABLE t (a)": "sql: it would do ",
    "DROP TABLE tasks": "sql: it would do ",
    "ATTACH 'other.db' AS o": "sql: it would do ATTACH, ",
    "VACUUM INTO 'copy.db'": "sql: ",
    "PRAGMA query_only = OFF": "sql: it would do PRAGMA, ",
    "PRAGMA writable_schema = ON": "sql: it would do PRAGMA, ",
    "SELECT * FROM pragma_table_info('tasks')": "sql: ",
    "SELECT * FROM dbstat": "sql: the table dbstat is not one that read shows",
    "SELECT count(*) FROM sqlite_dbpage": "sql: ",
    "BEGIN IMMEDIATE": "sql: it would do TRANSACTION, ",
    "SAVEPOINT s": "sql: it would do SAVEPOINT, ",
    "ANALYZE": "sql: it would do ",
    "REINDEX": "sql: it would do REINDEX, ",
    "SELECT load_extension('x.so')": "sql: ",
    "SELECT instr(input, 'a') FROM tasks": "sql: the function instr() is not among those that read runs: ",
    "SELECT randomblob(9)": "sql: the function randomblob() is not among those that read runs: ",
    "SELEC 1": 'sql: SQLite does not run it: near "SELEC": syntax error',
    "SELECT blue FROM tasks": "sql: SQLite does not run it: no such column: blue",
    "SELECT 1 AS a, 2 AS a": "sql: two columns are called 'a': name each with AS",
    "SELECT 1\x00": "sql: it has a character that no SQL has: U+0000, or half of a surrogate pair",
    "SELECT '\ud800'": "sql: it has a character that no SQL has: U+0000, or half of a surrogate pair",
    "SELECT ?": "params: the statement has a parameter without a name, or none are given: write :name",
    "SELECT :a": "params: the statement has a parameter without a name, or none are given: write :name",
    f"SELECT {'1,' * 60_000} 1": "sql: it has 120,009 characters, and 100,000 are the most: ",
    f"SELECT {'1+' * 2_000}1": "sql: SQLite does not run it: ",
    f"{ENDLESS.replace('count(*) AS c', 'x')}": "sql: it gives more than 100,000 rows: add a LIMIT, or count in SQL",
    "SELECT format('%.*c', 100000000, 'x') AS a": "sql: SQLite does not run it: ",
}


@pytest.mark.parametrize("sql", REFUSED, ids=lambda sql: str(sql)[:40].encode("ascii", "replace").decode())
async def test_what_is_no_single_select_is_refused(runner: TaskRunner, sql: str) -> None:
    """One sentence names what is wrong; nothing is written, and the next question is answered."""
    with pytest.raises(InvalidInput) as caught:
        await runner.read(sql)
    assert str(caught.value).startswith(REFUSED[sql])
    assert caught.value.path in {"sql", "params"}
    assert await runner.read("SELECT count(*) AS n FROM tasks") == [{"n": 3}]


@pytest.mark.parametrize(
    ("sql", "params", "said"),
    [
        (None, None, "sql: it must be a text, and it is a value of type NoneType"),
        (b"SELECT 1", None, "sql: it must be a text, and it is a value of type bytes"),
        ("SELECT :a", ["x"], "params: it must be a mapping, such as {'status': 'failed'} for :status, and it is "),
        ("SELECT :a", {1: 2}, "params: 1 is no name of a parameter: :status is called 'status'"),
        ("SELECT :a", {"a": 2**64}, "params: a=a value of type int: no column holds its kind; "),
        ("SELECT :a", {"a": float("nan")}, "params: a=nan: no column holds its kind; "),
        ("SELECT :a", {"a": "\ud800"}, "params: a="),
        ("SELECT :a", {"a": ["x"]}, "params: a=a value of type list: no column holds its kind; "),
        ("SELECT :a", {"b": 1}, "params: the statement asks for :a, which is not given"),
        ("SELECT :a", {"a": 1, "b": 1}, "params: 'b' is not asked for: the statement has no :b"),
        ("SELECT ?", {"a": 1}, "params: the statement has a parameter without a name, or none are given: write :name"),
    ],
)
async def test_odd_arguments_are_refused(runner: TaskRunner, sql: Any, params: Any, said: str) -> None:  # noqa: ANN401 - odd ones
    """What cannot be asked, or looked for, is named with the rule."""
    with pytest.raises(InvalidInput) as caught:
        await runner.read(sql, params)
    assert str(caught.value).startswith(said)


async def test_a_long_question_ends_in_time_and_holds_nothing_up(runner: TaskRunner) -> None:
    """After `timeout` one sentence says so; meanwhile the event loop turns, and other reads and writes go on."""
    told: list[str] = []

    async def ask() -> None:
        with pytest.raises(StoreError, match=r"^sql: it took longer than 0\.5 s: ask for less, or give it more by"):
            await runner.read(ENDLESS, timeout=0.5)
        told.append("ended")

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(ask)
        await anyio.sleep(0.1)
        assert len(await runner.tasks.list()) == 3
        await runner.pause("default")
        assert told == []
    assert told == ["ended"] * 4


async def test_a_cancelled_question_stops(runner: TaskRunner) -> None:
    """A wait that is cancelled ends at once, and its question with it: the store can be closed without waiting."""
    begun = time.monotonic()
    with anyio.move_on_after(0.1) as scope:
        await runner.read(ENDLESS, timeout="1h")
    assert scope.cancelled_caught
    async with anyio.create_task_group() as group:
        group.start_soon(runner.read, ENDLESS)
        await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    assert time.monotonic() - begun < 5


async def test_a_closed_runner_is_not_asked(db: Path) -> None:
    """Before it is opened it says so; a close ends what is being asked."""
    runner = quick(db)
    with pytest.raises(NotOpen):
        await runner.read("SELECT 1")

    async def ask() -> None:
        with pytest.raises(StoreError):
            await runner.read(ENDLESS, timeout="1h")

    async with anyio.create_task_group() as group, runner:
        group.start_soon(ask)
        await anyio.sleep(0.1)
    assert [path.name for path in db.parent.iterdir()] == [db.name]


async def test_bodies_in_children_may_ask_too(db: Path) -> None:
    """A child has no database: its supervisor answers, with the same rows and the same sentences."""
    async with at_work(db):
        told = await (await children_app.asks.enqueue(["SELECT type AS t FROM tasks", "DROP TABLE tasks"])).result(20)
        assert told[0] == [{"t": "asks"}]
        assert str(told[1]).startswith("InvalidInput sql: it would do ")
        begun = time.monotonic()
        assert await (await children_app.asks_in_vain.enqueue(ENDLESS)).result(20) == "given up"
        assert time.monotonic() - begun < 10


# ── hostile statements ────────────────────────────────────────────────────────────────────────────────────────────────

COUNT: Final = 5_000

VALUES: Final = (
    *("1", "NULL", "''", "x'00'", "-9223372036854775808", "9e999", "'a' || 'b'", "id", "input", "*", ":a", "?", "?99"),
    *("load_extension('x')", "format('%.*c', 90000000, 'x')", "randomblob(1000000000)", "zeroblob(1000000000)"),
    *("replace(hex(zeroblob(10000000)), '00', 'aaaa')", "trim(input, input)", "writefile('x', 'y')", "readfile('x')"),
    *("group_concat(input)", "json_group_array(input)", "json('[' || input)", "sum(9223372036854775807)", "edit('x')"),
    *("fts3_tokenizer('a', 'b')", "sqlite_log(1, 'x')", "abs(-9223372036854775808)", "RAISE(ABORT, 'x')", "\x00", "`"),
    *("(SELECT count(*) FROM tasks a, tasks b, steps c)", "CAST(x'ff' AS TEXT)", "char(0, 55296, 1114111)", "é'", '"'),
    *("like('%a%a%a%a%', input)", "unhex('zz')", "eval('DELETE FROM tasks')", "last_insert_rowid()", "changes()"),
)
GOOD_VALUES: Final = ("1", "*", "type", "input ->> 'name'", "count(*)", "rowid", "like('%a%a%a%a%a%a%b', hex(input))")
GOOD_SOURCES: Final = ("tasks", "steps", "tasks a, tasks b", "json_tree('{\"a\":1}')", "sqlite_schema")
SOURCES: Final = (
    *("tasks", "messages", "sessions", "steps", "leases", "sqlite_schema", "sqlite_master", "sqlite_temp_schema"),
    *("dbstat", "sqlite_dbpage", "sqlite_stmt", "bytecode('SELECT 1')", "pragma_journal_mode('delete')", "carray(1)"),
    *("json_each('[1,[2]]')", "json_tree('{\"a\":1}')", "pragma_user_version", "temp.x", "main.tasks", "fts5vocab"),
    *("(WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n) SELECT * FROM n)", "tasks a, tasks b, tasks c"),
    *("tasks NATURAL JOIN steps", "pragma_wal_checkpoint", "generate_series(1, 1e9)", "tasks INDEXED BY nothing"),
)
STATEMENTS: Final = (
    "SELECT {v} FROM {s}",
    "SELECT {v}, {v} FROM {s} WHERE {v} = {v} ORDER BY {v} LIMIT {v}",
    "SELECT {v} UNION SELECT {v} FROM {s}",
    "WITH t AS (SELECT {v} FROM {s}), u AS (SELECT 1 FROM t, t) SELECT {v} FROM u, u",
    "WITH t(a) AS (VALUES ({v})) DELETE FROM tasks",
    "WITH t(a) AS (VALUES ({v})) INSERT INTO tasks SELECT * FROM {s}",
    "UPDATE tasks SET status = {v}",
    "UPDATE sqlite_schema SET sql = {v}",
    "INSERT INTO {s} VALUES ({v}) RETURNING *",
    "REPLACE INTO sessions (id) VALUES ({v})",
    "DELETE FROM {s} WHERE {v} RETURNING *",
    "CREATE TABLE x AS SELECT {v} FROM {s}",
    "CREATE TEMP VIEW x AS SELECT {v} FROM {s}",
    "CREATE TRIGGER x AFTER UPDATE ON tasks BEGIN DELETE FROM tasks; END",
    "CREATE VIRTUAL TABLE x USING fts5(a)",
    "CREATE INDEX x ON tasks ({v})",
    "DROP TABLE {s}",
    "ALTER TABLE tasks ADD COLUMN x DEFAULT {v}",
    "ALTER TABLE tasks RENAME TO x",
    "ATTACH {v} AS x",
    "ATTACH 'attached.db' AS x",
    "DETACH main",
    "VACUUM INTO 'vacuumed.db'",
    "VACUUM",
    "PRAGMA journal_mode = delete",
    "PRAGMA writable_schema = {v}",
    "PRAGMA query_only = 0",
    "PRAGMA user_version = 99",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA temp_store_directory = '.'",
    "PRAGMA incremental_vacuum",
    "PRAGMA optimize",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "ROLLBACK",
    "RELEASE x",
    "REINDEX {s}",
    "ANALYZE {s}",
    "EXPLAIN DELETE FROM {s}",
    "EXPLAIN SELECT {v} FROM {s}",
    "SELECT {v}; {more}",
    "{more} /* {v} */",
    "SELECT ({more})",
    "SELECT EXISTS (SELECT {v} FROM {s} GROUP BY {v} HAVING {v})",
    "SELECT sum({v}) OVER (PARTITION BY {v} ORDER BY {v}) FROM {s}",
)


def hostile(chance: random.Random, depth: int = 0) -> str:
    """One statement that means harm, or is none at all."""
    text = chance.choice(STATEMENTS)
    while "{" in text.replace("{}", ""):
        before = text
        value = chance.choice(GOOD_VALUES if chance.random() < 0.6 else VALUES)
        source = chance.choice(GOOD_SOURCES if chance.random() < 0.6 else SOURCES)
        text = text.replace("{v}", value, 1).replace("{s}", source, 1)
        text = text.replace("{more}", hostile(chance, depth + 1) if depth < 3 else "SELECT 1", 1)
        if text == before:
            break
    if chance.random() < 0.2:
        place = chance.randrange(len(text))
        text = (
            text[:place]
            + chance.choice((";", "'", '"', "--", "/*", "(", ")", ",", "\x00", "%", ""))
            + text[place + 1 :]
        )
    return text


def content(db: Path) -> dict[str, str]:
    """Every file of the folder with a digest of what it holds, as another program reads it."""
    done = subprocess.run(
        [
            "/usr/bin/sha256sum",
            *(path.name for path in sorted(db.parent.iterdir()) if not path.name.endswith((".d", "-shm"))),
        ],
        cwd=db.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[1]: line.split()[0] for line in done.stdout.splitlines()}


@pytest.mark.timeout(240)
async def test_hostile_statements_write_nothing_and_hang_nothing(
    runner: TaskRunner, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 of them: each is answered or refused in one sentence and in time, and no byte of any file is another."""
    monkeypatch.chdir(db.parent)
    chance, before = random.Random(4), content(db)
    answered, slowest = 0, 0.0
    for _ in range(COUNT):
        text = hostile(chance)
        begun = time.monotonic()
        said = "sql: its rows"
        try:
            await runner.read(text, timeout=0.05)
            answered += 1
        except (InvalidInput, StoreError) as error:
            said = str(error)
        assert said.startswith(("sql: ", "params: ")), (text, said)
        assert said.isprintable(), text
        slowest = max(slowest, time.monotonic() - begun)
        assert slowest < 1, text
    assert answered > COUNT / 50
    assert content(db) == before
