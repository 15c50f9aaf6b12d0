"""The processes of this machine as /proc and pidfds show them, and the seam at which a simulation shows others."""

from __future__ import annotations

import os
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What we read of /proc/PID/stat (proc(5))."""

    state: str
    threads: int
    start_time: int
    ticks: int = field(default=0, compare=False)
    """Of processor time that it has used."""

    @property
    def is_dead(self) -> bool:
        """A zombie, or about to vanish. One whose main thread alone has ended is a zombie too, and works on."""
        return self.state in {"Z", "X", "x"} and self.threads <= 1


def parse_stat(content: bytes) -> ProcessStat:
    """Read the content of /proc/PID/stat. Its name may hold blanks, brackets and newlines."""
    fields = content[content.rindex(b")") + 1 :].split()
    return ProcessStat(
        state=fields[0].decode(),
        threads=int(fields[17]),
        start_time=int(fields[19]),
        ticks=int(fields[11]) + int(fields[12]),
    )


def _stat_of(pid: int | str) -> ProcessStat:
    return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())


def start_time_of(pid: int) -> int:
    """The tick at which a process started; 0 where that cannot be told."""
    try:
        return _stat_of(pid).start_time
    except OSError:
        return 0


def work_of(pid: int) -> tuple[str, float]:
    """The state of a process (of its main thread), and the processor time that it has used, in seconds."""
    try:
        stat = _stat_of(pid)
    except OSError:
        return "", 0.0
    return stat.state, stat.ticks / os.sysconf("SC_CLK_TCK")


class Watch:
    """An eye on one process, by a descriptor that becomes readable when it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def ended(self) -> None:
        """Wait for its end. It may take for ever: cancel it."""
        await anyio.wait_readable(self._descriptor)

    def close(self) -> None:
        """Look away."""
        os.close(self._descriptor)


class Processes:
    """Tells of the processes in our own pid namespace. One is known by its pid and the tick at which it started."""

    def this(self) -> tuple[int, int, str]:
        """The own pid and start time, and within which namespaces they mean something; 0 and "" without a /proc."""
        try:
            return os.getpid(), _stat_of("self").start_time, _namespace()
        except OSError:
            return os.getpid(), 0, ""

    def has_ended(self, pid: int, start_time: int) -> bool:
        """Whether that process has certainly ended; `start_time` 0: unknown."""
        try:
            if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - this /proc shows another namespace's pids
                return False
            stat = _stat_of(pid)
        except (FileNotFoundError, ProcessLookupError):
            return _has_no_process(pid)
        except OSError:
            return False
        return stat.is_dead or (start_time > 0 and stat.start_time != start_time)

    def watch(self, pid: int, start_time: int) -> Watch | None:
        """An eye on a running process; None where there is none to be had."""
        if not (hasattr(os, "pidfd_open") and _is_running(pid, start_time)):
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        if _is_running(pid, start_time):  # so it had not been replaced before it was opened
            return Watch(descriptor)
        os.close(descriptor)
        return None


processes: Final[ContextVar[Processes]] = ContextVar("processes", default=Processes())  # noqa: B039 - it has no state
"""Who tells of processes here."""


def _namespace() -> str:
    names = [os.readlink("/proc/self/ns/pid")]  # noqa: PTH115 - no file is meant
    with suppress(OSError):  # since Linux 5.6; it shifts the start times that a process sees
        names.append(os.readlink("/proc/self/ns/time"))  # noqa: PTH115 - no file is meant
    return " ".join(names)


def _has_no_process(pid: int) -> bool:
    """Whether the kernel knows no process of this number: /proc may hide those of other users (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _is_running(pid: int, start_time: int) -> bool:
    try:
        stat = _stat_of(pid)
    except OSError:
        return False
    return not stat.is_dead and 0 < stat.start_time == start_time
