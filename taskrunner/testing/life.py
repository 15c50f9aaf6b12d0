"""The program of the processes that a sweep kills: it imports the app once, and forks a life of it for every order.

A fork takes milliseconds where a fresh interpreter and the app's imports take a second. It is safe as long as this
process has one thread and no database open; an app that starts threads when it is imported gets fresh processes.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio._backends._asyncio  # what a life would import later
import apsw
import msgspec
import structlog.stdlib  # noqa: F401 - as above

from taskrunner.authoring.definition import BoundTask
from taskrunner.authoring.listing import MAX_LIST
from taskrunner.authoring.recorder import Recorder
from taskrunner.core import payload
from taskrunner.core.clock import Clock
from taskrunner.core.errors import error_text
from taskrunner.core.states import TERMINAL
from taskrunner.core.traces import place_of
from taskrunner.core.waiting import waits_for
from taskrunner.runtime.child import die_with
from taskrunner.runtime.origin import importing, load
from taskrunner.testing.orders import DB, END, HELLO, Commit, End, Ended, Hello, Log, Order, Ready, Skipped
from taskrunner.testing.witness import Commits, Steps

if TYPE_CHECKING:
    from taskrunner.app import TaskRunner
    from taskrunner.core.model import Task

FAILED: Final = 70
"""The exit code of a life that could not be lived: the file of its end says why."""

_SQLITE: Final = b"SQLite format 3\0"


class SkippingClock(Clock):
    """The machine's clock, put forward whenever nothing is due: nobody waits an hour for a retry."""

    def __init__(self, ahead: float) -> None:
        self._ahead = timedelta(seconds=ahead)

    def now(self) -> datetime:
        """The machine's time, and what was skipped."""
        return super().now() + self._ahead

    def skip(self, duration: timedelta) -> None:
        """Go on by so much."""
        self._ahead += duration


def main(folder: str, wire: int, lifeline: int) -> None:
    """Say that the app is imported, then live as often as is asked for, until nobody asks any more."""
    for each in (wire, lifeline):
        os.set_inheritable(each, False)  # noqa: FBT003 - Python's own signature
    die_with(lifeline)
    end = socket.socket(fileno=wire)
    hello = msgspec.json.decode((Path(folder) / HELLO).read_bytes(), type=Hello)
    sys.argv[:] = [os.fsdecode(argument) for argument in hello.argv]
    runner, trouble = _imported(hello)
    forks = _may_fork()
    gc.freeze()
    _say(end, Ready(trouble, forks))
    if runner is None:
        return
    orders = end.makefile("rb")
    for line in orders:
        order = msgspec.json.decode(line, type=Order)
        if not forks:
            _end(_live(runner, hello, order))
        pid = os.fork()  # noqa: TID251 - this process has one thread, and has opened no database
        if pid == 0:
            _end(_live(runner, hello, order))
        _pid, status = os.waitpid(pid, 0)
        _say(end, Ended(os.waitstatus_to_exitcode(status)))


def _imported(hello: Hello) -> tuple[Any, str]:
    name = hello.origin.module
    try:
        with importing():
            runner: TaskRunner = load(hello.origin)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the sweep has to hear why
        return None, f"{name!r} cannot be imported in a process of its own: {error_text(error)}{place_of(error) or ''}"
    if hello.new.type not in runner.definitions:
        return None, (
            f"{hello.new.type!r} is not among the tasks of {name}:{hello.origin.name} in a process that imports it "
            "afresh: define it at the top of a module"
        )
    return runner, ""


def _may_fork() -> bool:
    try:
        threads = len(list(Path("/proc/self/task").iterdir()))
        files = [int(file.name) for file in Path("/proc/self/fd").iterdir()]
    except OSError:
        return False
    return threads == 1 and not any(map(_is_database, files))


def _is_database(descriptor: int) -> bool:
    with suppress(OSError):
        return os.pread(descriptor, len(_SQLITE), 0) == _SQLITE
    return False


def _say(end: socket.socket, message: Ready | Ended) -> None:
    end.sendall(msgspec.json.encode(message) + b"\n")


def _end(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def _live(runner: TaskRunner, hello: Hello, order: Order) -> int:
    folder = Path(os.fsdecode(order.folder))
    code = 0
    try:
        life = _work if order.root else _enqueue
        end = anyio.run(partial(life, runner, hello, order, folder))
    except Exception as error:  # noqa: BLE001 - the sweep has to hear of it
        end, code = End(trouble=error_text(error)), FAILED
    (folder / END).write_bytes(msgspec.json.encode(end))
    return code


async def _enqueue(runner: TaskRunner, hello: Hello, _order: Order, folder: Path) -> End:
    """Make a store that holds the task, and the conversation that it names."""
    new = hello.new
    bound: BoundTask[Any] = BoundTask(new.type, new, payload.UNTYPED)
    with _settled(runner, hello, folder):
        async with runner:
            if new.session_id is not None:
                await runner.store.messages.create_session(
                    title="", model=None, system_prompt=None, session_id=new.session_id
                )
            handle = await runner.enqueue(bound)
            return End(root=handle.id)


async def _work(runner: TaskRunner, hello: Hello, order: Order, folder: Path) -> End:
    log = Log(folder)
    lines = log.lines()
    clock = SkippingClock(sum(line.seconds for line in lines if isinstance(line, Skipped)))
    steps = Steps(log, lines)
    commits = Commits(folder / DB, log, order, sum(isinstance(line, Commit) for line in lines))
    apsw.connection_hooks.append(commits.watch)
    Recorder.witnesses.append(steps.hear)
    with _settled(runner, hello, folder), runner.clocked(clock):
        async with runner:
            for task in await _all(runner):
                steps.know(task.history_id, await runner.store.journal.steps(task.history_id))
            end = await _to_its_end(runner, order.root, clock, log)
            steps.conclude()
    return end


def _settled(runner: TaskRunner, hello: Hello, folder: Path) -> Any:  # noqa: ANN401 - a context manager
    """A kill leaves to the system what was written: there is no need to wait for the disk."""
    settings = {**hello.settings, "db": folder / DB, "processes": 0, "durability": "normal"}
    return runner.override(**settings)


async def _to_its_end(runner: TaskRunner, root: str, clock: SkippingClock, log: Log) -> End:
    """Work until the task has ended, and whatever else has begun or is due."""
    end: End | None = None
    while True:
        await runner.drain()
        if end is None:
            task = await runner.store.tasks.get(root)
            if task.status in TERMINAL:
                end = End(root, task.status, task.output, task.error_type or "", task.error_message or "")
        waiting = [task for task in await _all(runner, "pending") if end is None or task.attempt]
        now = clock.now()
        later = [task.run_at for task in waiting if task.run_at > now]
        if later:
            wait = min(later) - now
            log.write(Skipped(wait.total_seconds()))
            clock.skip(wait)
        elif end is not None:
            return end
        else:
            why = waits_for(await runner.store.tasks.get(root), await runner.store.queues.all(), now)
            return End(root, waits=", ".join(why) or "nothing that is known")


async def _all(runner: TaskRunner, status: Any = None) -> list[Task]:  # noqa: ANN401 - a Status, or none
    found: list[Task] = []
    last: str | None = None
    while page := await runner.tasks.list(status=status, limit=MAX_LIST, after=last):
        found += page
        last = page[-1].id
    return found
