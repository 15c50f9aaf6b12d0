"""The simulated machine: its clock, its processes, and how they die, are stopped, and go on.

Each process has real connections, real locks and real bells, and runs the code that every process of ours runs. Threads
are callbacks of the loop: each turn of a worker, and each call in a thread, is one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any, Final, Literal

import apsw
import sniffio

from taskrunner.chaos.simulation.loop import Loop, process_here
from taskrunner.core import threads as real_threads
from taskrunner.core.clock import Clock
from taskrunner.runtime import liveness, proc

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
LATE: Final = 1.0
"""Virtual seconds after which, at most, a thread runs again whose process was stopped."""

HOP: Final = 0.000_3
"""Virtual seconds that it takes to reach another thread, on the average."""


_kept: Final[list[Machine]] = []
"""All machines of this (real) process, for the same reason for which each keeps its dead."""


class Crash(BaseException):
    """A process dies amid a commit."""


class Machine:
    """One machine, on which processes start and end."""

    def __init__(self, seed: str) -> None:
        _kept.append(self)
        self.seed = seed
        self.loop = Loop(seed)
        self.boot = 0
        self.skew = timedelta()
        """How far the wall clock is from where it would be by itself."""
        self.latest_skew = timedelta()
        self.living: dict[int, Process] = {}
        self.buried: list[Process] = []
        """The dead, with all that they had: what nobody has any more would be closed in an orderly way."""
        self.failed: Callable[[Exception], None] = lambda _error: None
        """Called when a process ends by an error."""
        self._pids = count(1)
        self._booted_at = -1_000.0

    def start(self, name: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        """Start a process."""
        process = Process(self, name, next(self._pids))
        self.living[process.pid] = process
        process.context.run(self.loop.create_task, _live(process, main))
        return process

    def monotonic(self) -> float:
        """Seconds since the machine was started."""
        return self.loop.now - self._booted_at

    def now(self) -> datetime:
        """The wall clock."""
        return EPOCH + timedelta(seconds=self.loop.now) + self.skew

    def jump(self, by: timedelta) -> None:
        """Set the wall clock forward or back."""
        self.skew += by
        self.latest_skew = max(self.latest_skew, self.skew)

    def reboot(self) -> None:
        """End all processes, and begin again: with another boot id, and the monotonic clock at its beginning."""
        for process in list(self.living.values()):
            process.kill()
        self.boot += 1
        self._booted_at = self.loop.now


class Process:
    """A simulated process."""

    def __init__(self, machine: Machine, name: str, pid: int) -> None:
        self.machine = machine
        self.name = name
        self.pid = pid
        self.random = Random(f"{machine.seed} process {pid}")
        self.clock = _Clock(self)
        self.state: Literal["runs", "stopped", "dead"] = "runs"
        self.stopped_at = 0.0
        """When it was stopped for the last time."""
        self.went_on_at = 0.0
        self.ending = False
        """Whether it was asked to end, and may do so in its own time."""
        self.asked_to_end = asyncio.Event()
        self.runs = 0
        """How many functions of steps have run here."""
        self.tasks: set[asyncio.Task[Any]] = set()
        self.parked: list[asyncio.Handle] = []
        self.connections: list[apsw.Connection] = []
        self.watches: list[asyncio.Future[None]] = []
        self.fate: Literal["", "before", "after"] = ""
        """Whether its next commit ends it, and on which side of it."""
        self.struck: Callable[[], None] = lambda: None
        """Called when that has happened."""
        self.gone: Callable[[], None] = lambda: None
        """Called when it has ended, however that came."""
        self.context: Context = copy_context()
        for variable, value in (
            (process_here, self),
            (real_threads.threads, _Threads(self)),
            (proc.processes, _Processes(self)),
            (sniffio.current_async_library_cvar, "asyncio"),
        ):
            self.context.run(variable.set, value)  # type: ignore[arg-type]

    def kill(self) -> None:
        """End it as SIGKILL does: nothing of it runs any more, and what the kernel holds for it is let go of."""
        if self.state == "dead":
            return
        self.state = "dead"
        self.parked.clear()
        self._let_go()
        del self.machine.living[self.pid]
        self.machine.buried.append(self)
        for watch in self.watches:
            if not watch.done():
                watch.set_result(None)
        self.gone()

    def stop(self) -> None:
        """Stop it as SIGSTOP does."""
        self.state, self.stopped_at = "stopped", self.machine.loop.now

    def go_on(self) -> None:
        """Have it go on where it was stopped."""
        if self.state == "stopped":
            self.state, self.went_on_at = "runs", self.machine.loop.now
            parked, self.parked = self.parked, []
            late = self.random.choice((0.0, LATE))  # its threads may come to their turns long after its loop
            for handle in parked:
                worker = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
                if late and isinstance(worker, _Worker):
                    worker.come_late(self.random.uniform(0, late))
                else:
                    self.machine.loop.release(handle)

    def ask_to_end(self) -> None:
        """Have it end as SIGTERM does."""
        self.ending = True
        self.asked_to_end.set()

    def ended(self) -> None:
        """Hear that it has ended by itself."""
        self.kill()

    def at_commit(self) -> bool:
        """Hear that a commit is about to be made here; True undoes it."""
        if self.state == "dead":
            return True
        if self.fate and process_here.get() is self:
            fate, self.fate = self.fate, ""
            self.struck()
            if fate == "before":
                self.machine.loop.doomed = self.kill
                raise Crash
            self.machine.loop.doomed = self.kill
        return False

    def _let_go(self) -> None:
        descriptors = self.machine.loop.readers_of(self)
        self.machine.loop.forget_readers(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)  # its bell
        for lock in list(liveness._own_locks):
            if lock.path.stem.endswith(self.clock.mark):
                lock.leave_to_parent()
        for connection in self.connections:
            connection.close(True)  # noqa: FBT003 - whatever it is amid


async def _live(process: Process, main: Callable[[Process], Coroutine[Any, Any, None]]) -> None:
    try:
        await main(process)
    except Exception as error:  # noqa: BLE001 - it has to be seen
        process.machine.failed(error)
    process.machine.loop.call_soon(process.ended, context=Context())


class _Clock(Clock):
    """The machine's clock and the process's own chance. Its ids end with the number of the process."""

    def __init__(self, process: Process) -> None:
        self._machine = process.machine
        self._random = process.random
        self.mark = f"{process.pid:06x}"

    def now(self) -> datetime:
        return self._machine.now()

    def monotonic(self) -> float:
        return self._machine.monotonic()

    def boot_id(self) -> str:
        return f"boot {self._machine.boot}"

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def new_id(self, moment: datetime | None = None) -> str:
        return super().new_id(moment)[: -len(self.mark)] + self.mark


class _Threads(real_threads.Threads):
    """Threads that are callbacks of the loop."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def hop(self) -> float:
        """How long it takes to be heard."""
        return self._process.random.expovariate(1 / HOP)

    def start(self, name: str, call: Callable[[], object]) -> None:  # noqa: ARG002 - as it is
        self._process.machine.loop.call_later(self.hop(), call, context=self._process.context)

    def worker(self, name: str, turn: Callable[[], float | None]) -> real_threads.Worker:
        return _Worker(name, turn, self._process, self.hop)


