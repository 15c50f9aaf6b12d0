"""`taskrunner config`: every setting with its value, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from taskrunner.cli import terminal
from taskrunner.cli.app_path import find_runner
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.knobs import given_knobs, knob_options
from taskrunner.cli.reading import settings_of
from taskrunner.core.model import JSON
from taskrunner.core.settings import KNOBS, Knob, Settings

_BYTES: Final = frozenset({"max_memory", "max_payload"})
"""Settings that are sizes."""

_SIZES: Final = ((3, "GiB"), (2, "MiB"), (1, "KiB"))


@click.command("config")
@click.argument("app", required=False)
@knob_options
@json_option
@door_options
@click.pass_obj
def config_command(door: Door, /, app: str | None, *, in_json: bool, **knobs: Any) -> None:  # noqa: ANN401 - each knob has its own type
    """Show every setting with its value and its origin: flag, override, code, env, pyproject or default.

    With APP, which is module:runner, it shows what `taskrunner run APP` would use with the same flags; without, what a
    command that knows no code uses. The store need not be there.
    """
    given = given_knobs(knobs)
    if app is None:
        settings = settings_of(door, **given)
    else:
        runner = find_runner(app)
        with runner.override(**door.flags(**given)):
            settings = runner.settings
    if in_json:
        terminal.print_json(knobs_document(settings))
        return
    header = ("SETTING", "VALUE", "ORIGIN")
    terminal.print_table(header, [(knob.name, _shown(knob, settings), settings.origin(knob.name)) for knob in KNOBS])


def knob_lines(settings: Settings) -> Iterator[str]:
    """A line for each setting: its name, its value with its unit, and its origin."""
    for knob in KNOBS:
        yield f"{knob.name:<20}{_shown(knob, settings)}  ({settings.origin(knob.name)})"


def knobs_document(settings: Settings) -> dict[str, JSON]:
    """Each setting with its bare value and its origin."""
    return {knob.name: {"value": getattr(settings, knob.name), "origin": settings.origin(knob.name)} for knob in KNOBS}


def _shown(knob: Knob, settings: Settings) -> str:
    """A setting's value as people want to see it: every duration is a float of seconds."""
    value = getattr(settings, knob.name)
    if value is None:
        return knob.none
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g} s"
    if isinstance(value, tuple):
        return ", ".join(value)
    return _size(value) if knob.name in _BYTES else str(value)


def _size(count: int) -> str:
    for power, unit in _SIZES:
        if count >= 1024**power and count % 1024**power == 0:
            return f"{count // 1024**power} {unit}"
    return f"{count:,} {'byte' if count == 1 else 'bytes'}"
