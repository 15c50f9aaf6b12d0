"""The world of one test: a store, its witness, and the processes that work on it, each to be killed at any moment."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from taskrunner.chaos import plants
from taskrunner.chaos.kills import witness
from taskrunner.chaos.kills.gates import gate_of
from taskrunner.chaos.kills.jobs import APP

ROOT = Path(__file__).resolve().parents[3]
"""Where the package lies: the processes find it there."""


class Process:
    """A process of ours, watched by pidfd: it is no child of this one when the zygote forked it."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        try:
            self._watch = os.pidfd_open(pid)
        except ProcessLookupError:
            self._watch = -1

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still lives."""
        if self._watch >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watch, number)

    def wait(self, timeout: float) -> bool:
        """Wait for its end; False when it does not come in time (seconds)."""
        if self._watch >= 0:
            poll = select.poll()
            poll.register(self._watch, select.POLLIN)
            if not poll.poll(timeout * 1000):
                return False
            os.close(self._watch)
            self._watch = -1
        if self._child is not None:
            self._child.wait()
        return True

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return not self.wait(0)

    @property
    def code(self) -> int | None:
        """Its exit code, where it is our own child."""
        return None if self._child is None else self._child.returncode

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it is gone."""
        self.send(signal.SIGKILL)
        assert self.wait(10), f"process {self.pid} does not die"


class World:
    """A folder with a store and a witness. Leaving it kills every process that was started in it."""

    def __init__(self, folder: Path, *, warm: bool = True) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.db = folder / "agent.db"
        self.witness = folder / "witness.log"
        self.log = folder / "processes.log"
        self.tail = witness.Tail(self.witness)
        self.processes: list[Process] = []
        self.plant = ""
        """The bug that is planted in each supervisor from now on."""
        self._zygote = _zygote() if warm else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in self.processes:
            process.kill()
        witness.close(self.witness)
        if self._zygote is not None:
            assert self._zygote.stdin
            assert self._zygote.stdout
            self._zygote.stdin.close()
            self._zygote.wait()
            self._zygote.stdout.close()

    def supervisor(
        self,
        *options: str,
        app: str = APP,
        fresh: bool = False,
        command: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start `taskrunner run` on the store; `fresh`: with an interpreter of its own, perhaps under a `command`."""
        argv = ["run", app, "--db", str(self.db), *options]
        start = self._fresh if fresh or command or self._zygote is None else self._warm
        process = start(argv, {plants.VARIABLE: self.plant, **(env or {})}, command)
        self.note("spawn", process)
        return process

    def client(self, keys: list[str], pace: float) -> Process:
        """Start a process that enqueues a job for each key."""
        return self._warm(["client", str(self.db), str(pace), *keys], {}, ())

    def note(self, kind: str, process: Process, text: str = "") -> int:
        """Witness what is done to a process, before it is done; returns the time."""
        return witness.write(kind, pid=process.pid, text=text, path=self.witness)

    def strike(self, process: Process, text: str = "") -> int:
        """Kill a process with SIGKILL, with a witness; returns when, in nanoseconds of CLOCK_MONOTONIC."""
        when = self.note("kill", process, text)
        process.kill()
        return when

    def open_gate(self, key: str) -> None:
        """Let the tasks go on that wait at this gate."""
        gate_of(self.witness, key).touch()

    def complaints(self) -> list[str]:
        """What the processes have written that no user should see: errors, tracebacks, and whatever is no log line."""
        if not self.log.exists():
            return []
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if not line.startswith('{"') or '"level": "error"' in line]

    # ── starting ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _warm(self, argv: list[str], env: dict[str, str], _command: tuple[str, ...]) -> Process:
        assert self._zygote is not None
        assert self._zygote.stdin
        assert self._zygote.stdout
        order = {"argv": argv, "env": self._environment(env), "log": str(self.log)}
        self._zygote.stdin.write(json.dumps(order).encode() + b"\n")
        self._zygote.stdin.flush()
        return self._started(Process(int(self._zygote.stdout.readline())))

    def _fresh(self, argv: list[str], env: dict[str, str], command: tuple[str, ...]) -> Process:
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                [*command, sys.executable, "-m", "taskrunner", *argv],
                cwd=ROOT,
                env={**os.environ, **self._environment(env)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self._started(Process(child.pid, child))

    def _environment(self, env: dict[str, str]) -> dict[str, str]:
        return {witness.VARIABLE: str(self.witness), **env}

    def _started(self, process: Process) -> Process:
        self.processes.append(process)
        return process


def _zygote() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "taskrunner.chaos.kills.zygote"]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
