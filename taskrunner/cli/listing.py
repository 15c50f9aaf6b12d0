"""`taskrunner list`: the tasks of a store, one line each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.choosing import filter_of, filter_options
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.reading import document_of, open_to_read, percent, readable, settings_of, status_of, time_of
from taskrunner.cli.veil import Veil
from taskrunner.core.model import Queue
from taskrunner.core.states import STATUSES
from taskrunner.storage.listing import Filter, Listed, Place
from taskrunner.storage.store import Store

_SHOWN: Final = 200
"""Characters of a stored text that a table shows; `show` shows it whole."""

_PAGE: Final = 1_000
"""Tasks of one read: a long one would keep the write-ahead log from shrinking."""


@click.command("list")
@filter_options(STATUSES)
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N")
@click.option("--after", metavar="ID", help="The last id of the page before.")
@json_option
@door_options
@click.pass_obj
def list_command(
    door: Door,
    /,
    *,
    limit: int,
    after: str | None,
    in_json: bool,
    **filters: Any,  # noqa: ANN401 - each filter has its own type
) -> None:
    """List tasks, the newest first.

    On a terminal it is a table; elsewhere one line per task: id, status, type, queue, progress, time of birth (UTC),
    and what it says of itself, with tabs between. A row that something else than taskrunner wrote, and that cannot be
    read, is marked as unreadable.
    """
    chosen = filter_of(filters)

    async def fetch() -> tuple[list[Listed], Mapping[str, Queue]]:
        async with open_to_read(settings_of(door)) as store:
            place = None if after is None else await store.listing.place_of(after)
            found = [each async for each in pages(store, chosen, limit=limit, after=place)]
            return found, await store.queues.all()

    found, queues = anyio.run(fetch)
    if in_json:
        terminal.print_json([document_of(each) for each in found])
    else:
        print_tasks(found, queues)


def print_tasks(found: Iterable[Listed], queues: Mapping[str, Queue] = MappingProxyType({})) -> None:
    """Write a table of tasks; `queues` are those of which something was said."""
    header = ("ID", "STATUS", "TYPE", "QUEUE", "DONE", "CREATED", "SAYS")
    terminal.print_table(header, [_cells(each, queues) for each in found], spare=("QUEUE", "CREATED"))


async def pages(
    store: Store, chosen: Filter, *, limit: int | None = None, after: Place | None = None
) -> AsyncIterator[Listed]:
    """The tasks that a filter means, the newest first, marked where they cannot be read; `limit` None: all of them."""
    veil = await Veil.of(store)
    while limit is None or limit > 0:
        size = _PAGE if limit is None else min(limit, _PAGE)
        page = await store.listing.page(chosen, limit=size, after=after)
        for each in page:
            yield veil.task(readable(each))
        if len(page) < size:
            return
        limit, after = None if limit is None else limit - size, page[-1].place


def _cells(listed: Listed, queues: Mapping[str, Queue]) -> Sequence[object]:
    task = listed.task
    if task is None:
        return (listed.id[:_SHOWN], "unreadable", "", "", "", "", listed.trouble[:_SHOWN])
    says = task.error_message if task.status in {"failed", "cancelled"} else task.progress_message
    return (
        task.id,
        status_of(task, queues),
        task.type[:_SHOWN],
        task.queue[:_SHOWN],
        percent(task.progress),
        time_of(task.created_at),
        str(says or task.error_message or "")[:_SHOWN],
    )
