"""One child process, as its supervisor has it: started by name, never forked; killed with all that it has started.

It is the leader of a session and a process group of its own, so that a Ctrl-C in a terminal does not reach it, and that
one signal reaches its whole group. Its number cannot become another process's before it is reaped, so its group is
killed before that.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

import anyio
import msgspec

from taskrunner.core.loop import call_in_thread
from taskrunner.runtime.channel import FROM_CHILD, NO_MEMORY, Channel, Interrupt, Run, Stop
from taskrunner.runtime.proc import start_time_of
from taskrunner.runtime.watched import Watched
from taskrunner.storage.remote import Desk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import Task
    from taskrunner.runtime.channel import FromChild, Hello
    from taskrunner.runtime.watched import Reason
    from taskrunner.storage.engine import Engine, Statement
    from taskrunner.storage.tasks import TaskStore

LAST_WORDS: Final = 1.0
"""Seconds in which what a dead child has said is read to its end, or a child that hung up comes to its own end."""

# A signal that asks a program to end may come at once, to all processes of a service: the supervisor sees to it. (A
# handler, unlike SIG_IGN, is not passed on to what a task starts.)
_BOOT: Final = (
    "import signal, sys; signal.signal(signal.SIGTERM, e := lambda *_: None); signal.signal(signal.SIGINT, e); "
    "sys.path[:] = sys.argv[3:]; "
    "from taskrunner.runtime.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

_living: WeakSet[ChildProcess] = WeakSet()


def _let_go_of_copies() -> None:
    """A fork of the supervisor must not keep our ends open: by them a child knows of its supervisor's death."""
    for child in list(_living):
        child.hang_up()


os.register_at_fork(after_in_child=_let_go_of_copies)


