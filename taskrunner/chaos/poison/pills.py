"""The app under poison: `taskrunner run taskrunner.chaos.poison.pills:make`. Innocent tasks are those of the kills."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from taskrunner import TaskContext, TaskRunner
from taskrunner.chaos.kills import jobs
from taskrunner.chaos.kills.bodies import body

APP: Final = "taskrunner.chaos.poison.pills:make"
MAX_LOSSES: Final = 3
"""Of a pill of which a process dies. The others have as many as any task: two that are deadly may cost them some."""
TIMEOUT: Final = 1.0
"""Seconds of an attempt of a pill that does not end by itself."""

LONG: Final = 60.0
"""Seconds that are as good as for ever here."""

runner = jobs.runner


def make() -> TaskRunner:
    """The runner of the kills, with the pills."""
    return jobs.make()


@runner.task
async def innocent(ctx: TaskContext, key: str, pace: float) -> list[str]:
    """A job of the kills that may lose its process as often as any other task."""
    return await jobs.job(ctx, key, pace)


@runner.task(max_retries=0)
async def pill(ctx: TaskContext, how: str) -> Any:  # noqa: ANN401 - a result may be anything, that is the point
    """Do harm on the event loop."""
    with body(ctx):
        return await _swallowed(ctx, how)


@runner.task(max_retries=0)
def plain_pill(ctx: TaskContext, how: str) -> Any:  # noqa: ANN401 - as above
    """Do harm in a thread."""
    with body(ctx):
        return ctx.sync(_swallowed(ctx, how)) if PILLS[how].waits else PILLS[how].harm()


async def _swallowed(ctx: TaskContext, how: str) -> Any:  # noqa: ANN401 - as above
    if how == "a large step":
        return await ctx.step("large", _rather_large)
    if how == "stubborn":
        return await _ignore_all(ctx)
    harmed = PILLS[how].harm()
    if PILLS[how].waits:
        await anyio.sleep(LONG)
    return harmed


# ── the harm ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _raise(error: type[BaseException]) -> Callable[[], object]:
    def harm() -> object:
        raise error("it is the pill's")

    return harm


def _large() -> str:
    return "x" * 100_000_000


def _rather_large() -> str:
    return "x" * 10_000_000


def _recurse() -> int:
    return 1 + _recurse()


def _overflow() -> None:
    """Fill the stack of C: Python cannot count that."""

    def again() -> None:
        through_c()

    through_c = ctypes.CFUNCTYPE(None)(again)
    sys.setrecursionlimit(10_000_000)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    through_c()


def _segfault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


_held: list[bytes] = []


def _hoard() -> None:
    while True:
        _held.append(b"x" * 100_000)


def _close_all() -> None:
    os.closerange(3, 200)


def _babble() -> None:
    """Write into every socket, as code does that has kept the number of a file which it closed."""
    for each in Path("/proc/self/fd").iterdir():
        if each.is_symlink() and str(each.readlink()).startswith("socket:"):
            with suppress(OSError):
                os.write(int(each.name), b"hello world\n")


def _fork() -> None:
    """Become some thirty processes, and some of a shell."""
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; for i in 1 2 3; do sleep 60 & done; wait"])
    for _ in range(5):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(LONG)


def _stop_loop() -> None:
    asyncio.get_running_loop().stop()


def _cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel("a pill does so")


def _close_output() -> None:
    os.closerange(0, 3)
    sys.stdout.close()


def _spoil() -> None:
    """Spoil what all code of a process shares, as far as that harms nobody but careless code."""
    os.chdir("/")
    os.umask(0o777)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _spin() -> None:
    """Leave a thread behind that hardly ever lets go of the interpreter."""
    threading.Thread(target=_compute, daemon=True).start()


def _compute() -> None:
    end = time.monotonic() + 3 * TIMEOUT
    while time.monotonic() < end:
        pass


def _flood() -> None:
    """Write to the output, for ever."""
    while True:
        with suppress(OSError):  # another pill of this process may have closed it
            os.write(1, b'{"a": "line of a pill"}\n' * 100)
        time.sleep(0.01)


def _deaf() -> None:
    """Hear no signal that can be ignored, and go on computing."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


async def _ignore_all(ctx: TaskContext) -> None:
    while True:
        try:
            await anyio.sleep(0.05)
            await ctx.step("late", int, 1)
        except BaseException:  # noqa: BLE001, S112 - that is what it is there for
            continue


# ── and what has to become of it ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Pill:
    """One kind of harm; with an `error` the task fails at once with that type, without one its process dies of it."""

    harm: Callable[[], object]
    error: str | None = None
    may_die: bool = False
    """Whether its process may as well die of it."""
    waits: bool = False
    """Whether the body goes on after it."""
    cancel: bool = False
    """Whether it is cancelled as soon as it has begun."""
    children_only: bool = False
    """Whether a supervisor without children is not to swallow it: it could not but end as the body says."""


def _kill(pid: Callable[[], int], number: signal.Signals) -> Callable[[], object]:
    return lambda: os.kill(pid(), number)


SLOW: Final = "TimeoutError"

PILLS: Final[dict[str, Pill]] = {
    "kill": Pill(_kill(os.getpid, signal.SIGKILL), waits=True),
    "abort": Pill(os.abort),
    "segfault": Pill(_segfault),
    "exit": Pill(lambda: os._exit(3)),
    "exit with 0": Pill(lambda: os._exit(0)),
    "overflow": Pill(_overflow),
    "quit": Pill(_kill(os.getpid, signal.SIGQUIT), waits=True),
    "hoard": Pill(_hoard, "MemoryError", may_die=True, children_only=True),
    "close all": Pill(_close_all, waits=True, children_only=True),
    "babble": Pill(_babble, waits=True, children_only=True),
    "kill the parent": Pill(_kill(os.getppid, signal.SIGKILL), waits=True, children_only=True),
    "recursion": Pill(_recurse, "RecursionError"),
    "BaseException": Pill(_raise(BaseException), "BaseException"),
    "SystemExit": Pill(_raise(SystemExit), "SystemExit"),
    "KeyboardInterrupt": Pill(_raise(KeyboardInterrupt), "KeyboardInterrupt"),
    "GeneratorExit": Pill(_raise(GeneratorExit), "GeneratorExit"),
    "a large result": Pill(_large, "taskrunner.InvalidResult"),
    "a large step": Pill(_rather_large, "taskrunner.InvalidResult"),
    "no JSON": Pill(object, "taskrunner.InvalidResult"),
    "half a pair": Pill(lambda: "\ud800", "taskrunner.InvalidResult"),
    "block": Pill(lambda: time.sleep(2 * TIMEOUT), SLOW),
    "slow": Pill(int, SLOW, waits=True),
    "stubborn": Pill(int, cancel=True),
    "block for ever": Pill(lambda: time.sleep(LONG), SLOW, children_only=True),
    "stop": Pill(_kill(os.getpid, signal.SIGSTOP), SLOW, waits=True, children_only=True),
    "fork": Pill(_fork, SLOW, children_only=True),
    "flood": Pill(_flood, SLOW, children_only=True),
    "stop loop": Pill(_stop_loop, waits=True, children_only=True),
    "cancel everything": Pill(_cancel_all, waits=True, children_only=True),
    "close output": Pill(_close_output, SLOW, waits=True),
    "spoil": Pill(_spoil, SLOW, waits=True, children_only=True),
    "spin": Pill(_spin, SLOW, waits=True),
    "deaf": Pill(_deaf, SLOW, children_only=True),
}
