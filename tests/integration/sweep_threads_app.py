"""An app that starts a thread when it is imported: a fork of it would be half of it."""

from __future__ import annotations

import os

from taskrunner import TaskContext, TaskRunner
from tests.integration.sweep_app import add, with_thread

runner = TaskRunner()
with_thread()


@runner.task
async def short(ctx: TaskContext) -> int:
    """Take a step."""
    return await ctx.step("one", add, os.getpid() * 0, 1)
