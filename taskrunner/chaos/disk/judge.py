"""A judge in a process of its own, with Python's own SQLite: is the file sound, and what does it hold?"""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

What = TypeVar("What")

_JUDGE = r"""
import hashlib, sqlite3, sys
TABLES = ("sessions", "messages", "tasks", "steps", "attempts", "retries", "logs", "task_types", "supervisors",
    "queues", "redactions", "removals")
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
    except Exception as error:
        print("corrupt", type(error).__name__, ascii(str(error)), flush=True)
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
        self.ask(db)
        return self.answer()

    def ask(self, db: Path) -> None:
        """Have it look at a file; `answer` tells of those that were asked about, in their order."""
        assert self._process.stdin
        self._process.stdin.write(f"{db}\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[str, str]:
        """The next verdict, as `look` gives it."""
        assert self._process.stdout
        verdict, _, rest = self._process.stdout.readline().strip().partition(" ")
        return verdict, rest


class Bench:
    """Images before a judge, who looks at some while the next ones are made."""

    WIDTH: Final = 16
    """Images that lie there at a time."""

    def __init__(self, folder: Path, judge: Judge, db: str) -> None:
        self._judge = judge
        self._db = db
        self._places = [folder / str(number) for number in range(self.WIDTH)]

    def look(self, images: Iterable[tuple[What, Mapping[str, bytearray]]]) -> Iterator[tuple[What, str, str]]:
        """Of each image (its files' contents by their names), what it is, the verdict, and the digest or the reason."""
        waiting: deque[What] = deque()
        for number, (what, image) in enumerate(images):
            if len(waiting) == self.WIDTH:
                yield waiting.popleft(), *self._judge.answer()
            place = self._places[number % self.WIDTH]
            place.mkdir(parents=True, exist_ok=True)
            for path in place.iterdir():
                path.unlink()
            for name, content in image.items():
                (place / name).write_bytes(content)
            self._judge.ask(place / self._db)
            waiting.append(what)
        while waiting:
            yield waiting.popleft(), *self._judge.answer()


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
