"""Why a task is as it is, in one sentence: what it waits for, who runs it, why it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from taskrunner.cli.reading import time_of
from taskrunner.cli.supervisors import Supervisor
from taskrunner.core.model import Queue, Task

_WORKER: Final = "worker:"
_SUSPECT: Final = 4

MOST_BEFORE: Final = 1_000
"""So many tasks before it in its queue are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is known around a task."""

    supervisors: Mapping[str, Supervisor]
    """Those whose rows have not ended, by id."""
    standing: tuple[int, int] | None
    """Of a pending task: its `hold`, and how many of its queue come before it."""
    queues: Mapping[str, Queue]
    """Those of which something was said, by name."""
    now: datetime


def why(task: Task, scene: Scene) -> str:
    """Why it waits, who runs it, why it failed; empty for a completed one, of which there is nothing to explain."""
    if task.status == "pending":
        return _why_pending(task, scene)
    if task.status == "running":
        return _why_running(task, scene)
    if task.status == "failed":
        return _why_failed(task)
    if task.status == "cancelled":
        asked = task.cancel_requested_at
        return "it was cancelled" if asked is None else f"it was cancelled, as asked for at {time_of(asked)}"
    return ""


def _why_pending(task: Task, scene: Scene) -> str:
    if task.waiting_for is not None:
        if task.waiting_for.startswith(_WORKER):
            return f"it waits for a supervisor that knows the type {task.waiting_for.removeprefix(_WORKER)!r}"
        return f"it waits for {task.waiting_for}"
    if task.run_at > scene.now:
        again = f", to be run again after {task.error_message}" if task.error_message else ""
        return f"it is not due before {time_of(task.run_at)}{again}"
    if held := _why_held(scene.queues.get(task.queue)):
        return held
    if not any(each.dead is None for each in scene.supervisors.values()):
        return "no supervisor works: start one with `taskrunner run APP`"
    return _why_in_line(task, *(scene.standing or (0, 0)))


def _why_held(queue: Queue | None) -> str:
    """Why nothing is claimed from a queue now; empty when something may be."""
    if queue is not None and queue.paused_at is not None:
        return f"the queue {queue.name!r} is paused since {time_of(queue.paused_at)}"
    if queue is not None and queue.concurrency is not None and queue.running >= queue.concurrency:
        return f"the queue {queue.name!r} runs {queue.running:,} of at most {queue.concurrency:,}"
    return ""


def _why_in_line(task: Task, hold: int, before: int) -> str:
    if hold == _SUSPECT:
        return f"it has lost its process {task.losses} times in a row, and is to be tried again alone"
    if before:
        many = "1 task comes" if before == 1 else f"{before:,}{' or more' * (before == MOST_BEFORE)} tasks come"
        return f"{many} before it in the queue {task.queue!r}"
    return f"it is first in line: every slot is taken, or no supervisor takes from the queue {task.queue!r}"


def _why_running(task: Task, scene: Scene) -> str:
    owner = scene.supervisors.get(task.lease_owner or "")
    if owner is None:
        return "its supervisor has ended: the next one takes it over"
    if owner.dead is not None:
        return f"{owner.place} ran it and is dead, for {owner.dead}: the next supervisor takes it over"
    cancelling = "; it was asked to end" if task.cancel_requested_at is not None else ""
    return f"{owner.place} runs it since {time_of(task.started_at)}{cancelling}"


def _why_failed(task: Task) -> str:
    if task.error_type == "taskrunner.WorkerLost":
        return f"it lost its process {task.losses} times in a row (max_losses {task.max_losses})"
    if task.error_type == "taskrunner.NonDeterministicStep":
        return "its code no longer takes the steps that are recorded: mend it, then retry the task"
    if task.retry_count < task.max_retries:
        return "its error is not one that is retried"
    if task.max_retries == 0:
        return "it raised, and has no retries"
    return f"it raised, and its {task.max_retries} {'retry is' if task.max_retries == 1 else 'retries are'} used up"
