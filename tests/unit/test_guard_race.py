"""The access check beside a store's last closing, which removes the WAL's files at any moment."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from taskrunner.storage import guard

COME_AND_GO = """
import os, sys, time
while True:
    os.close(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600))
    time.sleep(0.0002)
    os.unlink(sys.argv[1])
    time.sleep(0.0002)
"""


def test_a_file_that_goes_away_is_no_obstacle(db: Path) -> None:
    """A store may be opened while another process closes it: the WAL's files may vanish while they are looked at."""
    db.touch()
    other = subprocess.Popen([sys.executable, "-S", "-c", COME_AND_GO, f"{db}-shm"])
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            guard.check_access(db, writing=True)
    finally:
        other.kill()
        other.wait()
