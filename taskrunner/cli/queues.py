"""`taskrunner pause` and `taskrunner resume`: queues from which nothing is taken for a while."""

from __future__ import annotations

import anyio
import click

from taskrunner import TaskRunner
from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options
from taskrunner.cli.reading import require_store, settings_of


@click.command("pause")
@click.argument("queue")
@door_options
@click.pass_obj
def pause_command(door: Door, /, queue: str) -> None:
    """Take no more tasks from QUEUE, in any supervisor, until it is resumed.

    Tasks that run go on, and new ones may be enqueued: they wait.
    """

    async def pause() -> bool:
        require_store(settings_of(door))
        async with TaskRunner(door.db) as runner:
            is_known = await runner.store.queues.is_known(queue)
            await runner.pause(queue)
            return is_known

    is_known = anyio.run(pause)
    terminal.say(terminal.harmless(f"{queue}: paused"))
    if not is_known:
        terminal.complain(f"no task and no task type has the queue {queue!r} so far; it is paused all the same")


@click.command("resume")
@click.argument("queue")
@door_options
@click.pass_obj
def resume_command(door: Door, /, queue: str) -> None:
    """Take tasks from QUEUE again; harmless when it was not paused."""

    async def resume() -> None:
        require_store(settings_of(door))
        async with TaskRunner(door.db) as runner:
            await runner.resume(queue)

    anyio.run(resume)
    terminal.say(terminal.harmless(f"{queue}: resumed"))
