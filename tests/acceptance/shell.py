"""A terminal for the tests: it runs commands as a reader of the README does, and compares what they print."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import closing, suppress
from pathlib import Path

from tests.acceptance.pages import ROOT

ROWS, COLUMNS = 40, 100

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b\d+\.\d+ ?s\b"), "SECONDS"),
    (re.compile(r" {2,}"), "  "),
)
_ANY_LINES = "…"


class Shell:
    """One reader's terminal in one folder. Ids that a page shows stand for those that the commands print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TASKRUNNER_")}
        self.env = {
            **ours,
            "PATH": f"{Path(sys.executable).parent}:{ours.get('PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
            "TERM": "xterm",
        }
        self._ids: dict[str, str] = {}

    def check(self, command: str, expected: str) -> None:
        """Run a command and see that it prints what is expected, where a line of `…` alone stands for any lines.

        Where the last line is `Killed`, the command is killed with SIGKILL when it has printed the line before.
        """
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.env[name] = value
            return
        wanted = expected.splitlines()
        killed = wanted[-1:] == ["Killed"]
        command = _ID.sub(lambda match: self._ids.get(match[0], match[0]), command)
        printed = self._killed(command, wanted[:-1]) if killed else self._run(command)
        got = printed.splitlines()
        self._learn(expected, printed)
        self._compare(wanted[:-1] if killed else wanted, got, command)

    def _run(self, command: str) -> str:
        with closing(_Terminal(command, self)) as terminal:
            printed = terminal.read_until(None)
            code = terminal.process.wait()
        assert code == 0, f"$ {command}\n{printed}\nended with exit code {code}"
        return printed

    def _killed(self, command: str, last: list[str]) -> str:
        with closing(_Terminal(f"exec {command}", self)) as terminal:
            printed = terminal.read_until(last[-1])
            terminal.process.kill()
            printed += terminal.read_until(None)
            assert terminal.process.wait() == -signal.SIGKILL
        return printed

    def _learn(self, expected: str, printed: str) -> None:
        known = set(self._ids.values())
        new = [found for found in dict.fromkeys(_ID.findall(printed)) if found not in known]
        told = [shown for shown in dict.fromkeys(_ID.findall(expected)) if shown not in self._ids]
        self._ids.update(zip(told, new, strict=False))

    def _compare(self, wanted: list[str], got: list[str], command: str) -> None:
        shown = [self._plain(_ID.sub(lambda match: self._ids.get(match[0], match[0]), line)) for line in wanted]
        pattern = "".join("(.*\n)*?" if line == _ANY_LINES else f"{re.escape(line)}\n" for line in shown)
        printed = "".join(f"{self._plain(line)}\n" for line in got)
        told = "\n".join(shown)
        assert re.fullmatch(pattern, printed), f"$ {command}\nprints\n{printed}\nand not\n{told}"

    @staticmethod
    def _plain(line: str) -> str:
        for pattern, word in _VARIES:
            line = pattern.sub(word, line)
        return line.rstrip()


class _Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(self, command: str, shell: Shell) -> None:
        self._main, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=shell.folder,
            env=shell.env,
            stdin=subprocess.DEVNULL,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)

    def read_until(self, line: str | None) -> str:
        """Read what is printed until this line has been; None: to the end."""
        printed = b""
        with suppress(OSError):  # EIO is the end of a terminal
            while line is None or line.encode() not in printed:
                if not (more := os.read(self._main, 65_536)):
                    break
                printed += more
        return _TERMINAL_CODE.sub("", printed.decode().replace("\r\n", "\n"))

    def close(self) -> None:
        """Leave nothing of it running."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._main)
