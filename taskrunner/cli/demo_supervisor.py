"""The demo's supervisor: a process of its own, so that it can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from taskrunner.cli.endings import Trouble
from taskrunner.core.clock import Clock
from taskrunner.workers.effects import Effect, append

APP: Final = "taskrunner.workers.survey:app"

GIVE_UP_AFTER: Final = 5
"""Starts in a row that end in an error before the demo gives up."""

STOP_PATIENCE: Final = 15.0
"""Seconds that a supervisor may take to stop."""


class Supervisor:
    """`taskrunner run` as a child process. It ends by itself when nothing is left to do, also when nobody watches."""

    def __init__(self, db: Path, witness: Path, concurrency: int) -> None:
        self._command = [sys.executable, "-m", "taskrunner", "--db", str(db), "run", APP]
        self._command += ["--until-idle", "--concurrency", str(concurrency)]
        self._witness = witness
        self._log = witness.with_name("supervisor.log")
        self._clock = Clock()
        self._child: subprocess.Popen[bytes] | None = None
        self._failures = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def died(self) -> bool:
        """Whether it ended in another way than by having nothing left to do."""
        return self._child is not None and self._child.poll() not in {None, 0}

    def ensure(self) -> None:
        """Start it if it does not run.

        Raises:
            Trouble: it ends in an error again and again.
        """
        code = None if self._child is None else self._child.poll()
        if self._child is not None and code is None:
            return
        self._failures = self._failures + 1 if code is not None and code > 0 else 0
        if self._failures >= GIVE_UP_AFTER:
            message = f"the supervisor ends with exit code {code} again and again; see {self._log}"
            raise Trouble(message)
        self._start(idle=code == 0)

    def kill(self) -> None:
        """Kill it with SIGKILL, and note that in the effect log."""
        if self._child is None:
            return
        self._child.kill()
        self._child.wait()
        append(self._witness, [Effect(event="kill", pid=self._child.pid, time=self._now())])

    def stop(self) -> None:
        """Let it end in peace; it has nothing left to do, or was told to stop by the same Ctrl-C."""
        if self._child is None or self._child.poll() is not None:
            return
        self._child.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_PATIENCE)
        self._child.kill()
        self._child.wait()

    def _start(self, *, idle: bool) -> None:
        before = self._now()
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(  # noqa: S603 - our own command
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        # A start after a rest is no recovery: the figures pass it over.
        event = "rested" if idle else "spawn"
        append(self._witness, [Effect(event=event, pid=self._child.pid, time=before)])

    def _now(self) -> str:
        return self._clock.now().isoformat()
