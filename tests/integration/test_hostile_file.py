"""A file from somebody else (T14): damaged bit by bit, or with a schema that means harm."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from taskrunner import TaskContext
from tests.integration.machine import quick
from tests.stores import open_store

FILES: Final = 200
PER_PROCESS: Final = 25
COMMANDS: Final = (
    ("list", "--json"),
    ("list",),
    ("doctor", "--invariants", "--json"),
    ("stats", "--json"),
    ("show", "ID", "--json"),
    ("tail", "ID", "--timeout", "0"),
    ("pause", "some"),
    ("enqueue", "greet", "name=eve", "--json"),
    ("cancel", "ID"),
)
"""What only reads comes first: the others change the file."""

LOOK: Final = """
import contextlib, io, json, sys
from taskrunner.cli import main

commands, ids, files = json.load(sys.stdin)
for name in files:
    told = []
    for command in commands:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["--db", name, *(ids if word == "ID" else word for word in command)])
            out.flush(), err.flush()
        told.append([code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()])
    print(json.dumps(told), flush=True)
"""


def look(task_id: str, files: list[Path]) -> list[list[tuple[int, str, str]]]:
    """What the commands say of each file, in a process of its own: a crash of SQLite itself would be seen."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        input=json.dumps([COMMANDS, task_id, [str(file) for file in files]]),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return [[(code, out, err) for code, out, err in json.loads(line)] for line in done.stdout.splitlines()]


async def made(db: Path) -> str:
    """A store with tasks in all states, steps, messages and a log; the id of one that has ended."""
    runner = quick(db)

    @runner.task(max_retries=0)
    async def greet(ctx: TaskContext, name: str) -> str:
        said = await ctx.step("say", str.upper, name)
        ctx.log.info("said", said=said)
        if name == "bob":
            raise ValueError(name)
        return said

    async with runner:
        session = await runner.sessions.create(title="talk")
        await session.add("user", "hello")
        handles = [await greet.enqueue(name) for name in ("ann", "bob", *map(str, range(20)))]
        await runner.drain()
        for name in map(str, range(20)):
            await greet.options(delay="1h", unique_key=f"key {name}", session_id=session.id).enqueue(name)
    return handles[0].id


def rows(out: str) -> set[tuple[str, str]]:
    """The tasks of a list, by id and status; those that are marked as unreadable are told of."""
    return {(row["id"], row["status"]) for row in json.loads(out) if "unreadable" not in row}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", range(FILES // PER_PROCESS))
async def test_flipped_bits_are_never_a_traceback_and_never_silently_wrong(tmp_path: Path, part: int) -> None:
    """Each of 200 damaged files is refused in a sentence, or its tasks are those of the sound one, or doctor tells."""
    sound = tmp_path / "sound.db"
    task_id = await made(sound)
    content = sound.read_bytes()
    chance, files = random.Random(part), []
    for number in range(PER_PROCESS):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            place = chance.randrange(100 if chance.random() < 0.1 else len(damaged))
            damaged[place] ^= 1 << chance.randrange(8)
        files.append(tmp_path / f"{number}.db")
        files[-1].write_bytes(damaged)
    [first, *others] = look(task_id, [sound, *files])
    assert [code for code, _out, _err in first[:5]] == [0, 0, 0, 0, 0], first
    known = rows(first[0][1])
    assert len(known) == 42
    for file, told in zip(files, others, strict=True):
        for command, (code, out, err) in zip(COMMANDS, told, strict=True):
            said = f"{file.name} {command}: {code} {err[-2_000:]}"
            assert code in {0, 1, 2, 3, 4, 124}, said
            assert "Traceback" not in err, said
            assert "--debug shows where" not in err, said
            assert code in {0, 1} or err.count("\n") == 1, said
            assert (code == 0) <= (not err or "--json" not in command or "doctor" in command), (said, out[:200])
        (code, out, _err), (found, _told, _why) = told[0], told[2]
        assert code != 0 or rows(out) == known or found != 0, f"{file.name}: {sorted(rows(out) ^ known)}"


TRIGGER: Final = "CREATE TRIGGER evil AFTER INSERT ON tasks BEGIN SELECT {0}; END"
WRITTEN: Final = (
    "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET "
    "sql = replace(sql, 'unique_key TEXT', 'unique_key TEXT {0}') "
    "WHERE name = 'tasks'"
)
POISON: Final = {
    "a trigger that loads code": TRIGGER.format("load_extension('evil')"),
    "a trigger with a tokenizer": TRIGGER.format("fts3_tokenizer('a', x'00')"),
    "a trigger that writes a file": TRIGGER.format("writefile('evil', 'x')"),
    "a view in a table's place": (
        "ALTER TABLE queues RENAME TO other; "
        "CREATE VIEW queues AS SELECT load_extension('evil') AS name, 1 AS paused_at, 1 AS concurrency"
    ),
    "a check that does things": WRITTEN.format("CHECK (load_extension(''evil'') IS NULL)"),
    "a default that does things": WRITTEN.format("DEFAULT (load_extension(''evil''))"),
    "no SQL at all": WRITTEN.format("''; DROP"),
}


@pytest.mark.parametrize("poison", POISON)
async def test_a_schema_that_means_harm_does_none(tmp_path: Path, poison: str) -> None:
    """No function of a schema's runs that could do things; what cannot be used is told in one sentence."""
    db = tmp_path / "agent.db"
    task_id = await made(db)
    connection = sqlite3.connect(db)
    connection.executescript(POISON[poison])
    connection.close()
    before = {path.name for path in tmp_path.iterdir()}
    [told] = look(task_id, [db])
    for command, (code, _out, err) in zip(COMMANDS, told, strict=True):
        assert "Traceback" not in err, (command, err)
        assert "--debug shows where" not in err, (command, err)
        assert code in {0, 1, 2, 3, 4, 124}, (command, err)
    assert {path.name for path in tmp_path.iterdir()} - {f"{db.name}.d"} == before - {f"{db.name}.d"}
    if "trigger" in poison:
        document: Any = json.loads(told[2][1])
        assert any("trigger evil on tasks is none of taskrunner's" in trouble for trouble in document["troubles"])


async def test_a_name_in_the_file_is_looked_for_among_the_tasks_alone(db: Path) -> None:
    """T9: a row whose type is a function of Python's runs nothing: no supervisor knows such a task."""
    runner = quick(db)

    @runner.task
    async def known() -> None: ...

    names = ("os:system", "os.system", "subprocess.run", "builtins.eval", "__import__('os').system('x')", "known.fn")
    async with runner.working():
        handles = [await runner.enqueue(name, {"command": f"touch {db}.evil"}) for name in names]
        await (await known.enqueue()).result(timeout=10)
        for handle in handles:
            task = await handle.task()
            assert (task.status, task.output) == ("pending", None)
    async with open_store(db, writing=False) as store:
        assert await store.queues.all() == {}
    assert not db.with_name(f"{db.name}.evil").exists()
