"""`taskrunner doctor`: what is in a store, who works on it, and what is wrong with it."""

from __future__ import annotations

import platform
import threading
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final, TypeVar

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.config import knob_lines, knobs_document
from taskrunner.cli.endings import DONE, FAILED, NO_STORE
from taskrunner.cli.reading import as_json, open_to_read, settings_of, time_of
from taskrunner.cli.supervisors import Supervisor, find_supervisors
from taskrunner.core.errors import StoreError
from taskrunner.core.model import JSON, Queue
from taskrunner.core.settings import Settings
from taskrunner.storage import guard, surroundings
from taskrunner.storage.health import Breach, Health, invariants, sqlite_version
from taskrunner.storage.listing import Filter
from taskrunner.storage.store import Store

T = TypeVar("T")

ROWS_READ: Final = 1_000
"""Of so many tasks, the newest, it is seen whether they can be read."""

SHOWN: Final = 20
"""Rows for which an invariant does not hold that are told of, of each; the document has them all."""

_WORKER: Final = "worker:"
_BETWEEN_LOOKS: Final = 0.05  # seconds


@dataclass(slots=True)
class Findings:
    """What was found in a store."""

    path: Path
    size: int
    wal: int = 0
    """Bytes of its WAL: what was written last."""
    schema: int | None = None
    supervisors: list[Supervisor] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    """By supervisor: how many tasks it runs."""
    tasks: dict[str, int] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    """Of which something was said."""
    suspects: int = 0
    breaches: list[Breach] | None = None
    """None: nobody has looked for them."""
    troubles: list[str] = field(default_factory=list)
    """What is wrong with the file and its rows, a sentence each."""


@click.command("doctor")
@click.option("--invariants", "deeply", is_flag=True, help="Look at every row, whether all that must hold does.")
@json_option
@door_options
@click.pass_obj
def doctor_command(door: Door, /, *, deeply: bool, in_json: bool) -> int:
    """Say what is in the store, who works on it, and what is wrong with it.

    It reads the whole file and changes nothing. The exit code is 1 when something is wrong, and 3 when the store
    cannot be opened.
    """
    settings = settings_of(door)
    found: Findings | None = None
    try:
        found = anyio.run(_look, settings, deeply)
        troubles = list(_troubles(found))
    except StoreError as error:
        troubles = [str(error), *_around(settings)]
    if in_json:
        terminal.print_json(_document(settings, found, troubles))
    else:
        _print(settings, found)
    for trouble in troubles:
        terminal.complain(trouble)
    if found is None:
        return NO_STORE
    return FAILED if troubles else DONE


async def _look(settings: Settings, deeply: bool) -> Findings:  # noqa: FBT001 - a flag of the command
    async with open_to_read(settings) as store:
        return await _findings(store, deeply=deeply)


def _around(settings: Settings) -> Iterator[str]:
    """What is wrong around a store that cannot be opened."""
    try:
        path = guard.resolve(settings.db)
    except StoreError:
        return
    yield from surroundings.troubles(path, opened=False)
    yield from surroundings.lock_troubles(path, _pause)


async def _findings(store: Store, *, deeply: bool) -> Findings:
    health = Health(store.engine)
    found = Findings(path=store.path, size=store.path.stat().st_size, wal=_size_of(store.path, "-wal"))
    told: dict[str, None] = {}

    async def ask(question: Awaitable[T], otherwise: T) -> T:
        """What cannot be read of a file that is damaged keeps nobody from the rest."""
        try:
            return await question
        except StoreError as error:
            told[str(error)] = None
            return otherwise

    wrong = await ask(health.structure(store.path), [])
    wrong += await ask(health.damage(store.path), [])
    wrong += surroundings.troubles(store.path, opened=True)
    wrong += surroundings.lock_troubles(store.path, _pause)
    found.schema = await ask(health.schema_version(), None)
    found.supervisors = await ask(find_supervisors(store), [])
    found.running = await ask(health.running(), {})
    found.tasks = await ask(store.tasks.counts(), {})
    found.due = await ask(health.due(), {})
    found.waiting = await ask(health.waiting(), {})
    found.queues = await ask(store.queues.all(), {})
    found.suspects = await ask(health.suspects(), 0)
    wrong += await ask(health.statistics(store.path), [])
    page = await ask(store.listing.page(Filter(), limit=ROWS_READ), [])
    wrong += [each.trouble for each in page if each.task is None]
    if deeply:
        found.breaches = await ask(health.invariants(), None)
    found.troubles = [*wrong, *told]
    return found


