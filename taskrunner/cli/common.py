"""What all commands share: `--db`, `--debug`, `--json`, and how a store is opened for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

NAME: Final = "taskrunner"

COMPLETE: Final = "_TASKRUNNER_COMPLETE"
"""The variable by which a shell asks how a line may go on. (It has no TASKRUNNER_ in front: it is no setting.)"""

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class Door:
    """What was given to the command as a whole, before or after its name."""

    db: str | None = None
    debug: bool = False

    def flags(self, **given: Any) -> dict[str, Any]:  # noqa: ANN401 - each setting has its own type
        """`--db`, if it was given, and these settings, as `runner.override` takes what came as flags."""
        from taskrunner.core.settings import Flag

        named = given if self.db is None else {"db": self.db, **given}
        return {name: Flag(value) for name, value in named.items()}


def _set_db(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Door).db = value


def _set_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        ctx.ensure_object(Door).debug = True


def door_options(command: F) -> F:
    """Give a command `--db` and `--debug`. They stand in its `Door`, wherever on the line they were written."""
    debug = click.option(
        "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_set_debug, help="Show tracebacks."
    )
    db = click.option(
        "--db", metavar="PATH", expose_value=False, callback=_set_db, help="The store [env: TASKRUNNER_DB]."
    )
    return db(debug(command))


json_option = click.option("--json", "in_json", is_flag=True, help="Write one JSON document.")
