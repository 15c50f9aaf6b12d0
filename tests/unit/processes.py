"""Real processes for tests: programs that print, and supervisors to be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from taskrunner.core.model import SupervisorRow
from taskrunner.runtime.liveness import Identity, OwnLock

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def python(code: str, *args: str | Path, command: tuple[str, ...] = ()) -> str:
    """Run a program in a process of its own, perhaps under another command, and return what it printed."""
    words = [*command, sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ── supervisors ───────────────────────────────────────────────────────────────────────────────────────────────────────

OWNER = """
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from taskrunner.core.clock import Clock
from taskrunner.runtime.liveness import Identity, OwnLock
clock = Clock()
lock = OwnLock.take(Path(sys.argv[1]), clock.new_id())
if "fork" in sys.argv and os.fork() == 0:
    os.setsid()
    time.sleep(3)
    os._exit(0)
if "fork in C" in sys.argv:  # which runs none of Python's own handlers
    import ctypes
    if ctypes.CDLL(None).fork() == 0:
        time.sleep(3)
        os._exit(0)
print(json.dumps({"lock_name": lock.name, **asdict(Identity.of_this_process(clock))}), flush=True)
if "release" in sys.argv:
    sys.stdin.readline()
    lock.release(keep_file=True)
    print("released", flush=True)
sys.stdin.readline()
lock.release()
"""


def row_of(told: dict[str, Any]) -> SupervisorRow:
    """A supervisor's row, by what it told of itself."""
    return SupervisorRow(
        id=told["lock_name"].removesuffix(".lock"),
        expires_at=0,
        started_at=LONG_AGO,
        beat_at=LONG_AGO,
        ended_at=None,
        ended_how=None,
        **told,
    )


class Owner:
    """A process that holds a supervisor's lock."""

    def __init__(self, db: Path, *options: str, command: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", OWNER, str(db), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.row = row_of(json.loads(self.process.stdout.readline()))

    def say(self) -> None:
        """Let it go on."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """What it says."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def kill(self, *, reap: bool = True) -> None:
        """End it with SIGKILL; unless `reap`, it stays a zombie."""
        self.process.kill()
        if reap:
            self.process.wait()
        else:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        """Leave nothing of it."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()


@contextmanager
def owner(db: Path, *options: str, command: tuple[str, ...] = ()) -> Iterator[Owner]:
    """Run a process that holds a supervisor's lock."""
    started = Owner(db, *options, command=command)
    try:
        yield started
    finally:
        started.close()


def ours(here: Identity, lock: OwnLock) -> SupervisorRow:
    """A row of this very process."""
    names = ("boot_id", "pid", "pid_namespace", "start_time", "host")
    return row_of({"lock_name": lock.name, **{name: getattr(here, name) for name in names}})


def without_lock(other: Owner, folder: Path) -> None:
    """Take away what the lock can tell."""
    (folder / other.row.lock_name).unlink()
