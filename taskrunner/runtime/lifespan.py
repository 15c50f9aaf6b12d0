"""What a process that works on tasks opens before its first claim, and closes after its last attempt has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar

from taskrunner.authoring.context import NO_RESOURCES
from taskrunner.core.errors import InvalidInput, TaskRunnerError, error_text
from taskrunner.core.places import shown

H = TypeVar("H")
Lifespan: TypeAlias = Callable[[H], AbstractAsyncContextManager[Any]]


def checked_lifespan(lifespan: Lifespan[H] | None) -> Lifespan[H] | None:
    """Refuse at the door what is no function.

    Raises:
        InvalidInput: it cannot be called.
    """
    if lifespan is not None and not callable(lifespan):
        message = f"lifespan={shown(lifespan)}: a function of the runner is wanted, made by @asynccontextmanager"
        raise InvalidInput(message, path="lifespan")
    return lifespan


@asynccontextmanager
async def entered(lifespan: Lifespan[H] | None, runner: H) -> AsyncIterator[Any]:
    """Enter the lifespan for as long as the block runs, and give its value: `ctx.resources` of this process's tasks.

    Every process that runs bodies does so once: a supervisor without children, or else each child.

    Raises:
        TaskRunnerError: it failed, in one sentence; its own error is the cause. What the block raises passes through.
    """
    if lifespan is None:
        yield NO_RESOURCES
        return
    ours: BaseException | None = None
    when = "before the first claim"
    try:
        async with lifespan(runner) as resources:
            when = "after the last attempt"
            try:
                yield resources
            except BaseException as error:
                ours = error
                raise
    except Exception as error:
        if error is ours:
            raise
        message = f"the lifespan failed {when}: {error_text(error)}"
        raise TaskRunnerError(message) from error
