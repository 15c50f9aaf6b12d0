"""Stores for tests: open ones, bare files of the present schema, and what another program sees of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import apsw

from taskrunner.chaos.stores import StillClock, claim, end, new_task, open_store, register
from taskrunner.core.clock import Clock
from taskrunner.core.events import Events
from taskrunner.core.settings import resolve
from taskrunner.runtime.channel import FROM_CHILD, TO_CHILD, Channel, FromChild, ToChild
from taskrunner.runtime.retention import Pruner
from taskrunner.storage import guard
from taskrunner.storage.engine import load_queries
from taskrunner.storage.remote import Desk, RemoteEngine
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.sqlite_connection import connect, migrate
from taskrunner.storage.store import Store

__all__ = ["StillClock", "claim", "end", "new_task", "open_store", "register"]  # of the harnesses

NOW = "2026-01-01T00:00:00.000000Z"
LATER = "2026-01-01T00:01:00.000000Z"


@asynccontextmanager
async def remote_store(db: Path, *, clock: Clock | None = None) -> AsyncIterator[Store]:
    """A store whose engine is asked over a wire, as in a child process."""
    clock = clock or Clock()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        async with open_store(db, clock=clock) as real, anyio.create_task_group() as group:
            here: Channel[FromChild] = Channel(ours, FROM_CHILD)
            there: Channel[ToChild] = Channel(theirs, TO_CHILD)
            desk, engine = Desk(real.engine, here.put), RemoteEngine(db, there.put)
            group.start_soon(here.pump)
            group.start_soon(there.pump)
            group.start_soon(_pass_on, here, desk.take)
            group.start_soon(_pass_on, there, engine.hear)
            yield Store(engine, clock, resolve(code={"db": db}))
            desk.close()
            group.cancel_scope.cancel()


def sqlite_of(store: Store) -> SQLiteEngine:
    """The engine of a store that is on a file here."""
    assert isinstance(store.engine, SQLiteEngine)
    return store.engine


async def _pass_on(channel: Channel[Any], take: Callable[[Any], None]) -> None:
    while messages := await channel.receive():
        for message in messages:
            take(message)


def bare(db: Path) -> apsw.Connection:
    """A connection to a file of the present schema, without an engine: only the schema's own rules hold."""
    guard.create_private(db)
    connection = connect(db, busy_timeout=5.0, synchronous="OFF", writing=True)
    connection.pragma("journal_mode", "wal")
    migrate(connection, db, Clock(), load_queries("sqlite"))
    return connection


_SQL = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
connection.execute("PRAGMA foreign_keys = ON")
answers = []
for statement in json.loads(sys.argv[2]):
    answers.append(connection.execute(statement).fetchall())
connection.close()
print(json.dumps(answers[-1]))
"""


def sql(db: Path, *statements: str) -> list[list[Any]]:
    """What Python's own sqlite3 answers to the last statement, in a process of its own, as anybody may ask."""
    words = [sys.executable, "-c", _SQL, str(db), json.dumps(statements)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows: list[list[Any]] = json.loads(done.stdout)
    return rows


def beside(db: Path) -> list[str]:
    """The names of the files that belong to the store, the database's own among them."""
    return sorted(path.name for path in db.parent.iterdir() if path.name.startswith(db.name))


def pruner_of(store: Store, clock: Clock, keep: float | None) -> Pruner:
    """Who removes the tasks of a store that finished more than `keep` seconds ago; None: the setting is off."""
    return Pruner(store, resolve(code={"keep_finished": keep}), clock, Events())
