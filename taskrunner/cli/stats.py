"""`taskrunner stats`: how much there is of what, at a cost that does not grow with the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.reading import open_to_read, settings_of
from taskrunner.cli.supervisors import Supervisor, find_supervisors
from taskrunner.core.model import JSON
from taskrunner.core.states import STATUSES
from taskrunner.storage.health import Health
from taskrunner.storage.stats import NO_BOUND, Bounds, Numbers


@click.command("stats")
@click.option("--exact", is_flag=True, help="Count all there is, however long it takes.")
@json_option
@door_options
@click.pass_obj
def stats_command(door: Door, /, *, exact: bool, in_json: bool) -> None:
    """Count tasks by status, queue and type, and say who works on them.

    It looks at a bounded part of a large store, so it may be called every second: of each status a million tasks are
    counted, and the types of the newest 10,000. A + behind a number says that there may be more.
    """
    bounds = Bounds(tasks=NO_BOUND, types=NO_BOUND) if exact else Bounds()

    async def look() -> tuple[Numbers, list[tuple[Supervisor, int]]]:
        async with open_to_read(settings_of(door)) as store:
            running = await Health(store.engine).running()
            supervisors = [(each, running.get(each.row.id, 0)) for each in await find_supervisors(store)]
            return await store.stats.count(bounds), supervisors

    numbers, supervisors = anyio.run(look)
    if in_json:
        terminal.print_json(_document(numbers, bounds, supervisors, exact=exact))
        return
    terminal.print_fields(_fields(numbers, bounds))
    queues = list(dict.fromkeys([*numbers.due, *numbers.running]))
    terminal.print_section("queues", [_queue_line(name, numbers, bounds) for name in queues])
    terminal.print_section("types", [_type_line(name, by, bounds) for name, by in numbers.types.items()])
    terminal.print_section("supervisors", [each.line(running) for each, running in supervisors])


def _document(
    numbers: Numbers, bounds: Bounds, supervisors: list[tuple[Supervisor, int]], *, exact: bool
) -> dict[str, JSON]:
    oldest = numbers.oldest
    return {
        "tasks": {status: numbers.statuses.get(status, 0) for status in (*STATUSES, *numbers.statuses)},
        "types": numbers.types,
        "due": numbers.due,
        "running": numbers.running,
        "delayed": numbers.delayed,
        "waiting": numbers.waiting,
        "oldest_pending": oldest and {"id": oldest.id, "type": oldest.type, "created_at": oldest.created_at},
        "supervisors": [each.document(running) for each, running in supervisors],
        "bounds": None if exact else {"tasks": bounds.tasks, "types": bounds.types},
    }


def _fields(numbers: Numbers, bounds: Bounds) -> Iterator[tuple[str, str]]:
    for status in dict.fromkeys((*STATUSES, *numbers.statuses)):
        yield status, _bounded(numbers.statuses.get(status, 0), bounds.tasks)
    yield "not due yet", _bounded(numbers.delayed, bounds.tasks)
    for what, count in numbers.waiting.items():
        yield f"waiting for {terminal.harmless(what)}", _bounded(count, bounds.tasks)
    if numbers.oldest is not None:
        yield "oldest pending", f"{numbers.oldest.id}  {numbers.oldest.type}  since {numbers.oldest.created_at}"


def _queue_line(name: str, numbers: Numbers, bounds: Bounds) -> str:
    return f"{name}  due {_bounded(numbers.due.get(name, 0), bounds.tasks)}, running {numbers.running.get(name, 0):,}"


def _type_line(name: str, by_status: Mapping[str, int], bounds: Bounds) -> str:
    return f"{name}  " + ", ".join(f"{status} {_bounded(count, bounds.types)}" for status, count in by_status.items())


def _bounded(count: int, bound: int) -> str:
    return f"{count:,}+" if count >= bound else f"{count:,}"