class _Worker(real_threads.Worker):
    """A worker whose turns are callbacks of the loop."""

    def __init__(self, name: str, turn: Callable[[], float | None], process: Process, hop: Callable[[], float]) -> None:
        super().__init__(name, turn)
        self._process = process
        self._loop = process.machine.loop
        self._hop = hop
        self._timer: asyncio.TimerHandle | None = None
        self._state: Literal["new", "asleep", "called", "works", "ended"] = "new"

    def start(self) -> None:
        self._call(self._hop(), "called")

    def wake(self) -> None:
        if self._state == "works":
            self._woken = True
        elif self._state == "asleep":
            self._call(self._hop(), "called")

    def end(self) -> None:
        if self._state in {"asleep", "called"}:
            self._cancel()
            self._state = "works"
            while self._turn() == 0:
                pass
        self._state = "ended"

    def come_late(self, delay: float) -> None:
        """Take the turn that was due only after a while."""
        self._call(delay, "called")

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _call(self, delay: float, state: Literal["asleep", "called"]) -> None:
        self._cancel()
        self._state = state
        self._timer = self._loop.call_later(delay, self._take, context=self._process.context)

    def _take(self) -> None:
        self._timer = None
        self._state, self._woken = "works", False
        pause = self._turn()
        if self._state != "works":  # it was ended by its own turn
            return
        if self._woken or pause == 0:
            self._call(self._hop(), "called")
        elif pause is not None:
            self._call(pause, "asleep")
        else:
            self._state = "asleep"


class _Watch(proc.Watch):
    """An eye on a simulated process."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    async def ended(self) -> None:
        await self._future

    def close(self) -> None:
        self._future.cancel()


class _Processes(proc.Processes):
    """The processes of the simulated machine. Each has the number at which it was started as its start time, too."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def this(self) -> tuple[int, int, str]:
        return self._process.pid, self._process.pid, "simulated"

    def has_ended(self, pid: int, start_time: int) -> bool:  # noqa: ARG002 - no pid is taken twice
        return pid not in self._process.machine.living

    def watch(self, pid: int, start_time: int) -> proc.Watch | None:  # noqa: ARG002 - as above
        other = self._process.machine.living.get(pid)
        if other is None:
            return None
        other.watches = [watch for watch in other.watches if not watch.done()]
        other.watches.append(self._process.machine.loop.create_future())
        return _Watch(other.watches[-1])


def _keep(connection: apsw.Connection) -> None:
    """Have a process own the connection that it has just opened."""
    process = process_here.get()
    if isinstance(process, Process):
        process.connections = [other for other in process.connections if _is_open(other)]
        process.connections.append(connection)
        connection.set_commit_hook(process.at_commit)


def _is_open(connection: apsw.Connection) -> bool:
    try:
        connection.in_transaction  # noqa: B018 - a closed one raises
    except apsw.ConnectionClosedError:
        return False
    return True


def own_connections() -> None:
    """Have each process own the connections that it opens, from now on."""
    if _keep not in apsw.connection_hooks:
        apsw.connection_hooks.append(_keep)
