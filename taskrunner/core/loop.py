"""Threads and the event loop: how each reaches the other. The only module that knows both."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, Generic, ParamSpec, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from taskrunner.core.errors import NotOpen
from taskrunner.core.threads import threads

P = ParamSpec("P")
T = TypeVar("T")

acting_for: contextvars.ContextVar[object] = contextvars.ContextVar("acting_for", default=None)
"""The thread on whose behalf a coroutine runs: its calls count as that thread's own."""


FORKED: Final = (
    "this was opened before a fork, by the parent process, and none of it works here: start the process by spawn "
    "(multiprocessing.get_context('spawn'), subprocess), or fork first and open the store then"
)
"""What a forked child is told: it has neither the threads nor the locks of what it has inherited."""

_forks = 0


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - it tells this process from those that it was forked from
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


@contextmanager
def here_only() -> Iterator[None]:
    """End a copy of this process in which the block ends: what comes after it is for this process alone.

    A fork copies the event loop with all that waits in it, and shares its files: a copy that went on would answer in
    our name, and take away what is sent to us. It ends as a program does: by the code of `sys.exit`, or with a
    traceback and 1.
    """
    forks = _forks
    code: object = 0
    try:
        yield
    except BaseException as error:
        if forks != _forks:
            code = error.code if isinstance(error, SystemExit) else 1
            if not isinstance(error, SystemExit):
                traceback.print_exception(error)
        raise
    finally:
        if forks != _forks:
            for stream in (sys.stdout, sys.stderr):
                with suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
                    stream.flush()
            os._exit(code if isinstance(code, int) else int(code is not None))


class LoopEnded(NotOpen):
    """The event loop that had this open has ended."""


