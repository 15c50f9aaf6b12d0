"""`taskrunner stats`: how much there is of what, at a cost that does not grow with the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.reading import open_to_read, settings_of, time_of
from taskrunner.cli.supervisors import Supervisor, find_supervisors
from taskrunner.core.durations import moment, stamp
from taskrunner.core.model import JSON, Queue
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

    async def look() -> tuple[Numbers, Mapping[str, Queue], list[tuple[Supervisor, int]]]:
        async with open_to_read(settings_of(door)) as store:
            running = await Health(store.engine).running()
            supervisors = [(each, running.get(each.row.id, 0)) for each in await find_supervisors(store)]
            return await store.stats.count(bounds), await store.queues.all(), supervisors

    numbers, said, supervisors = anyio.run(look)
    if in_json:
        document = _document(numbers, supervisors) | {"queues": _queues(numbers, said)}
        document["bounds"] = None if exact else {"tasks": bounds.tasks, "types": bounds.types}
        terminal.print_json(document)
        return
    terminal.print_fields(_fields(numbers, bounds))
    terminal.print_section("queues", [_queue_line(each, bounds) for each in _queues(numbers, said)])
    terminal.print_section("types", [_type_line(name, by, bounds) for name, by in numbers.types.items()])
    terminal.print_section("supervisors", [each.line(running) for each, running in supervisors])


def _document(numbers: Numbers, supervisors: list[tuple[Supervisor, int]]) -> dict[str, JSON]:
    oldest = numbers.oldest
    return {
        "tasks": {status: numbers.statuses.get(status, 0) for status in (*STATUSES, *numbers.statuses)},
        "types": numbers.types,
        "delayed": numbers.delayed,
        "waiting": numbers.waiting,
        "oldest_pending": oldest and {"id": oldest.id, "type": oldest.type, "created_at": oldest.created_at},
        "supervisors": [each.document(running) for each, running in supervisors],
    }


def _fields(numbers: Numbers, bounds: Bounds) -> Iterator[tuple[str, str]]:
    for status in dict.fromkeys((*STATUSES, *numbers.statuses)):
        yield status, _bounded(numbers.statuses.get(status, 0), bounds.tasks)
    yield "not due yet", _bounded(numbers.delayed, bounds.tasks)
    for what, count in numbers.waiting.items():
        yield f"waiting for {terminal.harmless(what)}", _bounded(count, bounds.tasks)
    if numbers.oldest is not None:
        yield "oldest pending", f"{numbers.oldest.id}  {numbers.oldest.type}  since {numbers.oldest.created_at}"


def _queues(numbers: Numbers, said: Mapping[str, Queue]) -> list[dict[str, JSON]]:
    """Each queue that has tasks which are due or run, or of which something was said, as a JSON object."""
    found: list[dict[str, JSON]] = []
    for name in dict.fromkeys([*numbers.due, *numbers.running, *said]):
        queue = said.get(name)
        paused_at = queue and queue.paused_at
        found.append(
            {
                "name": name,
                "due": numbers.due.get(name, 0),
                "running": numbers.running.get(name, 0),
                "limit": queue and queue.concurrency,
                "paused_at": paused_at and stamp(paused_at),
            }
        )
    return found


def _queue_line(queue: Mapping[str, JSON], bounds: Bounds) -> str:
    line = f"{queue['name']}  due {_bounded(queue['due'], bounds.tasks)}, running {queue['running']:,}"
    if queue["limit"] is not None:
        line += f" of at most {queue['limit']:,}"
    return line if queue["paused_at"] is None else f"{line}, paused since {time_of(moment(queue['paused_at']))}"


def _type_line(name: str, by_status: Mapping[str, int], bounds: Bounds) -> str:
    return f"{name}  " + ", ".join(f"{status} {_bounded(count, bounds.types)}" for status, count in by_status.items())


def _bounded(count: int, bound: int) -> str:
    return f"{count:,}+" if count >= bound else f"{count:,}"
