"""One attempt: run the body once, and write how it ended.

Whatever happens inside, the end is decided here, and written under the fence: a body that was fenced out meanwhile has
no say.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from taskrunner.authoring.context import TaskContext, enter
from taskrunner.authoring.definition import current_host
from taskrunner.core import payload
from taskrunner.core.durations import aware, seconds
from taskrunner.core.errors import (
    AttemptOver,
    Fail,
    InvalidInput,
    InvalidResult,
    LeaseLost,
    NonDeterministicStep,
    Retry,
    error_text,
    error_type_of,
    traceback_text,
)
from taskrunner.core.loop import call_in_thread, current_caller
from taskrunner.resources.sessions import current_sink

if TYPE_CHECKING:
    from taskrunner.authoring.definition import Host, TaskDefinition
    from taskrunner.authoring.recorder import Recorder
    from taskrunner.core.model import Task
    from taskrunner.storage.engine import Statement

Reason: TypeAlias = Literal["cancel", "timeout", "stop", "lost"]

_WHY: dict[Reason, str] = {
    "cancel": "the task was cancelled: it takes no new steps",
    "timeout": "this attempt has used up its timeout: it takes no new steps",
    "stop": "the supervisor is stopping: the task goes on later, from its last recorded step",
    "lost": "the task was taken from this attempt",
}

_FINAL = (Fail, InvalidInput, InvalidResult)
"""Errors that no retry would help."""


class RunningTask:
    """An attempt under way. All but `reason` and `force_at` belongs to the event loop."""

    def __init__(
        self, task: Task, definition: TaskDefinition[Any, Any], recorder: Recorder, context: TaskContext
    ) -> None:
        self.task = task
        self.definition = definition
        self.recorder = recorder
        self.context = context
        self.scope = anyio.CancelScope()
        self._inner = anyio.CancelScope()
        self.body: object = None
        """The async task (or thread) of the body, for who asks what blocks the loop."""
        self.body_ended = False
        self.reason: Reason | None = None
        self.deadline: float | None = None
        """When its timeout is over, in seconds of the monotonic clock."""
        self.force_at: float | None = None
        """When the end is written whether the body has ended or not, in seconds of the monotonic clock."""
        self.forced = False
        """Whether the watchdog is writing the end."""
        self._result: Any = None
        self._error: BaseException | None = None

    def take_no_more(self, reason: Reason) -> None:
        """Have the body take no new steps from now on. From any thread: the loop may be blocked by this very body."""
        self.reason = reason
        self.recorder.ending = AttemptOver(_WHY[reason])

    def interrupt(self, reason: Reason) -> None:
        """Ask the body to end. The first reason counts, but for a lost task nothing else does."""
        if self.reason is None or reason == "lost":
            self.reason = reason
        if reason == "lost":
            self.recorder.end(LeaseLost())
        self.context.interrupt(AttemptOver(_WHY[reason]))
        self.scope.cancel()

    def leave_behind(self) -> None:
        """Interrupt the body no more: anyio does so at each turn of the loop, which would cost a whole processor."""
        self._inner.shield = True

    async def run(self, host: Host) -> None:
        """Run the body to its end, whatever that is; in an async task of its own, which is the body's from now on."""
        self.body = current_caller()
        enter(self.context)
        current_sink.set(self.context)
        current_host.set(host)
        try:
            with self.scope, self._inner:
                self._result = await self._call()
        except anyio.get_cancelled_exc_class() as error:  # nobody here asked for it: it came from inside the body
            self._error = RuntimeError("the body was cancelled by code of its own")
            self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - every error of a body is an end of its attempt
            self._error = error
        finally:
            if self.scope.cancelled_caught and self._error is None:
                self._error = AttemptOver(_WHY[self.reason or "stop"])
            if self.recorder.ending is None:  # what the body has left running takes no steps in its name
                self.recorder.ending = AttemptOver("the task's body has ended: it takes no new steps")
            self.body_ended = True
            self._forget()

    def _forget(self) -> None:
        """Break the circle of the async task, its context's values and all that they hold.

        Left to the garbage collector, the attempts of a busy supervisor cost it a fifth of its time.
        """
        enter(None)
        current_sink.set(None)
        self.recorder.history.end()

    async def _call(self) -> Any:  # noqa: ANN401 - as the task's function returns
        args, kwargs = self.definition.signature.decode(self.task.input)
        if self.definition.signature.wants_context:
            args = (self.context, *args)
        if self.definition.signature.is_async:
            self.recorder.history.begin()
            return await self.definition.fn(*args, **kwargs)
        with anyio.CancelScope(shield=True):  # a thread cannot be stopped: what it awaits through ctx.sync is cancelled
            result = await call_in_thread("task", self._plain, args, kwargs)
        return await result if isawaitable(result) else result

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        self.recorder.history.begin()
        self.body = current_caller()
        return self.definition.fn(*args, **kwargs)

    def ending(self) -> tuple[Statement | None, BaseException | None]:
        """How the ended attempt is to be written, and the error that it ended with; no statement: it has no say."""
        over, tasks, fence = self.recorder.over, self.recorder.store.tasks, self.recorder.fence
        if isinstance(over, NonDeterministicStep):
            return self._failed(over, None), over
        if over is not None or self.reason == "lost":
            return None, over
        if self.reason == "timeout" and (self.scope.cancel_called or self._error is not None):
            return self.timed_out(), None
        if self._error is None:
            return self._completed()
        if self.reason in {"cancel", "stop"}:
            return (tasks.cancelled if self.reason == "cancel" else tasks.release)(fence), None
        return self._failed(self._error, self._retry_in(self._error)), self._error

    def forced_ending(self) -> Statement:
        """How an attempt is written whose body has not ended in time. From any thread."""
        tasks, fence = self.recorder.store.tasks, self.recorder.fence
        if self.reason == "cancel":
            return tasks.cancelled(fence)
        return self.timed_out() if self.reason == "timeout" else tasks.release(fence)

    def timed_out(self) -> Statement:
        """The attempt has used up its timeout: run again while retries are left, whatever `retry=` says of errors."""
        error = TimeoutError(f"the attempt took longer than its timeout of {self.task.timeout:g} seconds")
        return self._failed(error, self.definition.policy.delay(error, self.task.retry_count))

    def _completed(self) -> tuple[Statement, BaseException | None]:
        recorder = self.recorder
        returns, limit = self.definition.signature.returns, self.context.max_payload
        try:
            text, _value = payload.record(self._result, returns, name="the result", error=InvalidResult, limit=limit)
        except InvalidResult as error:
            return self._failed(error, None), error
        return recorder.store.tasks.complete(recorder.fence, text), None

    def _retry_in(self, error: BaseException) -> float | None:
        """Seconds until it is run again, if it is to be: whether retries are left, the store knows.

        What a branch of a task group raised comes as a group of errors, and counts as if the body had raised it.
        """
        errors, policy, retries = list(_single_errors(error)), self.definition.policy, self.task.retry_count
        if any(
            isinstance(one, Fail | InvalidInput | InvalidResult) or not isinstance(one, Exception) for one in errors
        ):
            return None
        asked = next((one for one in errors if isinstance(one, Retry)), None)
        if asked is not None:
            return self._after(asked)
        if policy.wants(error, retries) or all(policy.wants(one, retries) for one in errors):
            return policy.delay(errors[0], retries)
        return None

    def _after(self, error: Retry) -> float:
        after = error.after
        try:
            if isinstance(after, datetime):
                return max(0.0, (aware(after, "after") - self.recorder.clock.now()).total_seconds())
            if after is not None:
                return seconds(after, "after", zero=True)
        except InvalidInput as refused:
            error.add_note(f"{refused}; the task's own wait= counts")
        return self.definition.policy.delay(error, self.task.retry_count)

    def _failed(self, error: BaseException, retry_in: float | None) -> Statement:
        return self.recorder.store.tasks.fail(
            self.recorder.fence,
            error_type=error_type_of(error),
            error_message=error_text(error),
            traceback=traceback_text(error) if error.__traceback__ is not None else None,
            retry_in=retry_in,
        )


def _single_errors(error: BaseException) -> Iterator[BaseException]:
    left = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(each.exceptions))
        else:
            yield each
