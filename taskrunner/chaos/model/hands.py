"""What has to become of what people and supervisors do: cancel, retry, pause, come and go, and remove what is old."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from taskrunner.chaos.model.births import holder_of_unique_key
from taskrunner.chaos.model.rows import CLAIMABLE, Line, Owner, Row, World
from taskrunner.core.durations import stamp
from taskrunner.core.errors import InvalidInput, TaskNotFound
from taskrunner.core.model import TaskType
from taskrunner.storage.engine import Rejected
from taskrunner.storage.retention import PART
from taskrunner.storage.tasks import KeyTaken

NANOSECONDS: Final = 1_000_000_000
LEASE: Final = 60.0
KEPT: Final = timedelta(days=30)
"""How long the row of a supervisor is kept that has ended."""


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cancel(world: World, task_id: str, reason: str) -> str:
    """A pending task is cancelled, a running one is asked to end; the first reason stays."""
    row = world.tasks.get(task_id)
    if row is None:
        raise TaskNotFound
    if row.has_ended:
        return "too_late"
    row.cancel_requested_at = row.cancel_requested_at or world.now
    row.cancel_reason = row.cancel_reason or reason or None
    row.updated_at = world.now
    if row.status == "running":
        return "cancelling"
    row.status, row.completed_at, row.hold, row.waiting_for = "cancelled", world.now, CLAIMABLE, None
    row.error_message = reason or row.error_message
    return "cancelled"


def retry(world: World, task_id: str) -> None:
    """A failed or cancelled task begins a new series, with its steps, its progress and the numbers of its attempts."""
    row = world.tasks.get(task_id)
    if row is None:
        raise TaskNotFound
    if row.status not in {"failed", "cancelled"}:
        raise InvalidInput("it cannot be retried")
    if holder_of_unique_key(world, row.type, row.unique_key) is not None:
        raise KeyTaken(row.type, row.unique_key or "")
    if task_id in world.removals:
        raise Rejected("retry", "it is being removed")
    world.pasts[task_id].retries.append((row.series + 1, row.status, row.error_message, world.now))
    row.status, row.series, row.retry_count, row.losses = "pending", row.series + 1, 0, 0
    row.run_at, row.hold, row.waiting_for = world.now, CLAIMABLE, None
    row.output = row.outcome = row.error_type = row.error_message = row.traceback = row.completed_at = None
    row.cancel_requested_at = row.cancel_reason = None
    row.updated_at = world.now


# ── queues ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pause(world: World, queue: str) -> None:
    """Since when it is paused does not change."""
    line = world.queues.setdefault(queue, Line())
    line.paused_at = line.paused_at or world.now
    line.updated_at = world.now


def resume(world: World, queue: str) -> None:
    """What was said of a queue stays only while it has a limit."""
    line = world.queues.get(queue)
    if line is not None and line.concurrency is None:
        del world.queues[queue]
    elif line is not None and line.paused_at is not None:
        line.paused_at, line.updated_at = None, world.now


# ── supervisors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def register(world: World, owner: str, types: Sequence[TaskType], limits: Mapping[str, int | None]) -> None:
    """A supervisor comes, with its types and its queues' limits; those that are gone for long are forgotten."""
    world.owners[owner] = Owner(_expiry(world, LEASE))
    before = stamp(world.clock.now() - KEPT)
    for name in [name for name, each in world.owners.items() if each.ended_at is not None and each.ended_at < before]:
        if not world.running(owner=name):
            del world.owners[name]
    world.types.update({kind.name: kind for kind in types})
    for queue, most in limits.items():
        line = world.queues.get(queue)
        if line is None:
            world.queues[queue] = Line(concurrency=most, updated_at=world.now)
        elif line.concurrency != most:
            line.concurrency, line.updated_at = most, world.now


def beat(world: World, owner: str) -> bool:
    """Whether its lease was renewed: not that of one that was taken for dead."""
    row = world.owners.get(owner)
    if row is None or row.ended_at is not None:
        return False
    row.expires_at = _expiry(world, LEASE)
    return True


def bury(world: World, dead: Sequence[tuple[str, str]], me: str) -> set[tuple[str, str]]:
    """Those that were judged dead, and those whose lease has run out, but for oneself."""
    monotonic = int(world.clock.monotonic() * NANOSECONDS)
    expired = [(name, "its lease ran out") for name, row in world.owners.items() if row.expires_at <= monotonic]
    ended = set()
    for name, how in [*dead, *((name, how) for name, how in expired if name != me)]:
        row = world.owners.get(name)
        if row is not None and row.ended_at is None:
            row.ended_at, row.ended_how = world.now, how
            ended.add((name, how))
    return ended


def _expiry(world: World, lease: float) -> int:
    return int((world.clock.monotonic() + lease) * NANOSECONDS)


# ── retention ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def removable(world: World, row: Row, before: datetime) -> bool:
    """Finished, for long enough, without children, and with no parent that may still ask for it."""
    parent = world.tasks.get(row.parent_task_id or "")
    return (
        row.has_ended
        and (row.completed_at or "") < stamp(before)
        and all(other.parent_task_id != row.id for other in world.tasks.values())
        and (parent is None or parent.has_ended)
    )


def finished(world: World, status: str, before: datetime) -> list[tuple[int, str, str, int]]:
    """The finished tasks of a status that were born before a moment, each with the work to remove it."""
    found = [row for row in world.tasks.values() if row.status == status and row.created_at < stamp(before)]
    found.sort(key=lambda row: (row.created_at, row.seq))
    return [
        (row.seq, row.id, row.created_at, _work(world, row) if removable(world, row, before) else 0) for row in found
    ]


def _work(world: World, row: Row) -> int:
    past = world.pasts[row.id]
    size = sum(len(step.value or "") for step in past.steps.values())
    return 1 + len(past.steps) + size // PART + len(past.attempts) + len(past.log)


def remove(world: World, ids: Sequence[str], before: datetime) -> int:
    """Remove those that still may be."""
    gone = [task_id for task_id in ids if task_id in world.tasks and removable(world, world.tasks[task_id], before)]
    world.forget(gone)
    return len(gone)


def begin_removal(world: World, task_id: str, before: datetime) -> None:
    """From now on it is not retried."""
    if task_id in world.tasks and removable(world, world.tasks[task_id], before):
        world.removals.add(task_id)


def remove_steps(world: World, task_id: str, work: int) -> int:
    """Its first steps, for about so much work; none of a task whose removal has not begun."""
    if task_id not in world.removals:
        return 0
    steps = world.pasts[task_id].steps
    gone = []
    for step in sorted(steps)[:work]:
        gone.append(step)
        work -= 1 + len(steps[step].value or "") // PART
        if work <= 0:
            break
    for step in gone:
        del steps[step]
    return len(gone)


def remove_log_lines(world: World, task_id: str, most: int) -> int:
    """The first lines of its log."""
    if task_id not in world.removals:
        return 0
    log = world.pasts[task_id].log
    count = len(log[:most])
    del log[:most]
    return count


def end_removal(world: World, task_id: str) -> int:
    """The task itself, if its removal has begun, and no child has come since."""
    if task_id not in world.removals or any(row.parent_task_id == task_id for row in world.tasks.values()):
        return 0
    world.forget([task_id])
    return 1
