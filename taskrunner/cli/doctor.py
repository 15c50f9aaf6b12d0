"""`taskrunner doctor`: what is in a store, who works on it, and what is wrong with it."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.config import knob_lines, knobs_document
from taskrunner.cli.endings import DONE, FAILED, NO_STORE
from taskrunner.cli.reading import open_to_read, settings_of
from taskrunner.cli.supervisors import Supervisor, find_supervisors
from taskrunner.core.errors import StoreError
from taskrunner.core.model import JSON
from taskrunner.core.settings import Settings
from taskrunner.storage.health import Health, sqlite_version
from taskrunner.storage.listing import Filter
from taskrunner.storage.store import Store

ROWS_READ: Final = 1_000
"""Of so many tasks, the newest, it is seen whether they can be read."""

_WORKER: Final = "worker:"


@dataclass(slots=True)
class Findings:
    """What was found in a store."""

    path: Path
    size: int
    schema: int
    supervisors: list[Supervisor]
    running: dict[str, int]
    """By supervisor: how many tasks it runs."""
    tasks: dict[str, int]
    due: dict[str, int]
    waiting: dict[str, int]
    damage: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@click.command("doctor")
@json_option
@door_options
@click.pass_obj
def doctor_command(door: Door, /, *, in_json: bool) -> int:
    """Say what is in the store, who works on it, and what is wrong with it.

    It reads the whole file and changes nothing. The exit code is 1 when something is wrong, and 3 when the store
    cannot be opened.
    """
    settings = settings_of(door)

    async def look() -> Findings:
        async with open_to_read(settings) as store:
            return await _findings(store)

    found: Findings | None = None
    try:
        found = anyio.run(look)
        troubles = list(_troubles(found))
    except StoreError as error:
        troubles = [str(error)]
    if in_json:
        terminal.print_json(_document(settings, found, troubles))
    else:
        _print(settings, found)
    for trouble in troubles:
        terminal.complain(trouble)
    if found is None:
        return NO_STORE
    return FAILED if troubles else DONE


async def _findings(store: Store) -> Findings:
    health = Health(store.engine)
    found = Findings(
        path=store.path,
        size=store.path.stat().st_size,
        schema=await health.schema_version(),
        supervisors=await find_supervisors(store),
        running=await health.running(),
        tasks=await store.tasks.counts(),
        due=await health.due(),
        waiting=await health.waiting(),
    )
    try:
        found.damage = await health.troubles()
    except StoreError as error:
        found.damage = [str(error)]
    page = await store.listing.page(Filter(), limit=ROWS_READ)
    found.unreadable = [each.trouble for each in page if each.task is None]
    return found


def _troubles(found: Findings) -> Iterator[str]:
    for line in found.damage:
        yield f"{found.path} is damaged: {line}"
    for each in found.supervisors:
        if each.dead is not None and (left := found.running.get(each.row.id)):
            process = f"supervisor {each.row.id} ({each.place})"
            yield f"{process} is dead, for {each.dead}, and has left {_many(left, 'running task')} to the next one"
    if found.due and not any(each.dead is None for each in found.supervisors):
        due = sum(found.due.values())
        due_are = f"{_many(due, 'task')} {'is' if due == 1 else 'are'} due"
        yield f"{due_are} and no supervisor works: start one with `taskrunner run APP`"
    for what, count in found.waiting.items():
        if what.startswith(_WORKER):
            wait = "waits" if count == 1 else "wait"
            yield f"{_many(count, 'task')} {wait} for a supervisor that knows the type {what.removeprefix(_WORKER)!r}"
    yield from found.unreadable


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _print(settings: Settings, found: Findings | None) -> None:
    fields = list(_versions().items())
    if found is not None:
        fields += [("store", f"{found.path}, {found.size:,} bytes, schema {found.schema}")]
        fields += [(f"tasks {status}", f"{count:,}") for status, count in found.tasks.items()]
        fields += [(f"due in {queue}", f"{count:,}") for queue, count in found.due.items()]
        fields += [(f"waiting for {what}", f"{count:,}") for what, count in found.waiting.items()]
        fields += [("supervisor", each.line(found.running.get(each.row.id, 0))) for each in found.supervisors]
    terminal.print_fields(fields)
    terminal.print_section("settings", knob_lines(settings))


def _document(settings: Settings, found: Findings | None, troubles: list[str]) -> JSON:
    document: dict[str, JSON] = {
        **_versions(),
        "store": None,
        "settings": knobs_document(settings),
        "troubles": troubles,
    }
    if found is not None:
        document["store"] = {"path": str(found.path), "bytes": found.size, "schema": found.schema}
        document |= {"tasks": found.tasks, "due": found.due, "waiting": found.waiting}
        document["supervisors"] = [each.document(found.running.get(each.row.id, 0)) for each in found.supervisors]
    return document


def _versions() -> dict[str, str]:
    try:
        version = metadata.version("durable-taskrunner")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return {"taskrunner": version, "python": platform.python_version(), "sqlite": sqlite_version()}
