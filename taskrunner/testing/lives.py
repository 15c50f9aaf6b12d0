"""The process of which a sweep's processes are forked, as the sweep has it: started by name, and ended with them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import anyio
import msgspec

from taskrunner.core.errors import InvalidInput, TaskRunnerError
from taskrunner.core.loop import call_in_thread
from taskrunner.runtime.process import told
from taskrunner.testing.orders import Ended, Order, Ready

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

OUTPUT: Final = "output"
"""The file to which all that the processes print goes."""

LAST_WORDS: Final = 2_000
"""Bytes of it that an error shows."""

_BOOT: Final = (
    "import sys; folder, wire, lifeline, *sys.path[:] = sys.argv[1:]; "
    "from taskrunner.testing.life import main; main(folder, int(wire), int(lifeline))"
)


class Lives:
    """Processes that live by order, one after the other: forks of one that has imported the app, where that is safe."""

    def __init__(self, folder: Path, *, asked_by: str) -> None:
        self._folder = folder
        self._asked_by = asked_by
        self._process: subprocess.Popen[bytes] | None = None
        self._wire: socket.socket | None = None
        self._held = -1  # the processes end when nobody has this open any more
        self._read = b""
        self._forks = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._stop()

    async def live(self, order: Order) -> str:
        """Have a process live by this order, and say how it ended.

        When the wait is cancelled it is killed, with all that it has started.

        Raises:
            InvalidInput: the app cannot be imported there.
            TaskRunnerError: the process that should fork it is gone.
        """
        try:
            if self._process is None:
                await self._start()
            if self._wire is not None:
                self._wire.sendall(msgspec.json.encode(order) + b"\n")
            line = await self._line()
            if line:
                return told(msgspec.json.decode(line, type=Ended).code)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stop()
            raise
        how = told(await self._stop())
        if self._forks:
            message = f"{self._asked_by}: the process that has imported the app is gone: {how}{self.last_words()}"
            raise TaskRunnerError(message)
        return how

    def last_words(self) -> str:
        """The end of what the processes have printed, as the end of a sentence."""
        with suppress(OSError):
            if text := (self._folder / OUTPUT).read_bytes()[-LAST_WORDS:].decode(errors="replace").strip():
                return f"; the end of what was printed:\n{text}"
        return ""

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - Python's own signature
        lifeline, held = os.pipe()
        self._wire, self._held = ours, held
        with theirs:
            try:
                self._process = self._spawn(theirs.fileno(), lifeline)
            finally:
                os.close(lifeline)
        line = await self._line()
        ready = msgspec.json.decode(line, type=Ready) if line else Ready("the process that imports the app has ended")
        if ready.trouble:
            message = f"{self._asked_by}: {ready.trouble}"
            raise InvalidInput(message if line else f"{message}{self.last_words()}")
        self._forks = ready.forks

    def _spawn(self, wire: int, lifeline: int) -> subprocess.Popen[bytes]:
        path = [entry for entry in sys.path if isinstance(entry, str)]
        with (self._folder / OUTPUT).open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - this interpreter, with a program of our own
                [sys.executable, "-c", _BOOT, str(self._folder), str(wire), str(lifeline), *path],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(wire, lifeline),
                start_new_session=True,
            )

    async def _line(self) -> bytes:
        """The next line of what they say; empty: it has hung up."""
        wire = self._wire
        while wire is not None and b"\n" not in self._read:
            await anyio.wait_readable(wire)
            more = wire.recv(65536)
            if not more:
                return b""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    async def _stop(self) -> int:
        """End it and its group, if it has not ended, and say how it did."""
        process, self._process = self._process, None
        wire, self._wire = self._wire, None
        self._read = b""
        if wire is not None:
            wire.close()
        if process is None:
            self._hang_up()
            return 0
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await call_in_thread("reap", process.wait)
        self._hang_up()
        return code

    def _hang_up(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