class LoopRef:
    """The running event loop, to be reached from any thread."""

    def __init__(self) -> None:
        self.token = anyio.lowlevel.current_token()
        native: Any = self.token.native_token
        self._native = native
        self._forks = _forks
        self._thread = threading.get_ident()
        self._post: Callable[[Callable[[], object]], object]
        if hasattr(native, "call_soon_threadsafe"):
            self._post = partial(native.call_soon_threadsafe, context=_context_of_callbacks())
        else:
            self._post = native.run_sync_soon

    @property
    def forked(self) -> bool:
        """Whether it is the loop of a process that this one was forked from: it does not run here."""
        return self._forks != _forks

    def post(self, call: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Have the loop call `call` soon; False when the loop has ended and nobody will."""
        try:
            self._post(lambda: call(*args, **kwargs))
        except RuntimeError:
            return False
        return True

    def reply(self) -> Reply[Any]:
        """One answer to be awaited on this loop: Python 3.11 asks for the process id to tell the running one.

        Raises:
            NotOpen: this process was forked from the loop's: nobody would answer here.
        """
        if self.forked:
            raise NotOpen(FORKED)
        return Reply(self._native)

    def busy_with(self) -> tuple[object, str]:
        """What the loop is running at this moment: its async task (if that can be told) and a place in the code."""
        task: object = None
        if hasattr(self._native, "call_soon_threadsafe"):
            task = asyncio.current_task(self._native)
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way to see another thread
        place = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return task, place

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Await a coroutine on the loop, from another thread.

        A Ctrl-C in that thread cancels the coroutine, and leaves when it has ended: nothing of it works on unseen.

        Raises:
            LoopEnded: the loop has ended; the coroutine is closed.
            NotOpen: it runs in the process that this one was forked from; the coroutine is closed.
        """
        if self.forked:
            coroutine.close()
            raise NotOpen(FORKED)
        running: list[tuple[anyio.CancelScope, anyio.Event]] = []

        async def awaited() -> T:
            scope, ended = anyio.CancelScope(), anyio.Event()
            running.append((scope, ended))
            try:
                with scope:
                    return await coroutine
            finally:
                ended.set()
            raise LoopEnded  # it was cancelled, and nobody waits for this

        async def stop() -> None:
            for scope, ended in running:
                scope.cancel()
                await ended.wait()

        try:
            return anyio.from_thread.run(awaited, token=self.token)
        except anyio.RunFinishedError:
            coroutine.close()
            raise LoopEnded from None
        except KeyboardInterrupt:
            anyio.from_thread.run(stop, token=self.token)
            raise


def _context_of_callbacks() -> contextvars.Context:
    """What a callback sees: no values of a task's, and which event loop this is.

    Where sniffio is installed, anyio asks it, and sniffio takes a callback for a place without an event loop: it looks
    for a task.
    """
    context = contextvars.Context()
    if (sniffio := sys.modules.get("sniffio")) is not None:
        context.run(sniffio.current_async_library_cvar.set, "asyncio")
    return context


class Reply(Generic[T]):
    """One answer that is awaited on the loop; it is given on the loop, too (`LoopRef.post` brings it there).

    On asyncio it is a bare future, which is what every write waits for: an event of anyio takes twice as long.
    """

    __slots__ = ("_error", "_given", "_value")

    def __init__(self, native: Any = None) -> None:  # noqa: ANN401 - an event loop's own
        self._given: asyncio.Future[None] | anyio.Event
        try:
            self._given = (native or asyncio.get_running_loop()).create_future()
        except (RuntimeError, AttributeError):  # another event loop than asyncio's
            self._given = anyio.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def give(self, value: T, /) -> None:
        """Answer with a value."""
        self._value = value
        given = self._given
        if isinstance(given, anyio.Event):
            given.set()
        elif not given.done():  # done: nobody waits any more, the wait was cancelled
            given.set_result(None)

    def fail(self, error: BaseException, /) -> None:
        """Answer with an error, which `wait` raises."""
        self._error = error
        self.give(self._value)

    async def wait(self) -> T:
        """Wait for the answer."""
        given = self._given
        await (given.wait() if isinstance(given, anyio.Event) else given)
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value


async def call_in_thread(name: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run plain code in a thread of its own, with a copy of this context, and wait for it.

    A cancellation ends the wait, not the thread: Python cannot stop one. (anyio's worker threads are not daemons: one
    hung handler would keep the whole process from ending.)
    """
    loop = LoopRef()
    reply: Reply[T] = Reply()
    context = contextvars.copy_context()

    def body() -> None:
        try:
            value = context.run(call, *args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is awaited
            loop.post(reply.fail, error)
        else:
            loop.post(reply.give, value)

    threads.get().start(name, body)
    return await reply.wait()


_detached: set[object] = set()


def detach(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine that nobody has to wait for: code that ignores its cancellation must not hold up the rest."""
    if (trio := _running_trio()) is not None:
        trio.lowlevel.spawn_system_task(call, context=contextvars.copy_context())
        return
    task = asyncio.get_running_loop().create_task(call())
    _detached.add(task)
    task.add_done_callback(_detached.discard)


async def see_through(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await a coroutine to its end, however often the wait for it is cancelled; a cancellation counts after it.

    A shielded scope keeps anyio's cancellations out, but not the event loop's own, such as `task.cancel()`; under
    trio there are no others.
    """
    if _running_trio() is not None:
        with anyio.CancelScope(shield=True):
            result = await call()
        await anyio.lowlevel.checkpoint_if_cancelled()
        return result
    task = asyncio.get_running_loop().create_task(call())
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()


def _running_trio() -> Any:  # noqa: ANN401 - a module that is imported by nobody but the user
    """trio, when its event loop is the one that runs here."""
    trio = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio


def on_loop_error(kind: type[BaseException], call: Callable[[], object]) -> None:
    """Have `call` called when a callback of the running event loop raises an error of this kind; others are logged."""

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), kind):
            call()
        loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)


def current_caller() -> object:
    """The async task that is running, or the thread where there is none: who makes a call, told apart by identity."""
    if (thread := acting_for.get()) is not None:
        return thread
    try:
        task: object = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None and (trio := _running_trio()) is not None:
        task = trio.lowlevel.current_task()
    return task or threading.current_thread()


def is_cancelled(caller: object) -> bool:
    """Whether the cancellation of an asyncio task was asked for, and not taken back."""
    return isinstance(caller, asyncio.Task) and caller.cancelling() > 0


def has_ended(caller: object) -> bool:
    """Whether an async task (or thread), as `current_caller` told of it, has come to its end."""
    if isinstance(caller, asyncio.Task):
        return caller.done()
    if isinstance(caller, threading.Thread):
        return not caller.is_alive()
    coroutine = getattr(caller, "coro", None)  # of a task of trio's
    return inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def has_returned(caller: object) -> bool:
    """Whether it has ended, and not by an error or a cancellation; of a thread or a task of trio's nobody can tell."""
    if isinstance(caller, asyncio.Task):
        return caller.done() and not caller.cancelled() and caller.exception() is None
    return has_ended(caller)
