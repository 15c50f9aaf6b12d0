"""What has to become of the writes of an attempt: refused from a stale one, and else written once."""

from __future__ import annotations

from collections.abc import Sequence

from taskrunner.chaos.model.claiming import finish
from taskrunner.chaos.model.rows import CLAIMABLE, SUSPECT, UNTIL_RUN_AT, WAITS_FOR, Chat, Record, Row, World
from taskrunner.core.durations import after, stamp
from taskrunner.core.errors import InvalidInput, LeaseLost, NoSession
from taskrunner.core.model import Fence, Message
from taskrunner.storage.engine import Rejected
from taskrunner.storage.messages import NewMessage

OUTPUT = '"done"'
NOTHING = (None, None, None)
ERROR = ("ValueError", "it does not work", "Traceback …")


def _held(world: World, fence: Fence) -> Row:
    row = world.held(fence)
    if row is None:
        raise LeaseLost
    return row


def complete(world: World, fence: Fence) -> str:
    """The body has returned; who was asked to end is cancelled instead."""
    row = _held(world, fence)
    row.losses = 0
    if row.cancel_requested_at is not None:
        finish(world, row, "cancelled", "cancelled", (None, row.cancel_reason, None))
    else:
        row.output, row.progress = OUTPUT, 1.0
        finish(world, row, "completed", "completed", NOTHING)
    return row.status


def fail(world: World, fence: Fence, retry_in: float | None) -> str:
    """The body has raised: it is run again while retries are left."""
    row = _held(world, fence)
    row.losses = 0
    if row.cancel_requested_at is not None:
        finish(world, row, "cancelled", "cancelled", ERROR)
    elif retry_in is None or row.retry_count >= row.max_retries:
        finish(world, row, "failed", "failed", ERROR)
    else:
        row.retry_count += 1
        row.run_at = stamp(after(world.clock.now(), retry_in))
        row.hold = UNTIL_RUN_AT if row.run_at > world.now else CLAIMABLE
        finish(world, row, "pending", "retried", ERROR)
    return row.status


def release(world: World, fence: Fence, waiting_for: str | None) -> str:
    """It is handed back without any charge."""
    row = _held(world, fence)
    if row.cancel_requested_at is not None:
        finish(world, row, "cancelled", "cancelled", (None, row.cancel_reason, None))
        return row.status
    row.waiting_for = waiting_for
    row.hold = WAITS_FOR if waiting_for is not None else SUSPECT if row.losses >= 2 else CLAIMABLE
    finish(world, row, "pending", "released", NOTHING)
    return row.status


def cancelled(world: World, fence: Fence) -> str:
    """A body that was asked to end has ended; nobody else's is."""
    row = _held(world, fence)
    if row.cancel_requested_at is None:
        raise LeaseLost
    finish(world, row, "cancelled", "cancelled", (None, row.cancel_reason, None))
    return row.status


def record(world: World, fence: Fence, step: tuple[str, str, int], value: str | None, error: str | None) -> None:
    """A step is recorded once in the life of a task, retries by hand and all."""
    row = _held(world, fence)
    steps = world.pasts[row.id].steps
    if step in steps:
        raise Rejected("record_step", "this step is recorded already")
    kind = None if error is None else "ValueError"
    steps[step] = Record(
        scope=step[0], name=step[1], occurrence=step[2], value=value, error_type=kind, error=error,
        attempt=row.attempt, created_at=world.now,
    )  # fmt: skip


def progress(world: World, fence: Fence, fraction: float, message: str) -> None:
    """It never falls."""
    row = _held(world, fence)
    row.progress = max(row.progress, fraction)
    row.progress_message, row.updated_at = message, world.now


def log(world: World, fence: Fence, events: Sequence[str]) -> None:
    """Lines of a log."""
    row = _held(world, fence)
    world.pasts[row.id].log.extend((row.attempt, event) for event in events)


def say(world: World, new: NewMessage, fence: Fence | None) -> tuple[str, int, str, str | None]:
    """A message, written once under its key: its id, its seq, its content and its parent."""
    if fence is not None:
        _held(world, fence)
    every = [message for chat in world.chats.values() for message in chat.messages]
    if new.parent_msg_id is not None and all(message.id != new.parent_msg_id for message in every):
        raise InvalidInput("no such parent")
    key = (new.history_id or "", new.write_key or "")
    if fence is None or key not in world.written:
        chat = world.chats.get(new.session_id)
        if chat is None:
            raise NoSession
        message = _message(world, new, chat, 1 + max((message.seq for message in every), default=0))
        chat.messages.append(message)
        if fence is None:
            return told(message)
        world.written[key] = message
    return told(world.written[key])


def _message(world: World, new: NewMessage, chat: Chat, seq: int) -> Message:
    newest = chat.messages[-1].id if chat.messages else None
    return Message(
        id=new.id, seq=seq, session_id=new.session_id, role=new.role, content=new.content, tool_calls=[],
        tool_call_id=None, parent_msg_id=new.parent_msg_id or newest, token_count=new.token_count, payload=None,
        created_at=world.clock.now(),
    )  # fmt: skip


def told(message: Message) -> tuple[str, int, str, str | None]:
    """What is compared of a message."""
    return message.id, message.seq, message.content, message.parent_msg_id
