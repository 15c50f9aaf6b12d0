"""An attempt under way, as its keeper and the watchdog see it, wherever its body runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from taskrunner.core.errors import StoreBusy, StoreError, TaskRunnerError, error_text, error_type_of
from taskrunner.core.traces import traceback_text
from taskrunner.storage.engine import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import Task
    from taskrunner.storage.engine import Statement
    from taskrunner.storage.tasks import TaskStore

Reason: TypeAlias = Literal["cancel", "timeout", "stop", "lost"]

WHY: Final[dict[Reason, str]] = {
    "cancel": "the task was cancelled: it takes no new steps",
    "timeout": "this attempt has used up its timeout: it takes no new steps",
    "stop": "the supervisor is stopping: the task goes on later, from its last recorded step",
    "lost": "the task was taken from this attempt",
}


class NoRoom(TaskRunnerError):
    """There is nobody who could run the task now: it is handed back."""


class Watched(ABC):
    """An attempt under way. All but `reason` and `force_at` belongs to the event loop."""

    def __init__(self, task: Task, definition: TaskDefinition[Any, Any], tasks: TaskStore) -> None:
        self.task = task
        self.definition = definition
        self.tasks = tasks
        self.body: object = None
        """The async task (or thread) of the body, for who asks what blocks the loop; None: it runs elsewhere."""
        self.body_ended = False
        self.reason: Reason | None = None
        self.was_cancelled = False
        """Whether the body has ended by a cancellation that nobody here asked for."""
        self.deadline: float | None = None
        """When its timeout is over, in seconds of the monotonic clock."""
        self.force_at: float | None = None
        """When the end is written whether the body has ended or not, in seconds of the monotonic clock."""
        self.forced = False
        """Whether the end is being written without a word of the body's."""
        self.written = False
        """Whether it has been written so."""

    @abstractmethod
    def when_it_records(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once when a step of this attempt is in the store, where that is known."""

    @abstractmethod
    async def run(self) -> None:
        """Have the body run to its end, whatever that is."""

    @abstractmethod
    def take_no_more(self, reason: Reason) -> None:
        """Have the body take no new steps from now on. From any thread: the loop may be blocked by this very body."""

    @abstractmethod
    def interrupt(self, reason: Reason) -> None:
        """Ask the body to end. The first reason counts, but for a lost task nothing else does."""

    @abstractmethod
    def force(self) -> None:
        """The end is about to be written: end the body by force, where that can be done. From any thread."""

    @abstractmethod
    def let_go(self) -> None:
        """The end is written, or the task is another's: nothing that the body may still do counts."""

    @abstractmethod
    def ending(self) -> tuple[Statement | None, list[Statement]]:
        """How the ended attempt is to be written, and what with it; no statement: it has no say."""

    @abstractmethod
    def take_shown(self) -> list[Statement]:
        """The progress and the log that are not yet written, if they are to be written from here."""

    def forced_ending(self) -> Statement:
        """How an attempt is written whose body has not ended in time. From any thread."""
        if self.reason == "cancel":
            return self.tasks.cancelled(self.task.fence)
        return self.timed_out() if self.reason == "timeout" else self.tasks.release(self.task.fence)

    def timed_out(self) -> Statement:
        """The attempt has used up its timeout: run again while retries are left, whatever `retry=` says of errors."""
        error = TimeoutError(f"the attempt took longer than its timeout of {self.task.timeout:g} seconds")
        return self.failed(error, self.definition.policy.delay(error, self.task.retry_count))

    def seen(self, text: str) -> str:
        """A text of the body's as people may see it."""
        return text

    def failed(self, error: BaseException, retry_in: float | None) -> Statement:
        """The attempt has ended with an error; `retry_in`: seconds until it is run again, None: it failed for good."""
        return self.tasks.fail(
            self.task.fence,
            error_type=error_type_of(error),
            error_message=self.seen(error_text(error)),
            traceback=self.seen(traceback_text(error)) if error.__traceback__ is not None else None,
            retry_in=retry_in,
        )


def unbegun(tasks: TaskStore, task: Task, definition: TaskDefinition[Any, Any], error: Exception) -> Statement:
    """How an attempt is written that could not even begin, so that it stands in nobody's way.

    A busy store is no fault of it, and costs nothing. A store that cannot be read may be read later: the task is run
    again while retries are left. Odd rows stay odd.
    """
    if isinstance(error, StoreBusy):
        return tasks.release(task.fence)
    passes = isinstance(error, StoreError) and not isinstance(error, Rejected)
    return tasks.fail(
        task.fence,
        error_type=error_type_of(error),
        error_message=error_text(error),
        retry_in=definition.policy.delay(error, task.retry_count) if passes else None,
    )


class Place(Protocol):
    """Where bodies run: in this process, or in its children."""

    @property
    def is_ready(self) -> bool:
        """Whether a task could be run there now."""
        ...

    @property
    def shields(self) -> bool:
        """Whether a suspect runs apart from the others, who may be claimed beside it."""
        ...

    async def prepare(self, task: Task, definition: TaskDefinition[Any, Any]) -> Watched:
        """An attempt, ready to run.

        Raises:
            NoRoom: there is nobody to run it, and there will be nobody soon.
            TaskRunnerError: its rows are odd, or its session is gone; so do ValueError and TypeError.
        """
        ...

    def let_go(self) -> None:
        """Keep nobody waiting for room any more."""
        ...
