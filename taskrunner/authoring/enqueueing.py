"""From bound tasks to rows: the last checks at the door, and what the types say of themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from msgspec import structs

from taskrunner.authoring.definition import BoundTask, TaskDefinition
from taskrunner.authoring.handle import Client, DuplicateTask, TaskHandle
from taskrunner.authoring.options import enqueue_options, text
from taskrunner.core import payload
from taskrunner.core.errors import InvalidInput
from taskrunner.core.model import NewTask
from taskrunner.core.places import shown
from taskrunner.storage.tasks import KeyTaken

R = TypeVar("R")


def bound_by_name(name: object, given: object, options: Mapping[str, Any]) -> BoundTask[Any]:
    """A task of a type that this program may not know: nothing but JSON is asked of its arguments.

    Raises:
        InvalidInput: the name, an option or the input is refused.
    """
    if not isinstance(given, Mapping):
        message = f"input={shown(given)}: an object with the task's arguments by name is wanted"
        raise InvalidInput(message, path="input")
    type_name, arguments = text(name, "name"), dict(given)
    payload.require_plain(arguments, name="", error=InvalidInput, when="for a task by its name")
    new = NewTask(
        type=type_name,
        input=payload.encode(arguments, name="", error=InvalidInput),
        **enqueue_options(**options),
    )
    return BoundTask(new.type, new, payload.UNTYPED)


async def store_bound(
    client: Client,
    definitions: Mapping[str, TaskDefinition[..., Any]],
    bound: Sequence[BoundTask[R]],
    max_payload: int,
) -> list[TaskHandle[R]]:
    """Store bound tasks in one commit, all or none; `max_payload` is in bytes of JSON.

    Raises:
        PayloadTooLarge: an input's JSON is larger.
        DuplicateTask: an unfinished task has a `unique_key` that may not be shared.
        NoSession: no session has a `session_id`.
        StoreBusy: nothing was written.
    """
    for each in bound:
        payload.check_size(each.new.input, max_payload, name="input", error=InvalidInput)
    new = [_with_type(each.new, definitions.get(each.new.type)) for each in bound]
    tasks = client.store.tasks
    while True:
        try:
            ids = await tasks.enqueue_many(new)
        except KeyTaken as taken:
            holder = await tasks.holder_of(taken)
            if holder is not None:  # else it has ended meanwhile
                raise DuplicateTask(str(taken), TaskHandle(client, holder)) from None
        else:
            return [TaskHandle(client, task_id, each.returns) for task_id, each in zip(ids, bound, strict=True)]


def _with_type(new: NewTask, definition: TaskDefinition[..., Any] | None) -> NewTask:
    """Fill in what the type says of itself, if this program knows it; else the store's row of the type counts."""
    if definition is None:
        return new
    kind = definition.kind
    return structs.replace(
        new,
        queue=new.queue or kind.queue,
        priority=kind.priority if new.priority is None else new.priority,
        max_retries=kind.max_retries if new.max_retries is None else new.max_retries,
        timeout=new.timeout or kind.timeout,
        max_losses=kind.max_losses,
    )
