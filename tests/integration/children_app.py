"""An app whose tasks run in child processes: good ones, and those that do their process harm."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio

from taskrunner import InvalidInput, Retry, TaskContext, TaskRunner
from tests.integration.machine import FAST, Heard, until

runner = TaskRunner()


@asynccontextmanager
async def at_work(db: Path, *, processes: int = 1, **settings: Any) -> AsyncIterator[Heard]:  # noqa: ANN401 - their own
    """The runner at work on this store with child processes; what it tells is heard."""
    heard = Heard(runner)
    with runner.override(db=db, **{**FAST, **settings}):
        async with runner.working(processes=processes):
            await until(lambda: len(heard.of("child.started")) >= processes, within=15)
            yield heard


def note(log: str, *words: object) -> None:
    """Append a line; it is on the disk when this returns."""
    line = " ".join(map(str, words)) + "\n"
    with Path(log).open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


# ── good ones ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@runner.task
async def who() -> int:
    """The process that it runs in."""
    return os.getpid()


@runner.task
def plain_who(ctx: TaskContext, number: int) -> list[int]:
    """The same from a thread, with a step and a task of its own."""
    other = runner.sync(twice.enqueue(1))
    return [os.getpid(), ctx.sync(ctx.step("double", lambda: number * 2)) + ctx.sync(other.result(timeout=10))]


@runner.task
async def asks(questions: list[str]) -> list[Any]:
    """What the store answers to SQL of a body's own."""
    told: list[Any] = []
    for sql in questions:
        try:
            told.append(await runner.read(sql))
        except InvalidInput as error:
            told.append(f"InvalidInput {error}")
    return told


@runner.task
async def asks_in_vain(sql: str) -> str:
    """A question without end, of which nobody waits for the answer."""
    with anyio.move_on_after(0.2):
        await runner.read(sql, timeout="1h")
    return "given up"


@runner.task
async def twice(ctx: TaskContext, number: int) -> int:
    """A step, at once."""
    return await ctx.step("double", lambda: number * 2)


@runner.task
async def talks(ctx: TaskContext, gate: str) -> None:
    """It logs, and waits for a file."""
    ctx.log.info("begun", pid=os.getpid())
    ctx.log.info("waiting")
    await until(anyio.Path(gate).exists, within=60)
    ctx.log.info("last words")


@runner.task
async def everything(ctx: TaskContext, log: str) -> dict[str, Any]:
    """Whatever a body may ask of its store."""
    first = await ctx.step("first", os.getpid)
    await ctx.session.add("user", "hello")
    await ctx.progress(0.5, "half way")
    if ctx.attempt == 1:
        raise Retry("once more", after=0.01)
    other = await twice.options(idempotency_key="twice").enqueue(21)
    later = await who.options(delay="1h").enqueue()
    return {
        "first": first,
        "here": os.getpid(),
        "answer": await other.result(timeout=10),
        "cancel": [await later.cancel("no need"), await later.status()],
        "said": [message.content for message in await ctx.session.recent(5)],
        "sessions": len(await runner.sessions.list()),
        "tasks": len(await runner.tasks.list(type="everything")),
        "uuid": ctx.uuid(),
    }


@runner.task(max_retries=0)
async def nap(ctx: TaskContext, log: str, seconds: float = 0.0) -> int:
    """Tell that it begins, sleep, and tell that it ends."""
    note(log, "begins", ctx.task.id, os.getpid())
    await anyio.sleep(seconds)
    note(log, "ends", ctx.task.id, os.getpid())
    return os.getpid()


@runner.task(max_retries=0)
async def steps(ctx: TaskContext, log: str) -> str:
    """Three steps, then a wait in the first attempt only."""
    for number in range(3):
        await ctx.step("part", note, log, "part", number)
    if ctx.attempt == 1:
        await anyio.sleep(60)
    await ctx.step("last", note, log, "last")
    return "done"


