"""`taskrunner run`: a supervisor in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import click

from taskrunner import observability
from taskrunner.app import TaskRunner
from taskrunner.cli.app_path import find_runner
from taskrunner.cli.common import Door, door_options
from taskrunner.cli.endings import DONE
from taskrunner.cli.notify import reported
from taskrunner.core.settings import KNOBS

_WHOLE_NUMBERS: Final = frozenset({"concurrency", "max_losses", "max_retries"})
_OTHERWISE: Final = frozenset({"db", "queues", "allow_unsafe_mount"})
"""Knobs whose flag has a form of its own."""


def knob_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for every setting of a supervisor."""
    for knob in reversed(KNOBS):
        if knob.name not in _OTHERWISE:
            kind = int if knob.name in _WHOLE_NUMBERS else str
            help_text = f"{knob.doc}  [default: {knob.default}]"
            command = click.option(knob.flag, knob.name, type=kind, metavar="VALUE", help=help_text)(command)
    return command


@click.command("run")
@click.argument("app")
@click.option("--until-idle", is_flag=True, help="End when nothing is running and nothing is due.")
@click.option("--queue", "queue", multiple=True, metavar="NAME", help="Take tasks from this queue; may be repeated.")
@click.option("--queues", metavar="A,B", help="Take tasks from these queues, with commas between.  [default: all]")
@click.option("--allow-unsafe-mount", is_flag=True, help="Use a network or FUSE mount all the same.")
@knob_options
@door_options
@click.pass_obj
def run_command(
    door: Door,
    /,
    app: str,
    *,
    until_idle: bool,
    queue: tuple[str, ...],
    queues: str | None,
    allow_unsafe_mount: bool,
    **knobs: object,
) -> None:
    """Run a supervisor for APP, which is module:runner, or module:factory.

    SIGTERM or Ctrl-C takes no new tasks and lets the running ones end, for as long as --grace; a second one releases
    them at once. Nothing is lost either way. Durations are seconds, or such as 90s, 15m, 2h.
    """
    runner = find_runner(app)
    observability.configure()
    observability.log_events(runner)
    given = {name: value for name, value in knobs.items() if value is not None}
    if allow_unsafe_mount:
        given["allow_unsafe_mount"] = True
    named = [*queue, *(() if queues is None else (name.strip() for name in queues.split(",")))]
    with runner.override(db=door.db, **given):
        anyio.run(partial(_supervise, runner, queues=named or None, until_idle=until_idle))


async def _supervise(runner: TaskRunner, *, queues: list[str] | None, until_idle: bool) -> None:
    """Run the supervisor, and end with it: a body that ignores every cancellation would keep the process for ever."""
    leaked: list[object] = []
    runner.on("task.leaked", leaked.append)
    async with reported(runner, os.environ):
        await runner.run(queues=queues, until_idle=until_idle)
    if leaked:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(DONE)  # the store is closed; what is left running was fenced and reported
