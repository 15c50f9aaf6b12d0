"""From plain code to the event loop: one typed bridge instead of a blocking twin of every class."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import anyio

from taskrunner.core.errors import NotOpen
from taskrunner.core.loop import LoopRef
from taskrunner.core.threads import threads

Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]

T = TypeVar("T")

_END = object()


class Bridge:
    """Awaits from plain code: `runner.sync(research.enqueue(topic="x"))`. It blocks the calling thread.

    `with runner.sync as wait:` keeps the store open for several calls; a single call opens it and closes it again. A
    task's own bridge, `ctx.sync`, is open as long as the task runs.
    """

    def __init__(
        self,
        loop: LoopRef | None = None,
        opening: Opening | None = None,
    ) -> None:
        self._loop = loop
        self._opening = opening
        self._thread: _LoopThread | None = None

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine on the event loop and return its result, or raise its error.

        Raises:
            NotOpen: called from the thread of an event loop, which it would block: write `await` there.
        """
        require_no_loop(coroutine)
        if self._loop is not None:
            return self._loop.run(coroutine)
        with ExitStack() as stack:
            try:
                opened = stack.enter_context(self)
            except BaseException:
                coroutine.close()  # it never began, and nobody will await it
                raise
            return opened(coroutine)

    def iterate(self, items: AsyncIterator[T], /) -> Iterator[T]:
        """Iterate over an asynchronous iterator from plain code."""

        async def advance() -> Any:  # noqa: ANN401 - an item, or the mark of the end
            return await anext(items, _END)

        while (item := self(advance())) is not _END:
            yield item

    def __enter__(self) -> Self:
        """Start an event loop in a thread and open the store there."""
        if self._opening is None or self._loop is not None:
            return self
        self._thread = _LoopThread(self._opening)
        self._loop = self._thread.loop
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        """Close the store and end the event loop."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._loop = None
            thread.end()


class _LoopThread:
    """An event loop in a thread of its own, with something open in it."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._started: Future[tuple[LoopRef, anyio.Event]] = Future()
        self._ended: Future[None] = Future()
        threads.get().start("loop", self._run)
        try:
            self.loop, self._stop = self._started.result()
        except BaseException:  # it could not be opened; or Ctrl-C: then what is being opened is closed again
            self._started.add_done_callback(_stop_again)
            self._ended.exception()
            raise

    def end(self) -> None:
        """Close what is open, and end the loop. In a forked child there is neither of them."""
        if not self.loop.forked:
            self.loop.post(self._stop.set)
            self._ended.result()

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the loop was started, or is ended
            if not self._started.done():
                self._started.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with self._opening():
            stop = anyio.Event()
            self._started.set_result((LoopRef(), stop))
            await stop.wait()


def _stop_again(started: Future[tuple[LoopRef, anyio.Event]]) -> None:
    if started.exception() is None:
        loop, stop = started.result()
        loop.post(stop.set)


def require_no_loop(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Refuse to await a coroutine from the thread of an event loop.

    Raises:
        NotOpen: this is one; the coroutine is closed.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    coroutine.close()
    message = "sync blocks its thread, and this one runs an event loop: write await here"
    raise NotOpen(message)