# ── those that do harm ────────────────────────────────────────────────────────────────────────────────────────────────


def _hog() -> None:
    """Grow until somebody kills it: a watcher in the place of the system's own, above 200 MB."""

    def watch() -> None:
        while int(Path("/proc/self/statm").read_text().split()[1]) * 4096 < 200_000_000:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    held = []
    while True:
        held.append(b"x" * 10_000_000)
        time.sleep(0.01)


def _hang_up() -> None:
    """Close what is open, as code does that makes itself a daemon, and stay."""
    os.closerange(3, 200)
    time.sleep(60)


def _babble() -> None:
    """Write into every socket that is open, as code does that has kept the number of a file it closed."""
    for each in Path("/proc/self/fd").iterdir():
        if each.is_symlink() and str(each.readlink()).startswith("socket:"):
            with suppress(OSError):
                os.write(int(each.name), b"hello world\n")


HARM: Final[dict[str, Callable[[], object]]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "hog": _hog,
    "hang up": _hang_up,
    "babble": _babble,
}


@runner.task(max_losses=3)
async def pill(ctx: TaskContext, how: str, log: str) -> None:
    """Kill its own process, each time."""
    note(log, "pill", ctx.attempt, time.monotonic())
    HARM[how]()
    await anyio.sleep(60)


@runner.task(max_retries=0)
def greedy(megabytes: int) -> int:
    """Ask for much memory at once."""
    return len(bytearray(megabytes * 1_000_000))


_held: list[bytes] = []


@runner.task(max_retries=0, max_losses=3)
async def hoard() -> None:
    """Take memory in small pieces, and never give it back."""
    while True:
        _held.append(b"x" * len(_held))


@runner.task(max_retries=0)
async def block(ctx: TaskContext, log: str, seconds: float) -> None:
    """Block the event loop."""
    note(log, "begins", ctx.task.id, os.getpid())
    time.sleep(seconds)


@runner.task(max_retries=0)
async def stubborn(ctx: TaskContext, log: str) -> None:
    """Catch every cancellation, for ever, with a process tree of its own."""
    _tree(ctx, log)
    while True:
        try:
            await anyio.sleep(0.05)
            await ctx.step("late", note, log, "late")
        except BaseException:  # noqa: BLE001, S112 - that is what it is there for
            continue


@runner.task(max_retries=0)
def deaf(ctx: TaskContext, log: str) -> None:
    """Sleep in a thread, which nobody can stop, with a process tree of its own."""
    _tree(ctx, log)
    time.sleep(60)


def _tree(ctx: TaskContext, log: str) -> None:
    child = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    note(log, "begins", ctx.task.id, os.getpid(), child.pid, child.stdout.readline().strip())


# ── errors that no pickle could carry (B27) ───────────────────────────────────────────────────────────────────────────


class TwoArguments(Exception):
    """It cannot be made of its text."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


class Locked(Exception):
    """It holds what cannot leave its process."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Unspeakable(Exception):
    """Its text raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


def _chain() -> Exception:
    error: Exception = ValueError("number 0")
    for number in range(1, 50):
        outer = ValueError(f"number {number}")
        outer.__cause__ = error
        error = outer
    return error


ERRORS: Final[dict[str, Callable[[], BaseException]]] = {
    "two arguments": lambda: TwoArguments("this", "that"),
    "a lock": Locked,
    "no text": Unspeakable,
    "groups": lambda: ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("leaf")])]),
    "a chain": _chain,
    "10 MB": lambda: ValueError("x" * 10_000_000),
    "half a pair": lambda: ValueError("\ud800"),
    "no Exception": lambda: SystemExit(7),
}


@runner.task(max_retries=0)
async def broken(what: str) -> None:
    """Raise it."""
    error = ERRORS[what]()
    raise error


def error_type_of(what: str) -> str:
    """How the store names the error of `broken`."""
    kind = type(ERRORS[what]())
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
