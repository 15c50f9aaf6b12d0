"""Programs as durable tasks: `shell.run` runs an argument list, no shell, and records how it went.

| argument | default | |
|---|---|---|
| `argv` | | the program and its arguments, each a text; nothing is expanded, split or quoted |
| `cwd` | the worker's folder | where it runs |
| `env` | none | variables that it gets; they stand in the task's input, so put no secret here |
| `inherit` | PATH, HOME, LANG, TZ | names of variables that it gets from the worker's environment, where they are set |
| `timeout` | none | seconds until it is ended; the result then says `timed_out` |
| `kill_after` | 0.5 | seconds between SIGTERM and SIGKILL when it has to end |
| `keep` | 32768 | bytes kept of standard output, and of standard error: half from its beginning, half from its end |
| `check` | false | whether an exit code other than 0, a signal and a timeout are errors |

| limit | |
|---|---|
| standard input | empty |
| `keep` | 0 to 80,000, so that the result fits into a `max_payload` of 1 MiB whatever it holds |
| memory | some 64 KiB beside what is kept, however much it writes |
| text | bytes that are no UTF-8 come back as U+FFFD |

| effect | |
|---|---|
| once | It is one step, `run`: once its result is recorded, it is not run again; if its worker dies earlier, it is. |
| an exit code | is a result. With `check` it is an error: the task is run again, as its `max_retries` say. |
| a program or a folder that is not there | fails the task for good, with one sentence. |
| a cancel, a timeout, a stop | SIGTERM to its process group and, after `kill_after`, SIGKILL. |
| its own end | SIGKILL to what it has left running in its process group. |
| the death of the worker | as a cancel: a small process in its group, which holds a pipe to the worker, sees to it. |
| a program that leaves its group | (by `setsid`, as daemons do) is not ended. |

A supervisor that stops gives its bodies one second: a longer `kill_after` may run beside the task's next attempt.
While it runs, the last line that it wrote is the task's progress message. Whoever may enqueue here may run any program
as the worker's user: keep the store's file closed to others.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Final, Self

import anyio

from taskrunner import Fail, InvalidInput, TaskContext, Tasks

tasks = Tasks("shell.")
"""One task type: `shell.run`."""

INHERIT: Final = ("PATH", "HOME", "LANG", "TZ")
KEEP: Final = 32_768
MOST_KEPT: Final = 80_000
KILL_AFTER: Final = 0.5
MOST_KILL_AFTER: Final = 3_600
_SHOWN: Final = 100
"""Characters of a wrong value that are shown."""

_CHUNK: Final = 65_536
_LONGEST_LINE: Final = 200
"""Bytes of a line that are shown as progress."""
_LAST_WORDS: Final = 1.0
"""Seconds until the pipes are given up of a program that has ended: one that left its group may hold them for ever."""
_SOON, _LATER = 0.005, 0.1
"""Seconds between two questions whether a program has ended: at first, and later."""

_FOR_GOOD: Final = frozenset(
    {
        *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOEXEC, errno.ELOOP),
        *(errno.ENAMETOOLONG, errno.E2BIG),
    }
)
"""Why a program cannot be started that no retry would help; all else is a lack of processes, memory or files."""

_GUARD: Final = "trap '' HUP INT QUIT TERM; read -r _; kill -TERM 0; sleep \"$1\"; kill -KILL 0"
"""It leads the process group, so it is there before the program is. It reads from the worker, and what ends that is
the worker's end alone: then it ends its group."""


class CommandFailed(Exception):
    """A program ended with another exit code than 0, by a signal, or too late, and `check` was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended, and what it wrote."""

    exit_code: int | None
    """None: a signal ended it."""
    signal: str | None
    """The name of that signal, such as "SIGKILL"."""
    seconds: float
    stdout: str
    stderr: str
    stdout_bytes: int
    """How many it wrote, kept or not."""
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    timed_out: bool