def _size_of(path: Path, suffix: str) -> int:
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except OSError:  # it goes with the last who has the store open
        return 0


def _pause() -> None:
    threading.Event().wait(_BETWEEN_LOOKS)


def _troubles(found: Findings) -> Iterator[str]:
    yield from found.troubles
    yield from _broken(found.breaches or [])
    for each in found.supervisors:
        if each.dead is not None and (left := found.running.get(each.row.id)):
            process = f"supervisor {each.row.id} ({each.place})"
            yield f"{process} is dead, for {each.dead}, and has left {_many(left, 'running task')} to the next one"
    paused = {name for name, queue in found.queues.items() if queue.paused_at is not None}
    due = sum(count for queue, count in found.due.items() if queue not in paused)
    if due and not any(each.dead is None for each in found.supervisors):
        due_are = f"{_many(due, 'task')} {'is' if due == 1 else 'are'} due"
        yield f"{due_are} and no supervisor works: start one with `taskrunner run APP`"
    for what, count in found.waiting.items():
        if what.startswith(_WORKER):
            wait = "waits" if count == 1 else "wait"
            yield f"{_many(count, 'task')} {wait} for a supervisor that knows the type {what.removeprefix(_WORKER)!r}"


def _broken(breaches: list[Breach]) -> Iterator[str]:
    for title in invariants().values():
        rows = [each for each in breaches if each.invariant == title]
        for each in rows[:SHOWN]:
            yield f"{title} does not hold for {each.id}: {each.says}"
        if len(rows) > SHOWN:
            yield f"{title} does not hold for {len(rows) - SHOWN:,} more; --json names them"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _print(settings: Settings, found: Findings | None) -> None:
    fields = list(_versions().items())
    if found is not None:
        wal = f" and {found.wal:,} in its WAL" if found.wal else ""
        fields += [("store", f"{found.path}, {found.size:,} bytes{wal}, schema {found.schema or '?'}")]
        fields += [(f"tasks {status}", f"{count:,}") for status, count in found.tasks.items()]
        fields += [(f"due in {queue}", f"{count:,}") for queue, count in found.due.items()]
        fields += [(f"waiting for {what}", f"{count:,}") for what, count in found.waiting.items()]
        fields += [("suspects", f"{found.suspects:,}, tried one at a time")] if found.suspects else []
        fields += [(f"queue {queue.name}", _queue_line(queue)) for queue in found.queues.values()]
        fields += [("supervisor", each.line(found.running.get(each.row.id, 0))) for each in found.supervisors]
        if found.breaches is not None:
            broken = len({each.invariant for each in found.breaches})
            fields += [("invariants", f"{len(invariants()) - broken} of {len(invariants())} hold")]
    terminal.print_fields(fields)
    terminal.print_section("settings", knob_lines(settings))


def _queue_line(queue: Queue) -> str:
    paused = "" if queue.paused_at is None else f"paused since {time_of(queue.paused_at)}, "
    limit = "" if queue.concurrency is None else f" of {queue.concurrency:,}"
    return f"{paused}{queue.running:,}{limit} running"


def _document(settings: Settings, found: Findings | None, troubles: list[str]) -> JSON:
    document: dict[str, JSON] = {
        **_versions(),
        "store": None,
        "settings": knobs_document(settings),
        "troubles": troubles,
    }
    if found is not None:
        sizes: dict[str, JSON] = {"bytes": found.size, "wal_bytes": found.wal}
        document["store"] = {"path": str(found.path), **sizes, "schema": found.schema}
        document |= {"tasks": found.tasks, "due": found.due, "waiting": found.waiting, "suspects": found.suspects}
        document["queues"] = [as_json(queue) for queue in found.queues.values()]
        document["supervisors"] = [each.document(found.running.get(each.row.id, 0)) for each in found.supervisors]
        if found.breaches is not None:
            document["invariants"] = {title: [] for title in invariants().values()}
            for each in found.breaches:
                document["invariants"][each.invariant].append({"id": each.id, "says": each.says})
    return document


def _versions() -> dict[str, str]:
    try:
        version = metadata.version("durable-taskrunner")
    except metadata.PackageNotFoundError:
        version = "not installed"
    return {"taskrunner": version, "python": platform.python_version(), "sqlite": sqlite_version()}
