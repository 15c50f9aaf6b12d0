"""`taskrunner show`: one task with all that is known of it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

import anyio
import click
import msgspec

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.reading import (
    as_json,
    decoded,
    document_of,
    open_to_read,
    percent,
    readable,
    settings_of,
    status_of,
    time_of,
)
from taskrunner.cli.reasons import MOST_BEFORE, Scene, why
from taskrunner.cli.supervisors import Supervisor, find_supervisors
from taskrunner.cli.veil import Veil
from taskrunner.core.clock import Clock
from taskrunner.core.errors import StoreError
from taskrunner.core.model import JSON, Attempt, HandRetry, Step, Task
from taskrunner.storage.listing import Filter, Listed
from taskrunner.storage.store import Store

T = TypeVar("T", Attempt, HandRetry, Step)

_SHOWN: Final = 200
"""Characters of a step's value that are shown; --json has it whole."""

_CHILDREN: Final = 100
_OWNERS: Final = 1_000


@dataclass(slots=True)
class Found:
    """One task, and what stands around it in the store."""

    listed: Listed
    supervisors: dict[str, Supervisor]
    places: dict[str, str]
    """By supervisor, also an ended one: where it is, or was."""
    raw: dict[str, str] = field(default_factory=dict)
    """Of a row that cannot be read: the beginning of each value."""
    attempts: list[Attempt] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    retries: list[HandRetry] = field(default_factory=list)
    children: list[Listed] = field(default_factory=list)
    why: str = ""
    troubles: list[str] = field(default_factory=list)
    """What could not be read, a line each."""


@click.command("show")
@click.argument("task_id", metavar="ID")
@json_option
@door_options
@click.pass_obj
def show_command(door: Door, /, task_id: str, *, in_json: bool) -> None:
    """Show one task with its attempts, its steps and its children, and why it is as it is.

    Of a row that something else than taskrunner wrote, and that cannot be read, it shows what there is.
    """

    async def fetch() -> Found:
        async with open_to_read(settings_of(door)) as store:
            return await _find(store, task_id)

    found = anyio.run(fetch)
    if in_json:
        terminal.print_json(_document(found))
        return
    terminal.print_fields(_fields(found))
    terminal.print_section("attempts", _attempt_lines(found))
    terminal.print_section("steps", [_step_line(each) for each in found.steps])
    terminal.print_section("retried by hand", [_retry_line(each) for each in found.retries])
    terminal.print_section("children", [_child_line(each) for each in found.children])
    terminal.print_section("unreadable", found.troubles)


async def _find(store: Store, task_id: str) -> Found:
    listed = readable(await store.listing.one(task_id))
    supervisors = {each.row.id: each for each in await find_supervisors(store)}
    found = Found(listed, supervisors, await _places(store, supervisors))
    task = listed.task
    if task is None:
        found.raw = await store.listing.raw(task_id)
        found.troubles.append(listed.trouble)
    else:
        standing = await store.listing.standing(task_id, most=MOST_BEFORE)
        queues = await store.queues.all()
        scene = Scene(supervisors=supervisors, standing=standing, queues=queues, now=Clock().now())
        found.why = why(task, scene)
    history = task_id if task is None else task.history_id
    found.attempts = await _read(store.journal.attempts(task_id), "attempts", found.troubles)
    found.steps = await _read(store.journal.steps(history), "steps", found.troubles)
    found.retries = await _read(store.journal.retries(task_id), "retries", found.troubles)
    found.children = await store.listing.page(Filter(parent_task_id=task_id), limit=_CHILDREN)
    return _veiled(found, await Veil.of(store))


def _veiled(found: Found, all_of: Veil) -> Found:
    veil = all_of.over(found.listed, found.steps)
    found.listed, found.raw, found.why = veil.task(found.listed), veil.raw(found.raw), veil.text(found.why) or ""
    found.attempts = [veil.attempt(each) for each in found.attempts]
    found.steps = [veil.step(each) for each in found.steps]
    found.retries = [veil.retry(each) for each in found.retries]
    found.children = [all_of.task(readable(each)) for each in found.children]
    return found


async def _places(store: Store, living: dict[str, Supervisor]) -> dict[str, str]:
    """Where each supervisor is that the store still knows of. An odd row among the ended ones hides these."""
    places = {name: each.place for name, each in living.items()}
    try:
        return {row.id: f"process {row.pid} on {row.host}" for row in await store.owners.all(_OWNERS)} | places
    except (StoreError, ValueError, TypeError):
        return places


