"""An event loop in virtual time. What is ready runs in a seeded order, and nothing runs of a process that is dead.

It is asyncio's own loop but for the turn: waiting moves a number instead of the sleeper, so an hour takes as long as
what happens in it. Each callback belongs to the simulated process in whose context it was made. Those of a dead process
are dropped (no `except` and no `finally` of it ever runs), those of a stopped one wait until it goes on.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from itertools import count
from random import Random
from typing import Any, Final, Literal, Protocol, TypeAlias

import sniffio
from anyio._backends import _asyncio as backend

TURN: Final = 0.000_02
"""Virtual seconds that a turn of the loop takes: code that asks again at each turn must not stop the time."""

BUSY_TURNS: Final = 8
"""Turns after which the descriptors are looked at although there is something else to do: a look costs real time."""

SPIN: Final = 0.005
"""Virtual seconds at most that pass while nothing but cancellations are delivered again."""


class Process(Protocol):
    """What the loop has to know of a simulated process."""

    pid: int
    state: Literal["runs", "stopped", "dead"]
    context: Context
    tasks: set[asyncio.Task[Any]]
    parked: list[asyncio.Handle]


process_here: Final[ContextVar[Process | None]] = ContextVar("process_here", default=None)
"""The simulated process to which the code that runs here belongs; None: the simulator itself."""


class StuckError(Exception):
    """Nothing is ready and nothing ever will be, or somebody asks again and again."""


class _Selector(selectors.DefaultSelector):
    """Looks without waiting. What is ready is told in an order that does not follow from the descriptors' numbers."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:  # noqa: ARG002
        ready = [(_reader(event[0]), event) for event in super().select(0)]
        ready = [(reader, event) for reader, event in ready if reader is None or reader.state == "runs"]
        return [event for _reader, event in sorted(ready, key=lambda one: 0 if one[0] is None else one[0].pid)]


def _reader(key: selectors.SelectorKey) -> Process | None:
    handle = key.data[0] or key.data[1]
    return handle._context.get(process_here)  # type: ignore[no-any-return]


class Loop(asyncio.SelectorEventLoop):
    """The event loop of a whole simulated machine."""

    def __init__(self, seed: str) -> None:
        self.random = Random(f"{seed} loop")
        self.now = 0.0
        self.turns = 0
        self.ran: Process | None = None
        """The process that has run last."""
        self.most_turns = 10_000_000
        self.after_turn: Callable[[], None] | None = None
        """Called after each turn that ran something."""
        self.doomed: Callable[[], None] | None = None
        """Called once, when the callback has returned that runs now."""
        super().__init__(_Selector())
        self._ready: Any  # of asyncio's own loop, as are those below
        self._scheduled: list[Any]
        self._selector: selectors.BaseSelector
        self.set_task_factory(_task)

    def time(self) -> float:
        """Virtual seconds since it began."""
        return self.now

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - as asyncio's
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call it soon, in the process from which this is asked for."""
        process = process_here.get()
        return self.call_soon(callback, *args, context=context if process is None else process.context)

    def release(self, parked: asyncio.Handle) -> None:
        """Run what a process was about to run when it was stopped."""
        self._ready.append(parked)

    def forget_readers(self, descriptors: set[int]) -> None:
        """Look at these no longer: their process is dead."""
        context = Context()
        context.run(sniffio.current_async_library_cvar.set, "asyncio")  # it is asked for outside of any task
        waiting = context.run(backend._read_events.get, {})
        for descriptor in descriptors & self._selector.get_map().keys():
            self.remove_reader(descriptor)
            waiting.pop(descriptor, None)

    def readers_of(self, process: Process) -> set[int]:
        """The descriptors that a process waits for."""
        return {
            key.fd
            for key in self._selector.get_map().values()
            if isinstance(key.data, tuple) and key.data[0] and key.data[0]._context.get(process_here) is process
        }

    def _run_once(self) -> None:
        self.now += TURN
        if self.turns > self.most_turns:
            message = f"somebody spins: {self.turns:,} turns of the loop are too many"
            raise StuckError(message)
        ready = self._ready
        if not ready or self.turns % BUSY_TURNS == 0:
            self._process_events(self._selector.select())  # type: ignore[attr-defined]
        if not ready:
            self._pass(None)
        elif all(_is_spin(handle) for handle in ready):
            self._pass(SPIN)
        self._wake_timers()
        handles = list(ready)
        ready.clear()
        if len(handles) > 1:
            self.random.shuffle(handles)
        for handle in handles:
            self._run_one(handle)
        self.turns += 1
        if self.after_turn is not None:
            self.after_turn()

    def _run_one(self, handle: Any) -> None:  # noqa: ANN401 - a handle of asyncio's
        process = handle._context.get(process_here)
        if handle._cancelled or (process is not None and process.state == "dead"):
            return
        if process is not None and process.state == "stopped":
            process.parked.append(handle)
            return
        self.ran = process or self.ran
        handle._run()
        if self.doomed is not None:
            doomed, self.doomed = self.doomed, None
            doomed()

    def _pass(self, most: float | None) -> None:
        """Let the time pass until the next timer."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if scheduled:
            until = scheduled[0]._when
            self.now = max(self.now, until if most is None else min(until, self.now + most))
        elif most is None:
            message = "nothing is ready, and nothing ever will be"
            raise StuckError(message)

    def _wake_timers(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0]._when <= self.now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                self._ready.append(handle)

    def _timer_handle_cancelled(self, _handle: object) -> None:
        """Nothing: cancelled timers are passed over when they are due."""


def _is_spin(handle: Any) -> bool:  # noqa: ANN401 - a handle of asyncio's
    return getattr(handle._callback, "__name__", "") == "_deliver_cancellation"


_numbers = count()


_Coroutine: TypeAlias = Generator[Any, None, Any] | Coroutine[Any, Any, Any]


class _Task(asyncio.Task[Any]):
    """A task whose place in a set follows from the order of their making, and not from its address."""

    def __init__(self, coroutine: _Coroutine, **given: Any) -> None:  # noqa: ANN401 - as asyncio's
        self._number = next(_numbers)
        super().__init__(coroutine, **given)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class _Scope(backend.CancelScope):
    """A cancel scope of which the same holds."""

    __slots__ = ("_number",)

    def __init__(self, *args: Any, **given: Any) -> None:  # noqa: ANN401 - as anyio's
        self._number = next(_numbers)
        super().__init__(*args, **given)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _task(
    loop: asyncio.AbstractEventLoop,
    coroutine: _Coroutine,
    **given: Any,  # noqa: ANN401 - as asyncio's
) -> asyncio.Task[Any]:
    """Make a task, which its process keeps: a coroutine that nobody has any more would run its `finally`."""
    task = _Task(coroutine, loop=loop, **given)
    context = given.get("context")
    process = process_here.get() if context is None else context.get(process_here)
    if process is not None:
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
    return task


def in_order() -> None:
    """Have anyio deliver cancellations in an order that does not follow from addresses; for this process, for good."""
    backend.CancelScope = _Scope  # type: ignore[misc]
