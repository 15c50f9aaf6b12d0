"""`taskrunner tail`: a task as it goes on, line by line, until it ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import anyio
import click

from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options
from taskrunner.cli.endings import DONE, FAILED, WAIT_TIMED_OUT, Trouble
from taskrunner.cli.reading import decoded, open_to_read, percent, readable, settings_of, status_of, time_of
from taskrunner.cli.veil import Veil
from taskrunner.core.durations import seconds, stamp
from taskrunner.core.errors import StoreError
from taskrunner.core.model import JSON, Attempt, LogLine, Step, Task
from taskrunner.core.states import TERMINAL
from taskrunner.storage.listing import Listed
from taskrunner.storage.store import Store
from taskrunner.storage.tasks import task_topic

_LOOK_AGAIN: Final = 1.0
"""Seconds after which it looks although it heard of no commit."""

_PAUSE: Final = 0.1
"""Seconds between two looks at least: a busy store has thousands of commits a second."""

_SHOWN: Final = 200
"""Characters of a value that a line shows; --json has it whole."""

Tell = Callable[[dict[str, JSON]], None]


@click.command("tail")
@click.argument("task_id", metavar="ID")
@click.option("--timeout", metavar="D", help="Follow it no longer than this; the exit code is 124 then.")
@click.option("--json", "in_json", is_flag=True, help="Write JSON Lines: an object a line.")
@door_options
@click.pass_obj
def tail_command(door: Door, /, task_id: str, *, timeout: str | None, in_json: bool) -> int:
    """Follow one task: its attempts, steps, log, progress and status, first those that there are, then as they come.

    It ends when the task does, with 0 when that is completed and with 1 when it failed or was cancelled. Of what the
    task logs by ctx.log the store keeps 1,000 lines an attempt; what was logged just before a crash may be missing.
    """
    patience = None if timeout is None else seconds(timeout, "--timeout", zero=True)
    tell = terminal.print_json_line if in_json else _print

    async def follow() -> int:
        async with open_to_read(settings_of(door)) as store:
            code = await _Tail(store, task_id, tell).follow(patience)
        if code is not None:
            return code
        message = f"task {task_id} has not ended within {patience:g} s; it goes on"
        raise Trouble(message, WAIT_TIMED_OUT)

    return anyio.run(follow)


class _Tail:
    """What was told of a task so far."""

    def __init__(self, store: Store, task_id: str, tell: Tell) -> None:
        self._store = store
        self._id = task_id
        self._tell = tell
        self._attempt = 0
        self._place = 0
        self._line = 0
        self._progress: tuple[float, str] = (0.0, "")
        self._state: tuple[object, ...] = ()
        self._veil: Veil | None = None

    async def follow(self, patience: float | None) -> int | None:
        """Tell all there is, and then what comes, for so many seconds at most; None: it goes on."""
        with self._store.engine.listen((task_topic(self._id),)) as news:
            code = await self._look()
            with anyio.move_on_after(patience):
                while code is None:
                    await anyio.sleep(_PAUSE)
                    await news.wait(_LOOK_AGAIN)
                    code = await self._look()
        return code

    async def _look(self) -> int | None:
        """Tell what is new; the exit code, if there is nothing more to come."""
        found = readable(await self._store.listing.one(self._id))
        self._veil = (self._veil or await Veil.of(self._store)).over(found)
        listed = self._veil.task(found)
        task = listed.task
        if task is None:
            self._tell({"kind": "unreadable", "id": self._id, "trouble": listed.trouble})
            return DONE
        try:
            past = await self._past(task, found, self._veil)
        except (StoreError, ValueError, TypeError) as error:
            self._tell({"kind": "unreadable", "id": self._id, "trouble": f"its attempts, steps or log ({error})"})
            past = []
        for _at, line in sorted(past, key=lambda each: each[0]):
            self._tell(line)
        self._tell_progress(task)
        self._tell_status(task)
        terminal.flush()
        if task.status not in TERMINAL:
            return None
        return DONE if task.status == "completed" else FAILED

    async def _past(self, task: Task, found: Listed, veil: Veil) -> list[tuple[datetime, dict[str, JSON]]]:
        """What is new of its steps, its log and its ended attempts, as it may be seen."""
        steps, self._place = await self._store.journal.steps_after(task.history_id, self._place)
        lines, self._line = await self._store.journal.log_after(self._id, self._line)
        attempts = [each for each in await self._store.journal.attempts(self._id) if each.attempt > self._attempt]
        if attempts:
            self._attempt = attempts[-1].attempt
        self._veil = veil = veil.over(found, steps)
        return [
            *((each.created_at, _of_step(veil.step(each))) for each in steps),
            *((each.at, _of_line(veil.line(each))) for each in lines),
            *((each.ended_at, _of_attempt(veil.attempt(each))) for each in attempts),
        ]

    def _tell_progress(self, task: Task) -> None:
        progress = (task.progress, task.progress_message)
        if progress != self._progress:
            self._progress = progress
            at, fraction, message = stamp(task.updated_at), task.progress, task.progress_message
            self._tell({"kind": "progress", "at": at, "progress": fraction, "message": message})

    def _tell_status(self, task: Task) -> None:
        state = (task.status, task.waiting_for, task.attempt, task.cancel_requested_at, task.series)
        if state == self._state:
            return
        self._state = state
        line: dict[str, JSON] = {
            "kind": "status",
            "at": stamp(task.updated_at),
            "status": task.status,
            "says": status_of(task),
        }
        line |= {"attempt": task.attempt, "error": task.error_message, "run_at": stamp(task.run_at)}
        self._tell(line | {"output": task.output} if task.status == "completed" else line)


def _of_attempt(attempt: Attempt) -> dict[str, JSON]:
    return {
        "kind": "attempt",
        "at": stamp(attempt.ended_at),
        "attempt": attempt.attempt,
        "outcome": attempt.outcome,
        "started_at": stamp(attempt.started_at),
        "error": attempt.error_message,
    }


def _of_step(step: Step) -> dict[str, JSON]:
    error = None if step.error is None else f"{step.error_type}: {step.error}"
    return {
        "kind": "step",
        "at": stamp(step.created_at),
        "step": step.label,
        "attempt": step.attempt,
        "value": decoded(step.value),
        "error": error,
    }


def _of_line(line: LogLine) -> dict[str, JSON]:
    return {
        "kind": "log",
        "at": stamp(line.at),
        "attempt": line.attempt,
        "level": line.level,
        "event": line.event,
        "fields": decoded(line.fields),
    }


def _print(line: dict[str, JSON]) -> None:
    words = {
        "attempt": _attempt_words,
        "step": _step_words,
        "log": _log_words,
        "progress": _progress_words,
        "status": _status_words,
    }
    if line["kind"] == "unreadable":
        terminal.say(terminal.harmless(f"{line['id']}  unreadable  {line['trouble']}"))
        return
    at = time_of(datetime.fromisoformat(line["at"]))
    terminal.say(terminal.harmless(f"{at}  {line['kind']:<9}{words[line['kind']](line)}"))


def _attempt_words(line: dict[str, JSON]) -> str:
    return f"{line['attempt']} {line['outcome']}" + (f": {line['error']}" if line["error"] else "")


def _step_words(line: dict[str, JSON]) -> str:
    return f"{line['step']}  {_cut(line['error'] or terminal.compact(line['value']))}"


def _log_words(line: dict[str, JSON]) -> str:
    fields = line["fields"]
    pairs = fields.items() if isinstance(fields, dict) else [("fields", fields)]
    said = " ".join(f"{name}={terminal.compact(value)}" for name, value in pairs)
    return f"{line['level']}  {_cut(line['event'])}" + (f"  {_cut(said)}" if said else "")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _progress_words(line: dict[str, JSON]) -> str:
    return f"{percent(line['progress'])} {line['message']}"


def _status_words(line: dict[str, JSON]) -> str:
    if line["status"] == "completed":
        return f"completed  {terminal.compact(line['output'])}"
    return f"{line['says']}" + (f": {line['error']}" if line["error"] and line["status"] != "running" else "")
