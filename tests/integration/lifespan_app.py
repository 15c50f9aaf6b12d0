"""An app with a lifespan, for child processes to import."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from taskrunner import TaskContext, TaskRunner

LOG = "TASKRUNNER_TEST_LOG"
FAILS = "TASKRUNNER_TEST_FAILS"


@asynccontextmanager
async def lifespan(opened: TaskRunner) -> AsyncIterator[int]:
    """Note when it begins and ends, and in which process; it uses the store, too."""
    if FAILS in os.environ:
        message = "nobody answers"
        raise ConnectionError(message)
    with Path(os.environ[LOG]).open("a", encoding="utf-8") as file:
        print("enter", os.getpid(), len(await opened.tasks.list()), file=file, flush=True)
        yield os.getpid()
        print("leave", os.getpid(), file=file, flush=True)


runner = TaskRunner(lifespan=lifespan)


@runner.task
async def where(ctx: TaskContext) -> list[int]:
    """What the lifespan gave, and where this is."""
    return [ctx.resources, os.getpid()]
