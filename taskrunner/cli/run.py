"""`taskrunner run`: a supervisor in this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import click

from taskrunner import observability
from taskrunner.app import TaskRunner
from taskrunner.cli.app_path import find_runner
from taskrunner.cli.common import Door, door_options
from taskrunner.cli.endings import DONE
from taskrunner.cli.knobs import given_knobs, knob_options
from taskrunner.cli.notify import reported


@click.command("run")
@click.argument("app")
@click.option("--until-idle", is_flag=True, help="End when nothing is running and nothing is due.")
@knob_options
@door_options
@click.pass_obj
def run_command(door: Door, /, app: str, *, until_idle: bool, **knobs: Any) -> None:  # noqa: ANN401 - each knob has its own type
    """Run a supervisor for APP, which is module:runner, or module:factory.

    SIGTERM or Ctrl-C takes no new tasks and lets the running ones end, for as long as --grace; a second one releases
    them at once. Nothing is lost either way. Durations are seconds, or such as 90s, 15m, 2h.
    """
    runner = find_runner(app)
    runner.found_at(app, setup="taskrunner.observability:configure")
    observability.configure()
    observability.log_events(runner)
    with runner.override(**door.flags(**given_knobs(knobs))):
        anyio.run(partial(_supervise, runner, until_idle=until_idle))


async def _supervise(runner: TaskRunner, *, until_idle: bool) -> None:
    """Run the supervisor, and end with it: a body that ignores every cancellation would keep the process for ever."""
    leaked: list[object] = []
    runner.on("task.leaked", leaked.append)
    async with reported(runner, os.environ):
        await runner.run(until_idle=until_idle)
    if leaked:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(DONE)  # the store is closed; what is left running was fenced and reported
