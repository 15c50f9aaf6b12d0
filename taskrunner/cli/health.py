"""`taskrunner health`: one sentence and an exit code, for Docker's HEALTHCHECK, load balancers and scripts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.endings import DONE, FAILED
from taskrunner.cli.reading import open_to_read, settings_of, time_of
from taskrunner.cli.supervisors import find_supervisors
from taskrunner.core.clock import Clock
from taskrunner.core.durations import seconds, stamp
from taskrunner.core.model import JSON
from taskrunner.core.settings import Settings
from taskrunner.storage.health import Health


@dataclass(slots=True, kw_only=True)
class Condition:
    """How a store is worked on."""

    path: Path
    supervisors: int
    """Those that live, as far as can be told from here."""
    queue: str | None
    """Where a task has waited too long; None: nowhere."""
    since: datetime | None
    """Since when it has been due."""
    max_wait: float

    @property
    def trouble(self) -> str:
        """What is wrong, in one sentence; empty: nothing."""
        if not self.supervisors:
            return f"no supervisor works on {self.path}: start one with `taskrunner run APP`"
        if self.since is not None:
            late = f"a task has been due since {time_of(self.since)}, longer than {self.max_wait:g} s"
            return f"queue {self.queue!r}: {late}, and no supervisor has taken it"
        return ""

    @property
    def sentence(self) -> str:
        """How it is, in one sentence."""
        return self.trouble or f"healthy: supervisors on {self.path}: {self.supervisors}"


@click.command("health")
@click.option(
    "--max-wait",
    metavar="DURATION",
    default="1h",
    show_default=True,
    help="How long a task that is due may wait for its start; 0: for ever.",
)
@json_option
@door_options
@click.pass_obj
def health_command(door: Door, /, *, max_wait: str, in_json: bool) -> int:
    """Say whether supervisors work on the store and nothing waits too long.

    The exit code is 0 when at least one supervisor lives and no task that is due, and first in the line of its queue
    and priority, has waited for longer than --max-wait; else it is 1, and 3 when the store cannot be opened. It takes
    a few index seeks and changes nothing. Durations are seconds, or such as 90s, 15m, 2h.
    """
    settings = settings_of(door)
    condition = anyio.run(_look, settings, seconds(max_wait, "--max-wait", zero=True))
    if in_json:
        terminal.print_json(_document(condition))
    elif not condition.trouble:
        terminal.say(terminal.harmless(condition.sentence))
    if condition.trouble:
        terminal.complain(condition.trouble)
    return FAILED if condition.trouble else DONE


async def _look(settings: Settings, max_wait: float) -> Condition:
    async with open_to_read(settings) as store:
        living = [each for each in await find_supervisors(store) if each.dead is None]
        now = Clock().now()
        due = await Health(store.engine).due_since(now) if max_wait else {}
        late = {queue: since for queue, since in due.items() if since < now - timedelta(seconds=max_wait)}
        queue = min(late, key=late.__getitem__, default=None)
        return Condition(
            path=store.path,
            supervisors=len(living),
            queue=queue,
            since=None if queue is None else late[queue],
            max_wait=max_wait,
        )


def _document(found: Condition) -> JSON:
    return {
        "healthy": not found.trouble,
        "says": found.sentence,
        "supervisors": found.supervisors,
        "late_queue": found.queue,
        "due_since": None if found.since is None else stamp(found.since),
        "max_wait": found.max_wait,
    }
