"""`taskrunner run`: a supervisor in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

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
    """Run the supervisor, and end with it: a body that ignores every cancellation would keep the process for ever.

    So would one that blocks the event loop: once all is handed back after a second signal, nothing is waited for.
    """
    leaked: list[object] = []
    runner.on("task.leaked", leaked.append)
    runner.on("*", _leave_if_abandoned)  # heard after the log has been written
    async with reported(runner, os.environ):
        await runner.run(until_idle=until_idle)
    if leaked:
        _leave()


def _leave_if_abandoned(event: Mapping[str, Any]) -> None:
    if event["event"] == "supervisor.abandoned":
        _leave()


def _leave() -> NoReturn:
    """End without a word to what is left running: it was fenced and reported."""
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(DONE)
