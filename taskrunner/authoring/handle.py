"""A handle: the way back to a task from its id, in any process that has the store open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

import anyio
from typing_extensions import TypeVar

from taskrunner.core import payload
from taskrunner.core.durations import Duration, seconds
from taskrunner.core.errors import InvalidInput, InvalidResult, TaskCancelled, TaskFailed, TaskRunnerError, safe_text
from taskrunner.core.model import Task, TaskInfo
from taskrunner.core.places import shown
from taskrunner.core.states import TERMINAL, Status
from taskrunner.storage.listing import Filter
from taskrunner.storage.tasks import KeyTaken, task_topic

if TYPE_CHECKING:
    from taskrunner.storage.store import Store

R_co = TypeVar("R_co", covariant=True)

LOOK_AGAIN = 1.0
"""Seconds after which a waiter looks at the task although it heard of no change."""


MAX_CHILDREN = 1_000
"""Children that `info` tells of at most."""


class Client(Protocol):
    """What a handle needs of a runner."""

    @property
    def store(self) -> Store:
        """The open store; raises `NotOpen` outside `async with runner`."""
        ...


class TaskHandle(Generic[R_co]):
    """One task, wherever it runs."""

    def __init__(self, client: Client, task_id: str, returns: Any = payload.UNTYPED) -> None:  # noqa: ANN401 - an annotation
        if not isinstance(task_id, str):
            message = f"task_id={shown(task_id)}: a text is wanted"
            raise InvalidInput(message, path="task_id")
        self._client = client
        self._id = task_id
        self._returns = returns

    def __repr__(self) -> str:
        return f"<handle of task {self._id}>"

    @property
    def id(self) -> str:
        """The task's id."""
        return self._id

    async def task(self) -> Task:
        """The task's row as it stands now.

        Raises:
            TaskNotFound: no task has this id.
            NotOpen: the runner is not open.
        """
        return await self._client.store.tasks.get(self._id)

    async def info(self) -> TaskInfo:
        """The task with its ended attempts, its recorded steps and its newest 1,000 children. Raises as `task` does."""
        store = self._client.store
        task = await store.tasks.get(self._id)
        children = await store.listing.tasks(Filter(parent_task_id=self._id), limit=MAX_CHILDREN)
        return TaskInfo(
            task=task,
            attempts=await store.journal.attempts(self._id),
            steps=await store.journal.steps(task.history_id),
            children=children,
        )

    async def status(self) -> Status:
        """`pending`, `running`, `completed`, `failed` or `cancelled`. Raises as `task` does."""
        return await self._client.store.tasks.status(self._id)

    async def progress(self) -> float:
        """How far it has come, 0.0 to 1.0. Raises as `task` does."""
        return (await self.task()).progress

    async def result(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - the contract's own form
        """Wait for the task to end and return its result, as its function's return annotation says.

        `timeout` is in seconds or like "1m" (default: no limit); the task itself goes on when it is over. Where nobody
        works on the task, as after `drain`, only a timeout (0 will do) keeps this from waiting for ever.

        Raises:
            TaskFailed: it failed; `error_type` and `details` say why.
            TaskCancelled: it was cancelled.
            TimeoutError: it has not ended in time.
            InvalidResult: its result does not fit the annotation.
            TaskNotFound: no task has this id.
        """
        limit = None if timeout is None else seconds(timeout, "timeout", zero=True)
        ended = False
        with anyio.move_on_after(limit):
            await self._ended()
            ended = True
        if not ended and await self.status() not in TERMINAL:
            message = f"task {self._id} has not ended within {limit:g} seconds; it goes on"
            raise TimeoutError(message)
        task = await self.task()
        if task.status == "failed":
            raise TaskFailed(self._id, task.error_type or "", task.error_message or "")
        if task.status == "cancelled":
            raise TaskCancelled(self._id)
        text = payload.encode(task.output, name="result", error=InvalidResult)
        result: R_co = payload.decode(text, self._returns, name="result", error=InvalidResult)
        return result

    async def cancel(self, reason: str = "") -> Literal["cancelled", "cancelling", "too_late"]:
        """Ask for the task not to go on; durable when it returns.

        A pending task is cancelled at once ("cancelled"). A running one ("cancelling") starts no new step, may clean up
        for the grace of its supervisor, and then becomes cancelled; it never completes. A finished one stays as it is
        ("too_late").

        Raises:
            TaskNotFound: no task has this id.
        """
        if not isinstance(reason, str):
            message = f"reason={shown(reason)}: a text is wanted"
            raise InvalidInput(message, path="reason")
        return await self._client.store.tasks.cancel(self._id, safe_text(reason))

    async def retry(self) -> None:
        """Run a failed or cancelled task again; durable when it returns.

        It is pending at once, with its input, its recorded steps, and all its retries: the body runs from its top and
        goes on after the steps that are recorded, also where mended code is what it needed. The row's `series` counts
        how often this was done.

        Raises:
            InvalidInput: the task is completed, or has not ended.
            DuplicateTask: an unfinished task has its `unique_key` by now.
            TaskNotFound: no task has this id.
        """
        tasks = self._client.store.tasks
        while True:
            try:
                return await tasks.retry(self._id)
            except KeyTaken as taken:
                holder = await tasks.holder_of(taken)
                if holder is not None:  # else it has ended meanwhile
                    raise DuplicateTask(str(taken), TaskHandle(self._client, holder)) from None

    async def _ended(self) -> None:
        store = self._client.store
        with store.engine.listen((task_topic(self._id),)) as news:
            while await store.tasks.status(self._id) not in TERMINAL:
                await news.wait(LOOK_AGAIN)


class DuplicateTask(TaskRunnerError):
    """An unfinished task holds this unique key; `handle` is its handle."""

    def __init__(self, message: str, handle: TaskHandle[Any]) -> None:
        super().__init__(message)
        self.handle = handle
