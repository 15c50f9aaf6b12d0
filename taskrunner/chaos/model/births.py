"""What has to become of an enqueue: the options, the keys, and all or nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final

from taskrunner.chaos.model.rows import CLAIMABLE, UNTIL_RUN_AT, Past, Row, World
from taskrunner.core.durations import after, stamp
from taskrunner.core.errors import InvalidInput, NoSession
from taskrunner.core.model import NewTask, TaskType
from taskrunner.storage.tasks import KeyTaken

PLAIN: Final = TaskType(name="")


def enqueue(world: World, new: Sequence[NewTask]) -> list[str]:
    """Store all of them, or none; their ids, or those of the tasks that hold their keys."""
    ids = [world.new_id() for _ in new]
    before = copy.deepcopy((world.tasks, world.pasts)) if len(new) > 1 else None
    try:
        return [
            _enqueue(world, each, new_id, new[:place])
            for place, (each, new_id) in enumerate(zip(new, ids, strict=True))
        ]
    except Exception:
        if before is not None:
            world.tasks, world.pasts = before
        raise


def _enqueue(world: World, new: NewTask, new_id: str, earlier: Sequence[NewTask]) -> str:
    row = _born(world, new, new_id)
    if holder := _holder_of_idempotency_key(world, new):
        return holder.id
    if (holder := holder_of_unique_key(world, new.type, new.unique_key)) is not None:
        _share(world, holder, new, row, earlier)
        return holder.id
    if new.session_id is not None and new.session_id not in world.chats:
        raise NoSession
    world.tasks[new_id], world.pasts[new_id] = row, Past()
    return new_id


def _born(world: World, new: NewTask, new_id: str) -> Row:
    kind = world.types.get(new.type, PLAIN)
    run_at = new.run_at or after(world.clock.now(), new.delay or 0.0)
    return Row(
        seq=max((row.seq for row in world.tasks.values()), default=0) + 1,
        id=new_id,
        history_id=new_id,
        type=new.type,
        input=new.input,
        queue=new.queue or kind.queue,
        priority=kind.priority if new.priority is None else new.priority,
        run_at=stamp(run_at),
        hold=UNTIL_RUN_AT if stamp(run_at) > world.now else CLAIMABLE,
        created_at=world.now,
        updated_at=world.now,
        max_retries=_first(new.max_retries, kind.max_retries, world.default_retries),
        max_losses=_first(new.max_losses, kind.max_losses, world.default_losses),
        timeout=new.timeout or kind.timeout,
        session_id=new.session_id,
        parent_task_id=new.parent_task_id,
        unique_key=new.unique_key,
        idempotency_key=new.idempotency_key,
    )


def _holder_of_idempotency_key(world: World, new: NewTask) -> Row | None:
    """Whatever has become of it: the key is for ever."""
    held = [row for row in world.tasks.values() if (row.type, row.idempotency_key) == (new.type, new.idempotency_key)]
    return held[0] if held and new.idempotency_key is not None else None


def holder_of_unique_key(world: World, kind: str, key: str | None) -> Row | None:
    """The unfinished task that has it."""
    held = [row for row in world.tasks.values() if (row.type, row.unique_key) == (kind, key) and not row.has_ended]
    return held[0] if held and key is not None else None


def _share(world: World, holder: Row, new: NewTask, row: Row, earlier: Sequence[NewTask]) -> None:
    """What an enqueue does to the task that has its unique key."""
    never_started = holder.status == "pending" and holder.attempt == 0
    if new.on_conflict == "reject" or (new.on_conflict == "replace" and not never_started):
        if any((each.type, each.unique_key) == (new.type, new.unique_key) for each in earlier):
            raise InvalidInput("two of one batch")
        raise KeyTaken(new.type, new.unique_key or "")
    holder.idempotency_key = holder.idempotency_key or new.idempotency_key
    if new.on_conflict == "replace":
        holder.input, holder.run_at, holder.hold, holder.priority = row.input, row.run_at, row.hold, row.priority
        holder.updated_at = world.now


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)
