"""A flag for every setting, for the commands that take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from taskrunner.core.settings import KNOBS

_WHOLE_NUMBERS: Final = frozenset({"concurrency", "max_losses", "max_retries", "max_tasks_per_child", "processes"})
_OTHERWISE: Final = frozenset({"db", "queues", "allow_unsafe_mount"})
"""Knobs whose flag has a form of its own."""


def knob_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a flag for every setting of a supervisor, but for `--db`, which all commands have."""
    for knob in reversed(KNOBS):
        if knob.name not in _OTHERWISE:
            kind = int if knob.name in _WHOLE_NUMBERS else str
            help_text = f"{knob.doc}  [default: {knob.none if knob.default is None else knob.default}]"
            command = click.option(knob.flag, knob.name, type=kind, metavar="VALUE", help=help_text)(command)
    mount = click.option("--allow-unsafe-mount", is_flag=True, help="Use a network or FUSE mount all the same.")
    queues = click.option(
        "--queues", metavar="A,B", help="Take tasks from these queues, with commas between.  [default: all]"
    )
    queue = click.option(
        "--queue", "queue", multiple=True, metavar="NAME", help="Take tasks from this queue; may be repeated."
    )
    return queue(queues(mount(command)))


def given_knobs(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """What was given of the flags of `knob_options`, by the names of the settings."""
    several: str | None = knobs["queues"]
    named = [*knobs["queue"], *(() if several is None else (name.strip() for name in several.split(",")))]
    given = {name: value for name, value in knobs.items() if value is not None and name not in {"queue", "queues"}}
    if not given["allow_unsafe_mount"]:
        del given["allow_unsafe_mount"]
    return {**given, "queues": named} if named else given
