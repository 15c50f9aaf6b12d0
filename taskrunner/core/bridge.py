"""From plain code to the event loop: one typed bridge instead of a blocking twin of every class."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio.from_thread

from taskrunner.core.errors import NotOpen
from taskrunner.core.loop import LoopRef

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
        opening: Callable[[], AbstractAsyncContextManager[object]] | None = None,
    ) -> None:
        self._loop = loop
        self._opening = opening
        self._stack: ExitStack | None = None

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
        with ExitStack() as stack:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal(name="taskrunner loop"))
            stack.enter_context(portal.wrap_async_context_manager(self._opening()))
            self._loop = portal.call(LoopRef)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None, /
    ) -> None:
        """Close the store and end the event loop."""
        stack, self._stack = self._stack, None
        if stack is not None:
            self._loop = None
            stack.__exit__(kind, error, tb)


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
