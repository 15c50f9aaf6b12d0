"""Other programs on the store's file, each in a process of its own, with Python's own sqlite3."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=5, isolation_level=None)
connection.execute(sys.argv[2]).fetchall()
if len(sys.argv) > 3:
    connection.execute(sys.argv[3]).fetchall()
print("holding", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
connection.close()
print("let go", flush=True)
"""

INSERTS = """
import sqlite3, sys, threading
connection = sqlite3.connect(sys.argv[1], timeout=float(sys.argv[2]), isolation_level=None)
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
print("ready", flush=True)
number = 0
while not ended.is_set():
    number += 1
    connection.execute(
        "INSERT INTO tasks(id, history_id, type, max_retries, max_losses, run_at, created_at, updated_at, queue) "
        "VALUES (?1, ?1, 'x', 3, 5, ?2, ?2, ?2, 'x')", (f"x {number}", "2026-01-01T00:00:00.000000Z"))
print(number, flush=True)
"""
"""Inserts tasks of another queue until it is told to end; it waits for the lock for at most so many seconds."""


@contextmanager
def started(code: str, *args: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that prints a line when it has begun, and ends when its standard input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), process.wait()
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            assert process.wait(15) in {0, -9}
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@contextmanager
def write_lock(db: Path, mode: str = "IMMEDIATE") -> Iterator[subprocess.Popen[str]]:
    """Somebody holds the write lock for as long as the block runs; a line on its standard input lets go earlier."""
    with started(_HOLDER, db, f"BEGIN {mode}") as process:
        yield process


@contextmanager
def snapshot(db: Path) -> Iterator[subprocess.Popen[str]]:
    """Somebody reads from one snapshot of the store for as long as the block runs."""
    with started(_HOLDER, db, "BEGIN", "SELECT count(*) FROM tasks") as process:
        yield process


def let_go(process: subprocess.Popen[str]) -> None:
    """Have a holder let go now."""
    assert process.stdin
    assert process.stdout
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "let go\n"
