"""Which errors a task is run again for, and after how long."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, TypeAlias

from tenacity import RetryCallState, Retrying
from tenacity.retry import retry_base
from tenacity.wait import wait_base, wait_chain, wait_combine, wait_exception, wait_exponential_jitter, wait_fixed

from taskrunner.authoring.options import duration
from taskrunner.core.durations import MAX_SECONDS, Duration
from taskrunner.core.errors import InvalidInput, StepFailed, class_of_name, error_type_of, name_of_type
from taskrunner.core.places import shown, type_name

RetryOn: TypeAlias = retry_base | type[Exception] | tuple[type[Exception], ...]
"""A tenacity predicate, an exception type, or several."""

Wait: TypeAlias = wait_base | Duration
"""A tenacity wait, or one fixed duration (seconds, `"90s"`, a timedelta)."""

DEFAULT_MAX_WAIT: Final = 300.0
"""Seconds between two attempts at most, where the wait does not say, or its formula overflows."""

_PROBES: Final = (1, 2, 16, 47, 1_100)  # attempt numbers, the last one beyond the reach of any float's exponent
_MAX_CAUSES: Final = 20
_MAX_ATTEMPT: Final = 100_000  # tenacity raises its base to this power, an integer of ever more digits
_DEFAULT_WAIT: Final = wait_exponential_jitter(max=DEFAULT_MAX_WAIT)
_RETRYING: Final = Retrying()


class RetryPolicy:
    """When a task that raised is run again. Both questions are answered whatever a user's predicate or wait does."""

    def __init__(self, retry: RetryOn | None = None, wait: Wait | None = None) -> None:
        """Check the two.

        `retry`: which errors (default: any `Exception`). `wait`: how long (default: exponential from 1 s to 300 s, with
        up to 1 s of jitter).

        Raises:
            InvalidInput: not a predicate or an exception type; not a wait; a wait of zero, or one that is negative,
                infinite or not a number.
        """
        self._types, self._predicate = _checked_retry(retry)
        self._wait = _checked_wait(wait)
        self._cap = _own_max(self._wait) or DEFAULT_MAX_WAIT

    def wants(self, error: BaseException, retry_count: int) -> bool:
        """Whether this error is one to run the task again for, after `retry_count` retries.

        A `StepFailed` is looked through: what counts is the error that the step's function raised. A predicate that
        raises itself says no, and leaves a note on the error.
        """
        cause = _cause_of(error)
        if self._predicate is None:
            return self._is_one_of_the_types(cause) or (cause is not error and StepFailed in self._types)
        try:
            return bool(self._predicate(_state(cause, retry_count)))
        except Exception as broken:  # noqa: BLE001 - a user's predicate may raise anything
            error.add_note(f"retry= raised {error_type_of(broken)} when it was asked about this error")
            return False

    def delay(self, error: BaseException, retry_count: int) -> float:
        """Seconds to wait before the next attempt, after `retry_count` retries: finite and never negative.

        The attempt number that tenacity sees is the retry count plus one, and 100,000 at most. Where the wait's formula
        overflows or fails, its own maximum counts if it has one, else 300 seconds.
        """
        try:
            value = float(self._wait(_state(_cause_of(error), retry_count)))
        except Exception:  # noqa: BLE001 - an overflow, or a user's own wait that fails: the task must still be retried
            return self._cap
        return max(0.0, value) if value <= MAX_SECONDS else self._cap

    def _is_one_of_the_types(self, error: BaseException) -> bool:
        if not isinstance(error, StepFailed):
            return isinstance(error, self._types)
        # A replayed step's failure: its cause is known by name alone.
        if Exception in self._types or StepFailed in self._types:
            return True
        cause = class_of_name(error.error_type)
        if cause is not None and issubclass(cause, self._types):
            return True
        return error.error_type in map(name_of_type, self._types)


def _checked_retry(retry: object) -> tuple[tuple[type[Exception], ...], retry_base | None]:
    if retry is None:
        return (Exception,), None
    if isinstance(retry, retry_base):
        if any(inspect.iscoroutinefunction(type(part).__call__) for part in _predicates(retry)):
            message = "retry: a predicate has to answer at once, and this one is asynchronous"
            raise InvalidInput(message, path="retry")
        return (), retry
    kinds = retry if isinstance(retry, tuple) else (retry,)
    if kinds and all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return kinds, None
    message = f"retry: takes exception types or a tenacity predicate, not {shown(retry)}"
    raise InvalidInput(message, path="retry")


def _checked_wait(wait: object) -> wait_base:
    if wait is None:
        return _DEFAULT_WAIT
    if isinstance(wait, int | float | str | timedelta):
        return wait_fixed(duration(wait, "wait"))
    if not isinstance(wait, wait_base):
        message = f"wait: takes a duration or a tenacity wait, not {shown(wait)}"
        raise InvalidInput(message, path="wait")
    parts = list(_waits(wait))
    for part in parts:
        _check_settings(part)
    if not any(
        isinstance(part, wait_exception) for part in parts
    ):  # its answer depends on an error that is yet to come
        for number in _PROBES:
            _probe(wait, number)
    return wait


def _check_settings(wait: object) -> None:
    if type(wait).__module__ == wait_base.__module__:  # of others we do not know what their attributes mean
        for name, value in vars(wait).items():
            if isinstance(value, int | float) and name != "increment" and not 0 <= value < math.inf:
                message = f"wait: {name}={value} of {type_name(wait)} must be 0 or more and finite"
                raise InvalidInput(message, path="wait")


def _probe(wait: wait_base, number: int) -> None:
    try:
        value: Any = wait(_state(RuntimeError("a probe"), number - 1))
    except Exception:  # noqa: BLE001 - an overflow, or a user's wait that needs another error: `delay` copes
        return
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        message = f"wait: must give more than 0 seconds, and finite ones, but gives {shown(value)} at attempt {number}"
        raise InvalidInput(message, path="wait")


def _own_max(wait: object) -> float | None:
    """The most that a wait says it gives, in seconds, where it can be known."""
    if isinstance(wait, wait_chain):
        return _own_max(wait.strategies[-1])
    if isinstance(wait, wait_combine):
        parts = [_own_max(part) for part in wait.wait_funcs]
        known = [part for part in parts if part is not None]
        return min(sum(known), MAX_SECONDS) if len(known) == len(parts) else None
    for name in ("max", "wait_fixed", "wait_random_max"):
        value = getattr(wait, name, None)
        if isinstance(value, int | float) and 0 < value <= MAX_SECONDS:
            return float(value)
    return None


def _waits(wait: object) -> Iterator[object]:
    """A wait and all that it is made of."""
    yield wait
    inner = wait.wait_funcs if isinstance(wait, wait_combine) else ()
    inner = wait.strategies if isinstance(wait, wait_chain) else inner
    for part in inner:
        yield from _waits(part)


def _predicates(retry: object) -> Iterator[object]:
    """A predicate and all that it is made of."""
    yield retry
    for part in getattr(retry, "retries", ()):
        yield from _predicates(part)


def _state(error: BaseException, retry_count: int) -> RetryCallState:
    state = RetryCallState(_RETRYING, None, (), {})
    state.attempt_number = min(retry_count + 1, _MAX_ATTEMPT)
    state.set_exception((type(error), error, error.__traceback__))
    return state


def _cause_of(error: BaseException) -> BaseException:
    for _ in range(_MAX_CAUSES):  # an error may be made its own cause
        if not isinstance(error, StepFailed) or error.__cause__ is None:
            break
        error = error.__cause__
    return error
