"""Steps: run a function until its result is recorded, then never again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import blake2b
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, overload

import anyio
import msgspec

from taskrunner.authoring.retry import RetryPolicy
from taskrunner.core import payload
from taskrunner.core.errors import (
    AmbiguousStep,
    Fail,
    InvalidInput,
    InvalidResult,
    NonDeterministicStep,
    Retry,
    StepFailed,
    error_text,
    error_type_of,
    name_of_type,
)
from taskrunner.core.hints import is_async
from taskrunner.core.loop import call_in_thread
from taskrunner.core.places import shown

if TYPE_CHECKING:
    from taskrunner.authoring.history import Number
    from taskrunner.authoring.recorder import Recorder
    from taskrunner.core.model import Step
    from taskrunner.storage.engine import Statement

P = ParamSpec("P")
T = TypeVar("T")

MAX_NAME = 200
"""Characters of a step's name or key at most."""

_FAIL = name_of_type(Fail)

_SEPARATOR = "\x1f"  # no name of a step holds it: they are printable


class StepScope(msgspec.Struct):
    """The step whose function is running: its key for the outside world, and the writes that join its commit."""

    recorder: Recorder
    number: Number
    writes: list[Statement] = []
    over: bool = False
    """Whether this run of the function has ended: what it has left running joins no commit."""

    @property
    def idempotency_key(self) -> str:
        """The same for every run of this step, and for no other step: 32 hexadecimal digits."""
        parts = (self.recorder.fence.history_id, *self._identity)
        return blake2b(_SEPARATOR.join(parts).encode(), digest_size=16).hexdigest()

    @property
    def write_key(self) -> str:
        """What the next write that joins this step's commit is known by, within the task's history."""
        return _SEPARATOR.join((*self._identity, str(len(self.writes))))

    @property
    def _identity(self) -> tuple[str, str, str]:
        return (self.number.scope, self.number.name, str(self.number.occurrence))


