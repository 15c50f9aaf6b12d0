"""From bound tasks to rows: the last checks at the door, and what the types say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

from msgspec import structs

from taskrunner.authoring.definition import BoundTask, TaskDefinition
from taskrunner.authoring.handle import Client, DuplicateTask, TaskHandle
from taskrunner.authoring.options import enqueue_options, text
from taskrunner.core import payload
from taskrunner.core.durations import Duration
from taskrunner.core.errors import InvalidInput
from taskrunner.core.model import JSON, NewTask
from taskrunner.core.places import shown
from taskrunner.core.states import OnConflict
from taskrunner.storage.tasks import KeyTaken

if TYPE_CHECKING:
    from taskrunner.core.settings import Settings
    from taskrunner.storage.store import Store

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


class Enqueueing:
    """What a runner offers to who enqueues."""

    if TYPE_CHECKING:
        definitions: dict[str, TaskDefinition[..., Any]]

        @property
        def store(self) -> Store:
            """The open store; raises `NotOpen` elsewhere."""
            ...

        @property
        def settings(self) -> Settings:
            """The settings as they are in force."""
            ...

    @overload
    async def enqueue(self, bound: BoundTask[R], /) -> TaskHandle[R]: ...
    @overload
    async def enqueue(
        self,
        name: str,
        input: Mapping[str, JSON] = ...,
        /,
        *,
        priority: int | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        session_id: str | None = None,
        unique_key: str | None = None,
        on_conflict: OnConflict = "reuse",
        idempotency_key: str | None = None,
        max_retries: int | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the task's own, not this call's
    ) -> TaskHandle[Any]: ...
    async def enqueue(
        self,
        bound: BoundTask[Any] | str,
        input: Mapping[str, JSON] | None = None,  # noqa: A002 - the contract's name
        /,
        **options: Any,
    ) -> TaskHandle[Any]:
        """Enqueue a bound task, or one by its type's name and a JSON object; it is durable when this returns.

        By name nothing is checked but that it is JSON, and its size: this program may not know the type. The options
        are those of `TaskDefinition.options`.

        Raises:
            InvalidInput: an option is out of its bounds, or the input has no JSON form.
            PayloadTooLarge: the input's JSON is larger than `max_payload`.
            DuplicateTask: an unfinished task has this `unique_key`, and `on_conflict` refuses this one.
            NoSession: no session has this `session_id`.
            StoreBusy: the store was locked for too long, or its disk is full; nothing was written.
            NotOpen: the runner is not open.
        """
        if not isinstance(bound, BoundTask):
            bound = bound_by_name(bound, {} if input is None else input, options)
        elif input is not None or options:
            message = "enqueue: a bound task has its input and options already"
            raise InvalidInput(message)
        return (await store_bound(self, self.definitions, [bound], self.settings.max_payload))[0]

    async def enqueue_many(self, bound: Iterable[BoundTask[R]], /) -> list[TaskHandle[R]]:
        """Enqueue many bound tasks in one commit, all or none. Raises as `enqueue` does."""
        return await store_bound(self, self.definitions, list(bound), self.settings.max_payload)

    def handle(self, task_id: str, /) -> TaskHandle[Any]:
        """A handle to a task that was enqueued earlier; nothing is looked up. `task.handle(id)` is a typed one."""
        return TaskHandle(self, task_id)


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
