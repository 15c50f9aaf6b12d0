"""Look at a store from another process, with another SQLite library: the standard library's own.

As a program (`look.py DB [--every SECONDS --times N] SQL …`) it prints one JSON list of rows for each SELECT. Run as a
file it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def look(db: Path, *statements: str) -> list[list[list[Any]]]:
    """The rows of each SELECT, read by another process."""
    return answers(asked(db, *statements))


def value(db: Path, statement: str) -> Any:  # noqa: ANN401 - whatever stands there
    """The only value of the only row."""
    [[[only]]] = look(db, statement)
    return only


def asked(db: Path, *statements: str, every: float = 0.0, times: int = 1) -> subprocess.Popen[str]:
    """Start a process that looks, perhaps again and again."""
    options = ["--every", str(every), "--times", str(times)] if times > 1 else []
    command = [sys.executable, "-S", __file__, str(db), *options, *statements]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers(process: subprocess.Popen[str]) -> list[list[list[Any]]]:
    """What such a process has seen, all of its looks in a row."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return [json.loads(line) for line in output.splitlines()]


def seconds_to_write_lock(db: Path) -> float:
    """How long another process waits for the write lock."""
    code = "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)"
    code += "; t = time.monotonic(); c.execute('BEGIN IMMEDIATE'); print(time.monotonic() - t); c.execute('ROLLBACK')"
    done = subprocess.run([sys.executable, "-S", "-c", code, str(db)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def is_locked(db: Path, patience: float = 0.2) -> bool:
    """Whether another process does not get the write lock within `patience` seconds."""
    code = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=float(sys.argv[2]), isolation_level=None)"
    code += "; c.execute('BEGIN IMMEDIATE'); c.execute('ROLLBACK')"
    command = [sys.executable, "-S", "-c", code, str(db), str(patience)]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def main() -> None:
    """Print the rows of each statement, `times` times."""
    db, *rest = sys.argv[1:]
    every, times = 0.0, 1
    if rest[0] == "--every":
        every, times = float(rest[1]), int(rest[3])
        rest = rest[4:]
    connection = sqlite3.connect(f"{Path(db).resolve().as_uri()}?mode=ro", uri=True, timeout=10)
    for number in range(times):
        time.sleep(every if number else 0.0)
        for statement in rest:
            sys.stdout.write(json.dumps(connection.execute(statement).fetchall()) + "\n")
    connection.close()


if __name__ == "__main__":
    main()
