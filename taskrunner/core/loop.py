"""Threads and the event loop: how each reaches the other. The only module that knows both."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

P = ParamSpec("P")
T = TypeVar("T")

_END = object()


class LoopRef:
    """The running event loop, to be reached from any thread."""

    def __init__(self) -> None:
        self.token = anyio.lowlevel.current_token()
        native: Any = self.token.native_token
        self._post: Callable[..., object] = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon

    def post(self, call: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Have the loop call `call` soon; False when the loop has ended and nobody will."""
        try:
            self._post(lambda: call(*args, **kwargs))
        except RuntimeError:
            return False
        return True

    def run(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Await a coroutine on the loop, from another thread."""

        async def awaited() -> T:
            return await coroutine

        return anyio.from_thread.run(awaited, token=self.token)


class Reply(Generic[T]):
    """One answer that is awaited on the loop; it is given on the loop, too (`LoopRef.post` brings it there)."""

    __slots__ = ("_error", "_event", "_value")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def give(self, value: T, /) -> None:
        """Answer with a value."""
        self._value = value
        self._event.set()

    def fail(self, error: BaseException, /) -> None:
        """Answer with an error, which `wait` raises."""
        self._error = error
        self._event.set()

    async def wait(self) -> T:
        """Wait for the answer."""
        await self._event.wait()
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value


def spawn_thread(name: str, call: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> threading.Thread:
    """Start a daemon thread: the seam that a simulation replaces. A daemon, so that no handler can hold up the exit."""
    thread = threading.Thread(target=call, args=args, kwargs=kwargs, name=f"taskrunner {name}", daemon=True)
    thread.start()
    return thread


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

    spawn_thread(name, body)
    return await reply.wait()


class Bridge:
    """Awaits from plain code: `ctx.sync(ctx.step("double", double, 4))`. It blocks the calling thread."""

    def __init__(self, loop: LoopRef) -> None:
        self._loop = loop

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run the coroutine on the event loop and return its result, or raise its error."""
        return self._loop.run(coroutine)

    def iterate(self, items: AsyncIterator[T], /) -> Iterator[T]:
        """Iterate over an asynchronous iterator from plain code."""

        async def advance() -> Any:  # noqa: ANN401 - an item, or the mark of the end
            return await anext(items, _END)

        while (item := self(advance())) is not _END:
            yield item


def current_caller() -> object:
    """The async task that is running, or the thread where there is none: who makes a call, told apart by identity."""
    try:
        task: object = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None and (trio := sys.modules.get("trio")) is not None:
        try:
            task = trio.lowlevel.current_task()
        except RuntimeError:
            task = None
    return task or threading.current_thread()
