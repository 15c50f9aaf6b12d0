"""Which tasks a command is about: `--status`, `--type` and the other filters, the same wherever there are any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from taskrunner.cli.times import past_of
from taskrunner.storage.listing import Filter

F = TypeVar("F", bound=Callable[..., Any])


def filter_options(statuses: Sequence[str]) -> Callable[[F], F]:
    """Give a command the filters; `--status` takes one of these. What they were given is read by `filter_of`."""
    options = (
        click.option("--status", type=click.Choice(statuses), help="Only tasks of this status."),
        click.option("--type", metavar="TYPE", help="Only tasks of this type."),
        click.option("--queue", metavar="NAME", help="Only tasks of this queue."),
        click.option("--session", "session_id", metavar="ID", help="Only tasks of this session."),
        click.option("--parent", "parent_task_id", metavar="ID", help="Only children of this task."),
        click.option(
            "--since", metavar="TIME", help="Only tasks that were created then or later: 2h (ago), or a time."
        ),
        click.option("--until", metavar="TIME", help="Only tasks that were created before: 2h (ago), or a time."),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def filter_of(given: Mapping[str, Any]) -> Filter:
    """The filter that was given on the command line.

    Raises:
        InvalidInput: a time is none.
    """
    times = {name: past_of(given[name], f"--{name}") for name in ("since", "until") if given[name] is not None}
    return Filter(**{**given, **times})
