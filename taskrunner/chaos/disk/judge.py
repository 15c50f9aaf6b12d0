"""A judge in a process of its own, with Python's own SQLite: is the file sound, and what does it hold?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_JUDGE = r"""
import hashlib, sqlite3, sys
TABLES = ("sessions", "messages", "tasks", "steps", "attempts", "retries", "logs", "task_types", "supervisors")
for line in sys.stdin:
    try:
        connection = sqlite3.connect(line.rstrip("\n"), timeout=0, isolation_level=None)
        try:
            sound = [row[0] for row in connection.execute("PRAGMA integrity_check")]
            sound += [str(row) for row in connection.execute("PRAGMA foreign_key_check")]
            digest = hashlib.sha256()
            names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
            for table in TABLES:
                rows = connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall() if table in names else []
                digest.update(repr(rows).encode())
            told = "ok" if sound == ["ok"] else "corrupt"
        finally:
            connection.close()
        print(told, digest.hexdigest(), flush=True)
    except sqlite3.DatabaseError as error:
        print("corrupt", type(error).__name__, error, flush=True)
"""


class Judge:
    """Looks at files, one after another."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def state(self, db: Path) -> str:
        """A digest of all that the store holds, but for the marks of its writers; the file has to be sound."""
        verdict, digest = self.look(db)
        assert verdict == "ok", digest
        return digest

    def look(self, db: Path) -> tuple[str, str]:
        """The verdict, `ok` or `corrupt`, and the digest or the reason."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{db}\n")
        self._process.stdin.flush()
        verdict, _, rest = self._process.stdout.readline().strip().partition(" ")
        return verdict, rest


@contextmanager
def judging() -> Iterator[Judge]:
    """Have a judge at hand."""
    with subprocess.Popen(
        [sys.executable, "-c", _JUDGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Judge(process)
        finally:
            assert process.stdin
            process.stdin.close()