current_step: ContextVar[StepScope | None] = ContextVar("current_step", default=None)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step runs. Durations are in seconds."""

    policy: RetryPolicy | None = None
    max_retries: int = 0
    timeout: float | None = None
    returns: Any = payload.UNTYPED
    key: str = ""


DEFAULTS: Final = StepOptions()


class StepRunner:
    """`step`, with the options given.

    It is a plain function that returns a coroutine: the step's number is taken when it is called, so concurrent steps
    are numbered in program order, whatever the event loop does.
    """

    def __init__(self, recorder: Recorder, options: StepOptions, max_payload: int) -> None:
        self._recorder = recorder
        self._options = options
        self.max_payload = max_payload
        """Bytes of JSON that a step's value may have."""

    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run `fn(*args, **kwargs)` until its result is recorded, then never again: later attempts get the record.

        The value is always the one decoded from the record, the first time too: by `options(returns=…)`, else by `fn`'s
        return annotation, else as plain JSON. A plain function runs in a thread.

        Raises:
            StepFailed: `fn` raised (its error is the `__cause__`, the first time); so does every replay, if the body
                caught it and went on. `Retry` and `Fail` pass through.
            InvalidResult: the result has no JSON form, or does not fit the annotation.
            AmbiguousStep: the name is used from several async tasks without a key, or inside another step.
            LeaseLost: the task was taken from this attempt (a BaseException, as is the next).
            NonDeterministicStep: the body does not take the steps that are recorded.
        """
        name = _name(name, "name")
        if not callable(fn):
            message = f"step {name!r}: fn={shown(fn)} is not a function (pass the function itself and its arguments)"
            raise InvalidInput(message, path="fn")
        if current_step.get() is not None:
            message = f"step {name!r} is called inside another step: a replay skips that one, and this one with it"
            raise AmbiguousStep(message)
        number = self._recorder.history.number(name, self._options.key)
        return self._take(number, fn, args, kwargs)

    async def _take(self, number: Number, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as fn returns
        recorder = self._recorder
        if recorder.over is not None:
            await recorder.admit()
        digest = payload.digest(args, kwargs)
        returns = payload.returns_of(fn) if self._options.returns is payload.UNTYPED else self._options.returns
        recorded = recorder.recorded(number, digest)
        for witness in recorder.witnesses:
            witness(recorder.fence, number, fn, digest, recorded)
        if recorded is not None:
            return self._replay(number, recorded, returns)
        if recorder.over is not None or recorder.ending is not None:
            await recorder.admit(new_step=True)
        try:
            result, writes = await self._run(number, fn, args, kwargs)
        except Retry:
            raise
        except Exception as error:
            failed = StepFailed(number.label, error_type_of(error), recorder.redaction.text(error_text(error)))
            described = (failed.error_type, failed.details)
            if isinstance(error, Fail):
                described = (_FAIL, failed.details.removeprefix(f"{failed.error_type}: "))
            recorder.postpone(number, recorder.step(number, digest, value=None, failure=described), failure=True)
            if isinstance(error, Fail):
                raise
            raise failed from error
        what = f"the result of step {number.label!r}"
        text, value = payload.record(result, returns, name=what, error=InvalidResult, limit=self.max_payload)
        if recorder.redaction.is_active:
            recorder.redaction.learn({number.name: payload.decode(text, Any, name=what, error=InvalidResult)})
        await recorder.write([recorder.step(number, digest, value=text), *writes], number)
        recorder.step_recorded()
        return value

    def _replay(self, number: Number, recorded: Step, returns: Any) -> Any:  # noqa: ANN401 - as fn returns
        if recorded.value is None:
            if recorded.error_type == _FAIL:
                raise Fail(recorded.error or "")
            raise StepFailed(number.label, recorded.error_type or "", recorded.error or "")
        what = f"the recorded result of step {number.label!r}"
        try:
            return payload.decode(recorded.value, returns, name=what, error=InvalidResult)
        except InvalidResult as error:
            message = f"{error} (its code has changed since it was recorded)"
            raise self._recorder.end(NonDeterministicStep(message)) from None

    async def _run(
        self, number: Number, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Statement]]:
        """Run the function, again after errors as the options say: its result, and the writes that join its commit.

        The waits between are not recorded. Each run has its own scope: a thread of one that was given up goes on.
        """
        options = self._options
        retries = 0
        while True:
            scope = StepScope(self._recorder, number)
            token = current_step.set(scope)
            try:
                if options.timeout is None:
                    return await _call(fn, args, kwargs), scope.writes
                return await _call_within(options.timeout, number.label, fn, args, kwargs), scope.writes
            except (Retry, Fail):
                raise
            except Exception as error:
                policy = options.policy or RetryPolicy()
                if retries >= options.max_retries or not policy.wants(error, retries):
                    raise
                delay = policy.delay(error, retries)
                retries += 1
            finally:
                current_step.reset(token)
                scope.over = True
            await anyio.sleep(delay)
            await self._recorder.admit(new_step=True)


async def _call_within(
    timeout: float,  # noqa: ASYNC109 - the step's own option
    label: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:  # noqa: ANN401 - as fn returns
    result: Any = None
    done = False
    with anyio.move_on_after(timeout):
        result = await _call(fn, args, kwargs)
        done = True
    if not done:
        message = f"step {label!r} took longer than its timeout of {timeout:g} seconds"
        raise TimeoutError(message)
    return result


async def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as fn
    result = fn(*args, **kwargs) if is_async(fn) else await call_in_thread("step", fn, *args, **kwargs)
    if type(result) is CoroutineType:  # what nearly all give, seen at once
        return await result
    return await result if isawaitable(result) else result


def _name(value: object, what: str) -> str:
    """A step's name or key: a text that the store can hold.

    Raises:
        InvalidInput: empty, too long, or with characters that cannot be stored.
    """
    if not isinstance(value, str) or not value or len(value) > MAX_NAME or not value.isprintable():
        message = f"{what}={shown(value)}: a step's {what} is a printable text of 1 to {MAX_NAME} characters"
        raise InvalidInput(message, path=what)
    return value


def step_options(
    *,
    policy: RetryPolicy | None,
    max_retries: int,
    timeout: float | None,
    returns: Any,  # noqa: ANN401 - any annotation
    key: str | None,
) -> StepOptions:
    """Check a step's options.

    Raises:
        InvalidInput: one of them is out of its bounds.
    """
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        message = f"max_retries={shown(max_retries)}: a number of 0 or more is wanted"
        raise InvalidInput(message, path="max_retries")
    shape = payload.UNTYPED if returns is None else returns
    return StepOptions(policy, max_retries, timeout, shape, "" if key is None else _name(key, "key"))
