"""`taskrunner list` and `taskrunner show`: the tasks of a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.endings import Trouble
from taskrunner.cli.reading import (
    UNREADABLE,
    Listed,
    as_json,
    list_tasks,
    open_to_read,
    percent,
    reason_of,
    settings_of,
    status_of,
    time_of,
)
from taskrunner.cli.supervisors import Supervisor, find_supervisors
from taskrunner.core.model import JSON, Attempt, Step, Task, TaskInfo
from taskrunner.core.states import STATUSES
from taskrunner.storage.rows import task_of
from taskrunner.storage.store import Store

_SHOWN: Final = 200
"""Characters of a stored text that a table shows; `show` shows it whole."""


@click.command("list")
@click.option("--status", type=click.Choice(STATUSES))
@click.option("--type", "type_name", metavar="TYPE")
@click.option("--queue", metavar="NAME")
@click.option("--session", "session_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N")
@click.option("--after", metavar="ID", help="The last id of the page before.")
@json_option
@door_options
@click.pass_obj
def list_command(
    door: Door,
    /,
    *,
    type_name: str | None,
    in_json: bool,
    **filters: Any,  # noqa: ANN401 - each filter has its own type
) -> None:
    """List tasks, the newest first.

    On a terminal it is a table; elsewhere one line per task: id, status, type, queue, progress, time of birth, and
    what it says of itself, with tabs between.
    """

    async def fetch() -> list[Listed]:
        async with open_to_read(settings_of(door)) as store:
            return await list_tasks(store, type=type_name, **filters)

    found = anyio.run(fetch)
    if in_json:
        terminal.print_json([_document(each) for each in found])
    else:
        header = ("ID", "STATUS", "TYPE", "QUEUE", "DONE", "CREATED", "SAYS")
        terminal.print_table(header, [_cells(each) for each in found], spare=("QUEUE", "CREATED"))


@click.command("show")
@click.argument("task_id", metavar="ID")
@json_option
@door_options
@click.pass_obj
def show_command(door: Door, /, task_id: str, *, in_json: bool) -> None:
    """Show one task with its attempts, its steps and its children, and why it is as it is."""

    async def fetch() -> tuple[TaskInfo, list[Supervisor]]:
        async with open_to_read(settings_of(door)) as store:
            return await _info(store, task_id), await find_supervisors(store)

    info, supervisors = anyio.run(fetch)
    if in_json:
        steps = [as_json(step) | {"value": _decoded(step.value)} for step in info.steps]
        attempts, children = ([as_json(each) for each in rows] for rows in (info.attempts, info.children))
        terminal.print_json({"task": as_json(info.task), "attempts": attempts, "steps": steps, "children": children})
        return
    owner = next((each for each in supervisors if each.row.id == info.task.lease_owner), None)
    terminal.print_fields(_fields(info.task, owner))
    _print_section("attempts", list(_attempt_lines(info.attempts)))
    _print_section("steps", [_step_line(each) for each in info.steps])
    _print_section("children", [f"{child.id}  {status_of(child)}  {child.type}" for child in info.children])


async def _info(store: Store, task_id: str) -> TaskInfo:
    await store.tasks.status(task_id)  # raises TaskNotFound, which is no trouble with the row
    try:
        task = await store.tasks.get(task_id)
        attempts = await store.journal.attempts(task_id)
        steps = await store.journal.steps(task.history_id)
        rows = await store.tasks.rows(parent_task_id=task_id)
        return TaskInfo(task=task, attempts=attempts, steps=steps, children=[task_of(row) for row in rows])
    except UNREADABLE as error:
        raise Trouble(reason_of(task_id, error)) from error


def _document(listed: Listed) -> dict[str, JSON]:
    if listed.task is None:
        return {"id": listed.id, "status": listed.status, "unreadable": listed.trouble}
    return as_json(listed.task)


def _cells(listed: Listed) -> Sequence[object]:
    task = listed.task
    if task is None:
        return (listed.id, "unreadable", "", "", "", "", listed.trouble[:_SHOWN])
    says = task.error_message if task.status in {"failed", "cancelled"} else task.progress_message
    return (
        task.id,
        status_of(task),
        task.type,
        task.queue,
        percent(task.progress),
        time_of(task.created_at),
        str(says or task.error_message or "")[:_SHOWN],
    )


def _fields(task: Task, owner: Supervisor | None) -> Iterator[tuple[str, object]]:
    yield "id", task.id
    yield "type", task.type
    yield "status", status_of(task)
    if task.error_message:
        yield "error", task.error_message
    if task.cancel_requested_at is not None:
        yield "cancel", f"asked for at {time_of(task.cancel_requested_at)}"
    yield "progress", f"{percent(task.progress)} {task.progress_message}".rstrip()
    yield "queue", f"{task.queue}, priority {task.priority}"
    yield "attempts", f"{task.attempt}, retries {task.retry_count} of {task.max_retries}, losses {task.losses}"
    runs_it = f"{owner.place}, {owner.state} (supervisor {owner.row.id})" if owner else task.lease_owner
    for name, value in (("session", task.session_id), ("parent", task.parent_task_id), ("owner", runs_it)):
        if value is not None:
            yield name, value
    for name, key in (("unique key", task.unique_key), ("idempotency key", task.idempotency_key)):
        if key is not None:
            yield name, key
    yield "created", time_of(task.created_at)
    yield "run at", time_of(task.run_at)
    for name, moment in (("started", task.started_at), ("completed", task.completed_at)):
        if moment is not None:
            yield name, time_of(moment)
    yield "input", _compact(task.input)
    if task.output is not None or task.status == "completed":
        yield "output", _compact(task.output)


def _print_section(title: str, lines: Sequence[str]) -> None:
    if lines:
        terminal.say(f"\n{title}")
    for line in lines:
        terminal.say(f"  {terminal.harmless(line)}")


def _attempt_lines(attempts: Sequence[Attempt]) -> Iterator[str]:
    """A line for each attempt, and below the last one that failed its traceback."""
    last = max((each.attempt for each in attempts if each.traceback), default=None)
    for each in attempts:
        yield _attempt_line(each)
        if each.attempt == last:
            yield from (f"     {line}" for line in (each.traceback or "").splitlines())


def _attempt_line(attempt: Attempt) -> str:
    seconds = (attempt.ended_at - attempt.started_at).total_seconds()
    line = f"{attempt.attempt}  {attempt.outcome}  {time_of(attempt.started_at)}  {seconds:.3f} s"
    return f"{line}  {attempt.error_message}" if attempt.error_message else line


def _step_line(step: Step) -> str:
    what = f"{step.error_type}: {step.error}" if step.value is None else step.value
    shown = what if len(what) <= _SHOWN else f"{what[:_SHOWN]}…"
    return f"{step.label}  attempt {step.attempt}  {shown}"


def _compact(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False)


def _decoded(text: str | None) -> JSON:
    """A step's value; its own text where something else than taskrunner wrote what is no JSON."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text