class ChildProcess:
    """A child. `kill` may be called from any thread; all else belongs to the event loop."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket, held: int, engine: Engine) -> None:
        self.pid = process.pid
        self.start_time = start_time_of(process.pid)
        self.tasks: dict[str, ChildTask] = {}
        self.taken = 0
        self.has_worked = False
        """Whether it has written anything, or brought an attempt to its end."""
        self.is_ready = False
        self.is_alone = False
        """Whether it is there for one task only."""
        self.is_leaving = False
        """Whether it is given no more tasks, and ends when it has none."""
        self.is_blocked = False
        """Whether its event loop has not answered of late."""
        self.asked_at: float | None = None
        """Since when it is asked for a sign of life, in seconds of the monotonic clock; None: it has given one."""
        self.was_killed = False
        """Whether its supervisor has ended it."""
        self.why = ""
        """What is known of its end."""
        self._process = process
        self._end = end
        self._held = held  # what the child's life hangs on: it ends when the last process that has this open does
        self._lock = threading.Lock()  # its number is its own only until it is reaped
        self._reaped = False
        self._silent = anyio.Event()
        self.channel: Channel[FromChild] = Channel(end, FROM_CHILD)
        self.desk = Desk(engine, self.channel.put)
        _living.add(self)

    @classmethod
    async def start(cls, engine: Engine) -> Self:
        """Start one. It does nothing before it is greeted.

        Raises:
            OSError: the system cannot start another process.
        """
        ours, theirs = socket.socketpair()
        lifeline, held = os.pipe()
        with theirs, anyio.CancelScope(shield=True):  # a thread cannot be stopped: what it starts has to be ended again
            try:
                process = await call_in_thread("spawn", _spawn, theirs.fileno(), lifeline)
            except BaseException:
                ours.close()
                os.close(held)
                raise
            finally:
                os.close(lifeline)
        return cls(process, ours, held, engine)

    @property
    def takes_tasks(self) -> bool:
        """Whether it may be given another task."""
        return self.is_ready and not (self.is_alone or self.is_leaving or self.was_killed)

    async def live(
        self, record: Callable[[], Awaitable[None]], hello: Hello, hear: Callable[[FromChild], None]
    ) -> None:
        """Record and greet it, and hear what it says until it is dead, with all that it has started, and reaped."""
        try:
            await record()
            async with anyio.create_task_group() as group:
                group.start_soon(self.channel.pump)
                group.start_soon(self._listen, hear)
                self.channel.put(hello)
                await self._death()
                with anyio.move_on_after(LAST_WORDS):
                    await self._silent.wait()
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                self._kill_group()
                await call_in_thread("reap", self._reap)
            self.desk.close()
            self.hang_up()

    def hang_up(self) -> None:
        """Close our ends: the child ends with them, if it lives."""
        self._end.close()
        if self._held >= 0:
            os.close(self._held)
            self._held = -1
        _living.discard(self)

    def leave(self) -> None:
        """Have it end when it has no more tasks."""
        self.is_leaving = True
        if not self.tasks:
            self.channel.put(Stop())

    def kill(self) -> None:
        """End it and its process group at once, for no fault of those that run there; from any thread."""
        self.was_killed = True
        self._kill_group()

    def doom(self, why: str) -> None:
        """End it and its process group at once: it is of no use."""
        self.why = self.why or why
        self._kill_group()

    def _kill_group(self) -> None:
        with self._lock:
            if not self._reaped:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    async def _listen(self, hear: Callable[[FromChild], None]) -> None:
        try:
            while messages := await self.channel.receive():
                for message in messages:
                    hear(message)
        except msgspec.MsgspecError as error:
            self.doom(f"what it said cannot be read ({error})")
        self._silent.set()
        await anyio.sleep(LAST_WORDS)
        self.doom("it closed its connection to the supervisor")

    async def _death(self) -> None:
        if (descriptor := self._descriptor()) is None:
            with suppress(ChildProcessError):  # SIGCHLD is ignored in this program: it is gone already
                await call_in_thread("child", os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        self._kill_group()  # what it has started
        await call_in_thread("reap", self._reap)

    def _descriptor(self) -> int | None:
        """A file descriptor that can be read from once the child is dead; None where the system gives none."""
        try:
            return os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # no Linux, too many open files, or it is gone
            return None

    def _reap(self) -> None:
        with self._lock:
            if not self._reaped:
                how = self._how()
                self._process.wait()
                self._reaped = True
                self.why = self.why or how

    def _how(self) -> str:
        try:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # SIGCHLD is ignored in this program, or somebody waits for all of its processes
            return "it has ended, and the system does not say how"
        if ended is None or ended.si_code == os.CLD_EXITED:
            return told(0 if ended is None else ended.si_status)
        return told(-ended.si_status)


class ChildTask(Watched):
    """An attempt whose body runs in a child."""

    def __init__(self, task: Task, definition: TaskDefinition[Any, Any], tasks: TaskStore, child: ChildProcess) -> None:
        super().__init__(task, definition, tasks)
        self.child = child
        self._over = anyio.Event()
        self._ending: tuple[Statement | None, list[Statement]] = (None, [])
        self._told: Reason | None = None

    def when_it_records(self, tell: Callable[[], None]) -> None:
        """Do nothing: what its child records is not looked at, and it harms nobody beside it there."""

    async def run(self) -> None:
        """Have the child run it, and wait for its end, or for the child's."""
        try:
            self.child.channel.put(Run(self.task))
        except (UnicodeEncodeError, OverflowError, TypeError) as error:  # something else wrote that row
            self.child.tasks.pop(self.task.id, None)
            self.end(self.failed(error, None), [])
        await self._over.wait()

    def end(self, statement: Statement | None, before: list[Statement]) -> None:
        """Hear how the attempt is to be written: the body has ended."""
        self._ending = (statement, before)
        self.body_ended = True
        self._over.set()

    def end_unheard(self) -> None:
        """The body has ended with its process; its end is written by somebody else."""
        self.forced = True
        self.body_ended = True
        self._over.set()

    def take_no_more(self, reason: Reason) -> None:
        """Tell the child at once; from any thread."""
        self.reason = self._told = reason
        self.child.channel.put_now(Interrupt(self.task.id, self.task.attempt, reason))

    def interrupt(self, reason: Reason) -> None:
        """Ask the body to end."""
        if self.reason is None or reason == "lost":
            self.reason = reason
        if reason != self._told:
            self._told = reason
            self.child.channel.put(Interrupt(self.task.id, self.task.attempt, reason))

    def force(self) -> None:
        """Kill the child: nothing else ends this body for certain. Those beside it are handed back."""
        self.body_ended = True
        self.child.kill()

    def let_go(self) -> None:
        """Forget it; a body that still runs is told that it has lost its task."""
        if self.child.tasks.get(self.task.id) is self:
            del self.child.tasks[self.task.id]
            if not self.body_ended:
                self.interrupt("lost")
        self._over.set()

    def ending(self) -> tuple[Statement | None, list[Statement]]:
        """What the child said."""
        return (None, []) if self.reason == "lost" else self._ending

    def take_shown(self) -> list[Statement]:
        """Nothing: the child writes it."""
        return []


def told(code: int) -> str:
    """A process's exit code (or signal, as a negative number) in words."""
    if code == NO_MEMORY:
        return "it had no memory left"
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "a signal"
    return f"it was killed by {name} (signal {-code})"


def _spawn(wire: int, lifeline: int) -> subprocess.Popen[bytes]:
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return subprocess.Popen(  # noqa: S603 - this interpreter, with a program of our own
        [sys.executable, "-c", _BOOT, str(wire), str(lifeline), *path],
        stdin=subprocess.DEVNULL,
        pass_fds=(wire, lifeline),
        start_new_session=True,
    )
