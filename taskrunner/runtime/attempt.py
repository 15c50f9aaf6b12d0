"""One attempt: run the body once, and write how it ended.

Whatever happens inside, the end is decided here, and written under the fence: a body that was fenced out meanwhile has
no say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

import anyio

from taskrunner.authoring.context import TaskContext, enter
from taskrunner.authoring.definition import current_host
from taskrunner.authoring.history import History
from taskrunner.authoring.recorder import Recorder
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
)
from taskrunner.core.loop import LoopRef, call_in_thread, current_caller, here_only
from taskrunner.resources.sessions import Session, current_sink
from taskrunner.runtime.watched import WHY, Watched

if TYPE_CHECKING:
    from taskrunner.authoring.definition import Host, TaskDefinition
    from taskrunner.core.clock import Clock
    from taskrunner.core.model import Task
    from taskrunner.runtime.watched import Reason
    from taskrunner.storage.engine import Statement
    from taskrunner.storage.store import Store

_FINAL = (Fail, InvalidInput, InvalidResult)
"""Errors that no retry would help."""


class RunningTask(Watched):
    """An attempt whose body runs in this process."""

    def __init__(
        self,
        task: Task,
        definition: TaskDefinition[Any, Any],
        recorder: Recorder,
        context: TaskContext,
        host: Host,
    ) -> None:
        super().__init__(task, definition, recorder.store.tasks)
        self.recorder = recorder
        self.context = context
        self.scope = anyio.CancelScope()
        self._inner = anyio.CancelScope()
        self._host = host
        self._result: Any = None
        self._error: BaseException | None = None

    def seen(self, text: str) -> str:
        """A text of the body's as people may see it: without what its runner hides."""
        return self.recorder.redaction.text(text)

    def take_no_more(self, reason: Reason) -> None:
        """Have the body take no new steps from now on. From any thread: the loop may be blocked by this very body."""
        self.reason = reason
        self.recorder.ending = AttemptOver(WHY[reason])

    def interrupt(self, reason: Reason) -> None:
        """Ask the body to end. The first reason counts, but for a lost task nothing else does."""
        if self.reason is None or reason == "lost":
            self.reason = reason
        if reason == "lost":
            self.recorder.end(LeaseLost())
        self.context.interrupt(AttemptOver(WHY[reason]))
        self.scope.cancel()

    def force(self) -> None:
        """Do nothing: Python cannot stop a thread, nor code that ignores its cancellation."""

    def let_go(self) -> None:
        """Fence the body out, and interrupt it no more: anyio does so at each turn of the loop."""
        self.recorder.end(LeaseLost())
        if not self.body_ended:
            self._inner.shield = True

    def when_it_records(self, tell: Callable[[], None]) -> None:
        """Have `tell` called once when a step of this attempt is in the store."""
        self.recorder.on_first_step = tell

    async def run(self) -> None:
        """Run the body to its end, whatever that is; in an async task of its own, which is the body's from now on."""
        self.body = current_caller()
        enter(self.context)
        current_sink.set(self.context)
        current_host.set(self._host)
        try:
            with self.scope, self._inner:
                self._result = await self._call()
        except anyio.get_cancelled_exc_class() as error:  # nobody here asked for it: it came from inside the body
            self.was_cancelled = True
            self._error = RuntimeError("the body was cancelled by code of its own")
            self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - every error of a body is an end of its attempt
            self._error = error
        finally:
            if self.scope.cancelled_caught and self._error is None:
                self._error = AttemptOver(WHY[self.reason or "stop"])
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
            with here_only():
                return await self.definition.fn(*args, **kwargs)
        with anyio.CancelScope(shield=True):  # a thread cannot be stopped: what it awaits through ctx.sync is cancelled
            result = await call_in_thread("task", self._plain, args, kwargs)
        return await result if isawaitable(result) else result

    def _plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        self.recorder.history.begin()
        self.body = current_caller()
        with here_only():
            return self.definition.fn(*args, **kwargs)

    def ending(self) -> tuple[Statement | None, list[Statement]]:
        """How the ended attempt is to be written, and what it still has to write; no statement: it has no say."""
        statement = self._ending()
        if statement is None:
            return None, []
        before = self.recorder.take_pending() if statement.name == "complete" else []
        return statement, [*before, *self.recorder.take_shown()]

    def take_shown(self) -> list[Statement]:
        """The progress and the log that no step has carried along; nothing once the end carries them."""
        return [] if self.body_ended else self.recorder.take_shown()

    def _ending(self) -> Statement | None:
        over, fence = self.recorder.over, self.recorder.fence
        if isinstance(over, NonDeterministicStep):
            return self.failed(over, None)
        if over is not None or self.reason == "lost":
            return None
        if self.reason == "timeout" and (self.scope.cancel_called or self._error is not None):
            return self.timed_out()
        if self._error is None:
            return self._completed()
        if self.reason in {"cancel", "stop"}:
            return (self.tasks.cancelled if self.reason == "cancel" else self.tasks.release)(fence)
        return self.failed(self._error, self._retry_in(self._error))

    def _completed(self) -> Statement:
        recorder = self.recorder
        returns, limit = self.definition.signature.returns, self.context.max_payload
        try:
            text, _value = payload.record(self._result, returns, name="the result", error=InvalidResult, limit=limit)
        except InvalidResult as error:
            return self.failed(error, None)
        return self.tasks.complete(recorder.fence, text)

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


class Here:
    """This process, as the place where bodies run."""

    is_ready = True
    shields = False

    def __init__(self, store: Store, clock: Clock, host: Host, max_payload: int, resources: object) -> None:
        self._store = store
        self._clock = clock
        self._host = host
        self._max_payload = max_payload
        self._resources = resources
        self._loop = LoopRef()

    async def prepare(self, task: Task, definition: TaskDefinition[Any, Any]) -> RunningTask:
        """An attempt with the steps that earlier ones have recorded, ready to run.

        Raises:
            TaskRunnerError: its rows are odd, or its session is gone; so do ValueError and TypeError.
        """
        recorded = await self._store.journal.steps(task.history_id) if task.attempt > 1 else []
        redaction = self._host.redaction
        if redaction.is_active:
            redaction = redaction.apart(task.input, *({step.name: _plain(step.value)} for step in recorded))
        recorder = Recorder(self._store, task.fence, self._clock, History(recorded), redaction)
        session = None
        if task.session_id is not None:
            row = await self._store.messages.session(task.session_id)
            session = Session(row, lambda: self._store)
        limit, resources = self._max_payload, self._resources
        context = TaskContext(task, recorder, session, max_payload=limit, loop=self._loop, resources=resources)
        return RunningTask(task, definition, recorder, context, self._host)

    def let_go(self) -> None:
        """Do nothing: here is always room."""


def _plain(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):  # something else wrote it: who needs it will say so
        return None


def _single_errors(error: BaseException) -> Iterator[BaseException]:
    left = [error]
    while left:
        each = left.pop()
        if isinstance(each, BaseExceptionGroup):
            left.extend(reversed(each.exceptions))
        else:
            yield each