@tasks.task(name="run")
async def run(
    ctx: TaskContext,
    argv: list[str],
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    inherit: list[str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - the program's own
    kill_after: float = KILL_AFTER,
    keep: int = KEEP,
    check: bool = False,
) -> Finished:
    """Run a program to its end; the module's docstring tells of the arguments.

    Raises:
        InvalidInput: an argument is out of its bounds.
        Fail: there is no such program or folder, or it may not be run.
        StepFailed: `check`, and it did not end with 0.
    """
    command = Command(
        argv=argv,
        cwd=cwd,
        env=env or {},
        inherit=list(INHERIT) if inherit is None else inherit,
        timeout=timeout,
        kill_after=kill_after,
        keep=keep,
        check=check,
    )
    return await ctx.step("run", execute, command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to be run, with its arguments checked; the module's docstring tells of them."""

    argv: list[str]
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    inherit: list[str] = field(default_factory=lambda: list(INHERIT))
    timeout: float | None = None
    kill_after: float = KILL_AFTER
    keep: int = KEEP
    check: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InvalidInput: an argument is out of its bounds.
        """
        for name, value, rule in self._faults():
            shown = repr(value)
            message = f"{name}={shown[:_SHOWN]}{'…' * (len(shown) > _SHOWN)}: {rule}"
            raise InvalidInput(message, path=name)

    def _faults(self) -> Iterator[tuple[str, object, str]]:
        if not self.argv or not self.argv[0]:
            yield "argv", self.argv, "the name of a program is wanted"
        for name, texts in (("argv", self.argv), ("env", [*self.env, *self.env.values()]), ("cwd", [self.cwd or ""])):
            if any("\0" in text for text in texts):
                yield name, texts, "U+0000 cannot be handed to a program"
        if any(not name or "=" in name for name in self.env):
            yield "env", list(self.env), "a variable's name is not empty and has no ="
        if self.timeout is not None and not self.timeout > 0:
            yield "timeout", self.timeout, "it must be more than 0 seconds"
        if not 0 <= self.kill_after <= MOST_KILL_AFTER:
            yield "kill_after", self.kill_after, f"it must be from 0 to {MOST_KILL_AFTER:,} seconds"
        if not 0 <= self.keep <= MOST_KEPT:
            yield "keep", self.keep, f"it must be from 0 to {MOST_KEPT:,} bytes"


async def execute(command: Command) -> Finished:
    """Run a program to its end, as a step of your own task: `await ctx.step("build", execute, Command(argv=["make"]))`.

    Raises:
        Fail: there is no such program or folder, or it may not be run.
        CommandFailed: `check`, and it did not end with 0.
        OSError: the system has no room for another process; a retry may help.
    """
    began = anyio.current_time()
    out, err = Kept(command.keep), Kept(command.keep)
    group = _Group.start(command)
    with group:
        async with anyio.create_task_group() as readers:
            readers.start_soon(_read, group.stdout, out)
            readers.start_soon(_read, group.stderr, err)
            timed_out = await group.wait(command.timeout, command.kill_after)
            readers.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS
    finished = _finished(group.returncode, anyio.current_time() - began, out, err, timed_out=timed_out)
    if command.check and (finished.timed_out or finished.exit_code != 0):
        message = f"{command.argv[0]!r} {_how(finished)}{_last_line(finished.stderr)}"
        raise CommandFailed(message)
    return finished


class Kept:
    """The beginning and the end of what a stream brought; the middle is only counted."""

    def __init__(self, keep: int) -> None:
        self._room = keep - keep // 2, keep // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Take what was read."""
        self.total += len(data)
        first, last = self._room
        more = first - len(self._head)
        self._head += data[:more]
        self._tail += data[max(0, more) :]
        del self._tail[: max(0, len(self._tail) - last)]

    @property
    def left_out(self) -> int:
        """How many bytes of the middle are gone."""
        return self.total - len(self._head) - len(self._tail)

    @property
    def text(self) -> str:
        """What was kept, with a line where something is left out."""
        if not self.left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        gap = f"\n[… {self.left_out:,} bytes left out …]\n"
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")


_guards: set[subprocess.Popen[bytes]] = set()


def _leave_guards_to_the_parent() -> None:
    """In a forked child, whose copies of the pipes would hide the parent's death from the guards."""
    for guard in _guards:
        if guard.stdin is not None:
            guard.stdin.close()
    _guards.clear()


os.register_at_fork(after_in_child=_leave_guards_to_the_parent)


class _Group:
    """A running program with its guard, in a process group of their own."""

    def __init__(self, guard: subprocess.Popen[bytes], program: subprocess.Popen[bytes]) -> None:
        self._guard = guard
        self._program = program

    @classmethod
    def start(cls, command: Command) -> _Group:
        inherited = {name: os.environ[name] for name in command.inherit if name in os.environ}
        guard = _spawn(
            ["/bin/sh", "-c", _GUARD, "guard", f"{command.kill_after:f}"], {"PATH": os.defpath}, group=0, pipes=False
        )
        _guards.add(guard)
        try:
            program = _spawn(command.argv, {**inherited, **command.env}, group=guard.pid, pipes=True, cwd=command.cwd)
        except OSError as error:
            _end(guard)
            if error.errno not in _FOR_GOOD:
                raise
            raise Fail(_why_not(command, error)) from error
        return cls(guard, program)

    @property
    def stdout(self) -> IO[bytes]:
        assert self._program.stdout is not None  # noqa: S101 - it was asked for
        return self._program.stdout

    @property
    def stderr(self) -> IO[bytes]:
        assert self._program.stderr is not None  # noqa: S101 - it was asked for
        return self._program.stderr

    @property
    def returncode(self) -> int:
        return self._program.wait()

    async def wait(self, timeout: float | None, kill_after: float) -> bool:  # noqa: ASYNC109 - the program's own
        """Wait for the program's end, or bring it about, and end all that is left of its group: was it too late?"""
        timed_out = True
        try:
            with anyio.move_on_after(timeout):
                await self._ended()
                timed_out = False
        finally:
            with anyio.CancelScope(shield=True):
                if self._program.poll() is None:
                    self._signal(signal.SIGTERM)
                    with anyio.move_on_after(kill_after):
                        await self._ended()
                self._signal(signal.SIGKILL)
                await self._ended()
        return timed_out

    async def _ended(self) -> None:
        pause = _SOON
        while self._program.poll() is None:
            await anyio.sleep(pause)
            pause = min(_LATER, pause * 1.5)

    def _signal(self, number: signal.Signals) -> None:
        """To the group, whose number is the guard's as long as that has not been waited for."""
        if self._guard.returncode is None:
            os.killpg(self._guard.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        _end(self._guard)
        self._program.wait()
        self.stdout.close()
        self.stderr.close()


async def _read(stream: IO[bytes], kept: Kept) -> None:
    """Read a pipe to its end; the last line of what is there is the task's progress message."""
    number, ctx = stream.fileno(), TaskContext.current()
    os.set_blocking(number, False)
    while True:
        await anyio.wait_readable(number)
        data = os.read(number, _CHUNK)
        if not data:
            return
        kept.add(data)
        if lines := data[-_LONGEST_LINE:].rstrip().splitlines():
            await ctx.progress(0.0, lines[-1].decode("utf-8", "replace"))


def _spawn(
    argv: Sequence[str], env: dict[str, str], *, group: int, pipes: bool, cwd: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a program in a process group; the guard's pipe is its input, the program's are its outputs."""
    output = subprocess.PIPE if pipes else subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 - to run what it is told is this worker's trade
        argv,
        stdin=subprocess.DEVNULL if pipes else subprocess.PIPE,
        stdout=output,
        stderr=output,
        cwd=cwd,
        env=env,
        process_group=group,
    )


def _end(guard: subprocess.Popen[bytes]) -> None:
    _guards.discard(guard)
    guard.kill()
    guard.wait()
    if guard.stdin is not None:
        guard.stdin.close()


def _why_not(command: Command, error: OSError) -> str:
    if command.cwd is not None and error.filename == command.cwd:
        return f"cwd={command.cwd!r}: it cannot be run there ({error.strerror})"
    return f"argv[0]={command.argv[0]!r}: it cannot be run ({error.strerror})"


def _finished(code: int, seconds: float, out: Kept, err: Kept, *, timed_out: bool) -> Finished:
    return Finished(
        exit_code=code if code >= 0 else None,
        signal=None if code >= 0 else _name_of(-code),
        seconds=round(seconds, 3),
        stdout=out.text,
        stderr=err.text,
        stdout_bytes=out.total,
        stderr_bytes=err.total,
        stdout_truncated=out.left_out > 0,
        stderr_truncated=err.left_out > 0,
        timed_out=timed_out,
    )


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _how(finished: Finished) -> str:
    if finished.timed_out:
        return f"was ended after {finished.seconds:g} s, its timeout"
    if finished.signal is not None:
        return f"was ended by {finished.signal}"
    return f"ended with exit code {finished.exit_code}"


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return f": {lines[-1][:500]}" if lines else ""