async def _read(reading: Awaitable[list[T]], what: str, troubles: list[str]) -> list[T]:
    """Rows that belong to a task; what is odd among them is told, and does not keep the rest from being shown."""
    try:
        rows = await reading
        for row in rows:
            msgspec.convert({each.name: getattr(row, each.name) for each in fields(row)}, type(row))
    except (StoreError, ValueError, TypeError, msgspec.MsgspecError) as error:
        troubles.append(f"its {what} are unreadable ({error})")
        return []
    return rows


def _document(found: Found) -> JSON:
    task = document_of(found.listed)
    if found.raw:
        task["raw"] = found.raw
    return {
        "task": task,
        "why": found.why,
        "attempts": [as_json(each) | {"place": found.places.get(each.owner)} for each in found.attempts],
        "steps": [as_json(step) | {"value": decoded(step.value)} for step in found.steps],
        "retries": [as_json(each) for each in found.retries],
        "children": [document_of(each) for each in found.children],
        "unreadable": found.troubles,
    }


def _fields(found: Found) -> Iterator[tuple[str, object]]:
    task = found.listed.task
    if task is None:
        yield from found.raw.items()
        return
    yield "id", task.id
    yield "type", task.type
    yield "status", status_of(task)
    if found.why:
        yield "why", found.why
    if task.error_message:
        yield "error", task.error_message
    yield "progress", f"{percent(task.progress)} {task.progress_message}".rstrip()
    yield "queue", f"{task.queue}, priority {task.priority}"
    yield "attempts", f"{task.attempt}, retries {task.retry_count} of {task.max_retries}, losses {task.losses}"
    yield from _of_whom(task, found.supervisors.get(task.lease_owner or ""))
    yield "created", time_of(task.created_at)
    yield "run at", time_of(task.run_at)
    for name, moment in (("started", task.started_at), ("completed", task.completed_at)):
        if moment is not None:
            yield name, time_of(moment)
    yield "input", terminal.compact(task.input)
    if task.output is not None or task.status == "completed":
        yield "output", terminal.compact(task.output)


def _of_whom(task: Task, owner: Supervisor | None) -> Iterator[tuple[str, object]]:
    runs_it = f"{owner.place}, {owner.state} (supervisor {owner.row.id})" if owner else task.lease_owner
    for name, value in (
        ("session", task.session_id),
        ("parent", task.parent_task_id),
        ("owner", runs_it),
        ("unique key", task.unique_key),
        ("idempotency key", task.idempotency_key),
    ):
        if value is not None:
            yield name, value


def _attempt_lines(found: Found) -> Iterator[str]:
    """A line for each attempt, the open one too, and below the last one that failed its traceback."""
    last = max((each.attempt for each in found.attempts if each.traceback), default=None)
    for each in found.attempts:
        yield _attempt_line(each, found.places.get(each.owner, ""))
        if each.attempt == last:
            yield from (f"     {line}" for line in (each.traceback or "").splitlines())
    task = found.listed.task
    if task is not None and task.status == "running":
        yield f"{task.attempt}  running  {time_of(task.started_at)}  {found.places.get(task.lease_owner or '', '')}"


def _attempt_line(attempt: Attempt, place: str) -> str:
    seconds = (attempt.ended_at - attempt.started_at).total_seconds()
    parts = (
        str(attempt.attempt),
        attempt.outcome,
        time_of(attempt.started_at),
        f"{seconds:.3f} s",
        place,
        attempt.error_message,
    )
    return "  ".join(part for part in parts if part)


def _step_line(step: Step) -> str:
    what = f"{step.error_type}: {step.error}" if step.value is None else step.value
    shown = what if len(what) <= _SHOWN else f"{what[:_SHOWN]}…"
    return f"{step.label}  attempt {step.attempt}  {shown}"


def _retry_line(retry: HandRetry) -> str:
    line = f"{retry.series}  {time_of(retry.retried_at)}  it was {retry.from_status}"
    return f"{line}: {retry.error_message}" if retry.error_message else line


def _child_line(child: Listed) -> str:
    if child.task is None:
        return f"{child.id}  unreadable  {child.trouble}"
    return f"{child.id}  {status_of(child.task)}  {child.task.type}"
