"""Another program that holds the store's write lock, with plain SQLite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
base.execute("ROLLBACK")
"""


@contextmanager
def holding(db: Path) -> Iterator[None]:
    """The lock is held by another process for as long as the block runs."""
    command = [sys.executable, "-c", _HOLD, str(db)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate("\n")
