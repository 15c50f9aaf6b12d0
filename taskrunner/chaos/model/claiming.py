"""What a claim has to bring: orphans first, then what is in line, by rank and within all limits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from taskrunner.chaos.model.rows import CLAIMABLE, MOST_OF_A_CLAIM, SUSPECT, UNTIL_RUN_AT, WAITS_FOR, Row, World
from taskrunner.core.errors import LeaseLost
from taskrunner.core.model import Fence
from taskrunner.core.states import Status

WORKER_LOST: Final = "taskrunner.WorkerLost"

Recovered = tuple[str, str, str, str, int]
"""Id, type, queue, status and losses of an orphan."""


@dataclass(frozen=True)
class Brought:
    """What a claim answers, as far as it is the same on every engine."""

    tasks: list[tuple[str, int]]
    """Ids and attempts, in order."""
    recovered: set[Recovered]
    queues: list[str]
    unasked: list[str]
    promoted: int
    suspects: bool
    limits: bool


@dataclass(frozen=True)
class Asked:
    """Who claims what."""

    owner: str
    queues: tuple[str, ...]
    slots: int
    known: tuple[str, ...]
    only: tuple[str, ...] | None
    suspect: bool


def claim(world: World, asked: Asked) -> Brought:
    """Put orphans back, and start what this owner may run."""
    owner = world.owners.get(asked.owner)
    if owner is None or owner.ended_at is not None:
        raise LeaseLost
    promoted = [row for row in world.pending(UNTIL_RUN_AT) if row.run_at <= world.now]
    for row in promoted:
        row.hold = CLAIMABLE
    recovered = {_lost(world, row, _death_of(world, row)) for row in _orphans(world)}
    started: list[Row] = []
    for row in _chosen(world, asked):
        _start(world, row, asked.owner)
        started.append(row)
    started.sort(key=Row.place)
    left = sorted({row.queue for row in world.pending(CLAIMABLE) if world.room(row.queue) > 0})
    world.knows_limits = any(line.concurrency is not None for line in world.queues.values())
    return Brought(
        tasks=[(row.id, row.attempt) for row in started],
        recovered=recovered,
        queues=left,
        unasked=[queue for queue in left if queue not in asked.queues],
        promoted=len(promoted),
        suspects=any(_suspects(world, asked)),
        limits=world.knows_limits,
    )


def _chosen(world: World, asked: Asked) -> Iterable[Row]:
    """The tasks that are started, one by one: each that was takes a slot, and room in its queue."""
    if asked.suspect:
        yield from sorted(_suspects(world, asked), key=Row.place)[: min(1, _free(world, asked))]
        return
    for kind in asked.known:
        for queue in asked.only or (None,):
            yield from _put_back(world, asked, kind, queue)
    for queue in asked.queues:
        line = sorted((row for row in world.pending(CLAIMABLE) if row.queue == queue), key=Row.place)
        yield from line[: min(MOST_OF_A_CLAIM, _free(world, asked), world.room(queue))]


def _put_back(world: World, asked: Asked, kind: str, queue: str | None) -> list[Row]:
    """Those that waited for somebody who knows their type; as many of a queue as it has room for."""
    waiting = [
        row
        for row in world.pending(WAITS_FOR)
        if row.waiting_for == f"worker:{kind}" and row.losses < 2 and row.run_at <= world.now
        if queue in {None, row.queue} and world.room(row.queue) > 0
    ][: _free(world, asked)]
    return [
        row
        for place, row in enumerate(waiting)
        if sum(other.queue == row.queue for other in waiting[:place]) < world.room(row.queue)
    ]


def _suspects(world: World, asked: Asked) -> Iterable[Row]:
    """The suspects that this owner may try."""
    return (
        row
        for row in world.pending(SUSPECT, WAITS_FOR)
        if row.losses >= 2
        and (row.hold == SUSPECT or (row.waiting_for == f"worker:{row.type}" and row.type in asked.known))
        and (asked.only is None or row.queue in asked.only)
        and world.room(row.queue) > 0
    )


def _free(world: World, asked: Asked) -> int:
    return max(0, asked.slots - world.running(owner=asked.owner))


def _start(world: World, row: Row, owner: str) -> None:
    row.status, row.lease_owner, row.attempt, row.outcome = "running", owner, row.attempt + 1, None
    row.hold, row.waiting_for = CLAIMABLE, None
    row.started_at = row.updated_at = world.now
    world.pasts[row.id].last_owner = owner


# ── losses ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _orphans(world: World) -> list[Row]:
    living = {name for name, owner in world.owners.items() if owner.ended_at is None}
    return [row for row in world.tasks.values() if row.status == "running" and row.lease_owner not in living]


def _death_of(world: World, row: Row) -> str:
    owner = world.owners.get(row.lease_owner or "")
    return f"process 1 on here: {owner.ended_how}" if owner else "process ? on ?: its row is gone"


def lose(world: World, owner: str, lost: Sequence[Fence], how: str) -> set[Recovered]:
    """Tasks of a living owner whose own process died."""
    rows = [world.held(fence) for fence in lost]
    return {_lost(world, row, how) for row in rows if row is not None and row.lease_owner == owner}


def _lost(world: World, row: Row, how: str) -> Recovered:
    """Charge one task: a step that was recorded in this attempt starts the count anew."""
    recorded = any(step.attempt == row.attempt for step in world.pasts[row.id].steps.values())
    row.losses = 1 if recorded else min(row.losses + 1, row.max_losses)
    if row.cancel_requested_at is not None:
        finish(world, row, "cancelled", "cancelled", (None, row.cancel_reason, None))
    elif row.losses >= row.max_losses:
        said = f"quarantined: its worker was lost {row.losses} times in a row without recording a step (max_losses "
        said += f"{row.max_losses}); the last was {how}"
        finish(world, row, "failed", "lost", (WORKER_LOST, said, None))
    else:
        row.hold = SUSPECT if row.losses >= 2 else CLAIMABLE
        finish(world, row, "pending", "lost", (WORKER_LOST, f"worker lost: {how}", None))
    return row.id, row.type, row.queue, row.status, row.losses


def finish(
    world: World, row: Row, status: Status, outcome: str, error: tuple[str | None, str | None, str | None]
) -> None:
    """End the running attempt of a task."""
    row.status, row.outcome = status, outcome
    row.error_type, row.error_message, row.traceback = error
    world.pasts[row.id].attempts.append(
        (row.attempt, row.series, row.lease_owner, row.started_at, world.now, outcome, *error)
    )
    row.lease_owner, row.updated_at = None, world.now
    if row.has_ended:
        row.completed_at = world.now
