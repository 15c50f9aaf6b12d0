"""What a task's body holds: its steps, its progress, its session, and time and chance that are the same on replay."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import uuid6

from taskrunner.authoring.log_lines import logger_for
from taskrunner.authoring.retry import RetryOn, RetryPolicy, Wait
from taskrunner.authoring.steps import DEFAULTS, StepRunner, current_step, step_options
from taskrunner.core.bridge import Bridge, require_no_loop
from taskrunner.core.durations import Duration, moment, seconds, stamp
from taskrunner.core.errors import (
    AttemptOver,
    InvalidInput,
    LeaseLost,
    NoSession,
    NotInStep,
    NotInTask,
    TaskRunnerError,
    safe_text,
)
from taskrunner.core.loop import LoopEnded, LoopRef, acting_for
from taskrunner.core.model import Message
from taskrunner.core.payload import decode, encode, why_unsupported
from taskrunner.core.places import shown
from taskrunner.storage.rows import message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from taskrunner.authoring.recorder import Recorder
    from taskrunner.core.model import Task
    from taskrunner.resources.sessions import Session
    from taskrunner.storage.messages import NewMessage

_current: ContextVar[TaskContext | None] = ContextVar("current_task", default=None)

_NO_ARGUMENTS = ""  # the digest of a value that takes none

NO_RESOURCES: Final = object()
"""Stands for what the lifespan gives where there is none."""


class TaskContext(StepRunner):
    """The running attempt, as its body sees it. It holds capabilities, never the runner."""

    def __init__(
        self,
        task: Task,
        recorder: Recorder,
        session: Session | None,
        *,
        max_payload: int,
        loop: LoopRef,
        resources: Any = NO_RESOURCES,  # noqa: ANN401 - whatever the lifespan gives
    ) -> None:
        super().__init__(recorder, DEFAULTS, max_payload)
        self._task = task
        self._session = session
        self._loop = loop
        self._resources = resources
        self._scopes: set[anyio.CancelScope] = set()
        self._log: FilteringBoundLogger | None = None

    @classmethod
    def current(cls) -> TaskContext:
        """The context of the task in whose body (or step) this is called.

        Raises:
            NotInTask: there is none.
        """
        context = _current.get()
        if context is None:
            raise NotInTask
        return context

    @property
    def task(self) -> Task:
        """The task's row as it stood when this attempt claimed it."""
        return self._task

    @property
    def attempt(self) -> int:
        """How often the task has been claimed, this time included."""
        return self._task.attempt

    @property
    def session(self) -> Session:
        """The task's conversation. What is added to it here is written once, however often the task is run again.

        Raises:
            NoSession: the task has none.
        """
        if self._session is None:
            message = f"task {self._task.id} has no session: enqueue it with options(session_id=…)"
            raise NoSession(message)
        return self._session

    @property
    def log(self) -> FilteringBoundLogger:
        """A structlog logger that knows the task's id, type and attempt; it writes as the program has set structlog up.

        What it emits is kept in the store as well, for `taskrunner tail`: within a quarter of a second, with the next
        step or the attempt's end. A crash, an end by force, or a store that is locked or full may cost the last lines.
        An event is cut at 4,096 characters, its fields together as well, and an attempt keeps 1,000 lines.
        """
        if self._log is None:
            known = {"task_id": self._task.id, "task_type": self._task.type, "attempt": self._task.attempt}
            self._log = logger_for(known, self._recorder.lines, self._recorder.redaction)
        return self._log

    @property
    def resources(self) -> Any:  # noqa: ANN401 - whatever the lifespan gives
        """What the runner's `lifespan` gave in this process, such as a pool of connections.

        Raises:
            TaskRunnerError: the runner has no lifespan.
        """
        if self._resources is NO_RESOURCES:
            message = "ctx.resources: this runner has no lifespan, which would give it: TaskRunner(…, lifespan=…)"
            raise TaskRunnerError(message)
        return self._resources

    @property
    def sync(self) -> Bridge:
        """Awaits from a plain `def` task: `ctx.sync(ctx.step("double", double, 4))`."""
        return _TaskBridge(self._loop, self)

    @property
    def idempotency_key(self) -> str:
        """Inside a step's function: the same for every run of this step and for no other, to hand to services.

        Raises:
            NotInStep: called outside of a step's function.
        """
        step = current_step.get()
        if step is None or step.recorder is not self._recorder:
            raise NotInStep
        return step.idempotency_key

    def options(
        self,
        *,
        retry: RetryOn | None = None,
        wait: Wait | None = None,
        max_retries: int = 0,
        timeout: Duration | None = None,
        returns: Any = None,  # noqa: ANN401 - a type
        key: str | None = None,
    ) -> StepRunner:
        """Options for the step called on the answer: `await ctx.options(timeout="30s").step("fetch", fetch, url)`.

        `retry`: for which errors the function is called again (default: any), `max_retries`: how often (default 0),
        `wait`: after how long (default: exponential from 1 s to 300 s). The tries belong to an attempt: after a crash
        they start afresh. `timeout` is of one try, in seconds or like "30s". `returns`: the type of the result, where
        `fn` does not say. `key`: tells apart calls of one name from several async tasks.

        Raises:
            InvalidInput: an option is out of its bounds.
        """
        if returns is not None and (why := why_unsupported(returns)) is not None:
            message = f"returns={shown(returns)}: {why}"
            raise InvalidInput(message, path="returns")
        policy = RetryPolicy(retry, wait) if retry is not None or wait is not None else None
        limit = None if timeout is None else seconds(timeout, "timeout")
        checked = step_options(policy=policy, max_retries=max_retries, timeout=limit, returns=returns, key=key)
        return StepRunner(self._recorder, checked, self.max_payload)

    async def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the task has come: 0.0 to 1.0, and a line of text.

        It is written with the next step, or within a quarter of a second; what is shown never falls.

        Raises:
            InvalidInput: not a number from 0 to 1, or not a text.
        """
        await self._recorder.admit()
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            text = f"fraction={shown(fraction)}: a number from 0.0 to 1.0 is wanted"
            raise InvalidInput(text, path="fraction")
        if not isinstance(message, str):
            text = f"message={shown(message)}: a text is wanted"
            raise InvalidInput(text, path="message")
        self._recorder.show(float(fraction), safe_text(message))
        await anyio.lowlevel.checkpoint()

    def now(self) -> datetime:
        """The time, aware and in UTC: the same on replay, once anything recorded may depend on it.

        Inside a step it is the time itself.
        """
        return moment(self._once("ctx.now", lambda _bits: stamp(self._recorder.clock.now())))

    def random(self) -> float:
        """A random number, 0.0 <= x < 1.0: the same in every attempt of the task."""
        return float(self._once("ctx.random", lambda bits: (bits >> 75) / (1 << 53)))

    def uuid(self) -> str:
        """A new UUID (version 8): the same in every attempt of the task, so that it can be a key for a service."""
        return str(self._once("ctx.uuid", lambda bits: str(uuid6.UUID(int=bits, version=8))))

    def _once(self, name: str, make: Callable[[int], Any]) -> Any:  # noqa: ANN401 - as made
        """A value that is recorded with its caller's next write: until then, nothing in the store can depend on it.

        `make` gets 128 bits. They follow from the task's history, so what leaves the store before that write (in a step
        that dies half-way) is the same the next time.
        """
        recorder = self._recorder
        if current_step.get() is not None:
            return make(recorder.clock.bits(128))
        recorder.check()
        number = recorder.history.number(name, kind="value")
        recorded = recorder.recorded(number, _NO_ARGUMENTS)
        if recorded is not None and recorded.value is not None:
            return decode(recorded.value, Any, name=name, error=InvalidInput)
        parts = (recorder.fence.history_id, name, str(number.occurrence))
        value = make(int.from_bytes(blake2b("\x1f".join(parts).encode(), digest_size=16).digest()))
        text = encode(value, name=name, error=InvalidInput)
        recorder.postpone(number, recorder.step(number, _NO_ARGUMENTS, value=text), failure=False)
        return value

    async def add_message(self, new: NewMessage) -> Message:
        """Write a message once for all attempts: with the step that is running, else under a number of its own."""
        recorder = self._recorder
        await recorder.admit()
        step = current_step.get()
        if step is not None and step.recorder is recorder:
            if step.over:
                text = f"step {step.number.label!r} has ended without this message: await inside of it what adds one"
                raise NotInStep(text)
            keyed = _keyed(new, recorder.fence.history_id, step.write_key)
            step.writes.append(recorder.store.messages.add(keyed))
            return _unwritten(new, recorder.clock.now())
        number = recorder.history.number("session.add", kind="write")
        key = f"session.add#{number.occurrence}"
        adding = recorder.store.messages.add(_keyed(new, recorder.fence.history_id, key))
        results = await recorder.write([recorder.store.journal.fence(recorder.fence), adding], number)
        return message_of(results[-1][0])

    def interrupt(self, reason: AttemptOver) -> None:
        """Ask the attempt to end: no new steps, and what a plain `def` body awaits is cancelled. On the event loop."""
        if self._recorder.ending is None:
            self._recorder.ending = reason
        for scope in list(self._scopes):
            scope.cancel()


class _TaskBridge(Bridge):
    """A bridge whose waits end with the attempt: a thread cannot be cancelled, what it awaits can."""

    def __init__(self, loop: LoopRef, context: TaskContext) -> None:
        super().__init__(loop)
        self._context = context

    def __call__(self, coroutine: Coroutine[Any, Any, Any], /) -> Any:  # noqa: ANN401 - the coroutine's own
        """Run the coroutine on the event loop and return its result, or raise its error."""
        require_no_loop(coroutine)
        thread = threading.current_thread()

        async def guarded() -> Any:  # noqa: ANN401 - as above
            acting_for.set(thread)
            recorder, scopes = self._context._recorder, self._context._scopes  # noqa: SLF001 - one unit with its context
            with anyio.CancelScope() as scope:
                scopes.add(scope)
                try:
                    return await coroutine
                finally:
                    scopes.discard(scope)
            raise recorder.over or recorder.ending or AttemptOver("this attempt was asked to end")

        try:
            return super().__call__(guarded())
        except LoopEnded:
            coroutine.close()
            raise LeaseLost from None  # no Exception: a thread that outlived its program must not compensate


def enter(context: TaskContext | None) -> None:
    """Make this the current task of the calling async task or thread."""
    _current.set(context)


def _keyed(new: NewMessage, history_id: str, write_key: str) -> NewMessage:
    return replace(new, history_id=history_id, write_key=write_key)


def _unwritten(new: NewMessage, now: datetime) -> Message:
    return Message(
        id=new.id,
        seq=0,
        session_id=new.session_id,
        role=new.role,
        content=new.content,
        tool_calls=decode(new.tool_calls, Any, name="tool_calls", error=InvalidInput),
        tool_call_id=new.tool_call_id,
        parent_msg_id=new.parent_msg_id,
        token_count=new.token_count,
        payload=None if new.payload is None else decode(new.payload, Any, name="payload", error=InvalidInput),
        created_at=now,
    )
