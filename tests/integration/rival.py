"""Another program that holds the store's write lock for a while, with plain SQLite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio

HOLD = """
import sqlite3, sys, time
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
base.execute("ROLLBACK")
"""


class Rival:
    """Another program, which takes the write lock and keeps it for a while."""

    def __init__(self, db: Path) -> None:
        self._db = db
        self._process: subprocess.Popen[str] | None = None

    def hold(self, seconds: float) -> None:
        """Take the lock; it is held when this returns."""
        command = [sys.executable, "-c", HOLD, str(self._db), str(seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        assert self._process.stdout.readline() == "held\n"

    @property
    def holds(self) -> bool:
        """Whether it has been told to take the lock."""
        return self._process is not None

    async def gone(self) -> None:
        """Wait until it has let go."""
        assert self._process
        await anyio.to_thread.run_sync(self._process.communicate)
