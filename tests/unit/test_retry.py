"""Retries: which errors, and after how long, whatever the numbers are."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from tenacity import (
    retry_all,
    retry_always,
    retry_any,
    retry_if_exception,
    retry_if_exception_message,
    retry_if_exception_type,
    retry_if_not_exception_type,
    retry_if_result,
    retry_never,
    retry_unless_exception_type,
    wait_chain,
    wait_combine,
    wait_exception,
    wait_exponential,
    wait_exponential_jitter,
    wait_fixed,
    wait_incrementing,
    wait_none,
    wait_random,
    wait_random_exponential,
)
from tenacity.asyncio.retry import retry_if_exception as async_retry_if_exception
from tenacity.wait import wait_base

from taskrunner.authoring.retry import RetryOn, RetryPolicy, Wait
from taskrunner.core.errors import Fail, InvalidInput, StepFailed, TaskRunnerError, name_of_type
from tests.unit.samples import Silent

BOOM = RuntimeError("boom")


class Naive(wait_base):
    """A formula that takes the power before the cap, as so many do."""

    def __init__(self, cap: float) -> None:
        self.max = cap

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """5 to the power of the attempt."""
        return min(5.0**retry_state.attempt_number, self.max)


class Answers(wait_base):
    """A wait that gives what it was made with, or raises it."""

    def __init__(self, *values: object) -> None:
        self.values: tuple[Any, ...] = values

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """The next value, the last one for ever."""
        value = self.values[min(retry_state.attempt_number, len(self.values)) - 1]
        if isinstance(value, Exception):
            raise value
        return value  # type: ignore[no-any-return]


class BadResponse(Exception):
    """An error with a field that a wait may read."""

    retry_after = 7.0


def step_failed(cause: BaseException | None, name: str = "") -> StepFailed:
    """What a step raises, with the original error or, on replay, without."""
    error = StepFailed("fetch", name, "it failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("attempt", [16, 47, 1100, 5000])
@pytest.mark.parametrize(
    ("wait", "cap", "jitter"),
    [
        (None, 300, 0),
        (wait_exponential_jitter(1, max=300), 300, 0),
        (wait_exponential_jitter(max=60, exp_base=5), 60, 0),
        (wait_exponential(multiplier=1, exp_base=5, max=60), 60, 0),
        (wait_exponential(multiplier=1.5, exp_base=5.0, max=60), 60, 0),
        (wait_exponential(exp_base=5, max=timedelta(minutes=1)), 60, 0),
        (wait_random_exponential(exp_base=5, max=60), 30, 30),
        (wait_exponential(exp_base=5, max=60) + wait_random(0, 5), 62.5, 2.5),
        (wait_incrementing(start=1, increment=10, max=60), 60, 0),
        (wait_chain(wait_fixed(1), wait_exponential(exp_base=5, max=60)), 60, 0),
        (Naive(60), 60, 0),
        (60, 60, 0),
        ("1m", 60, 0),
        (timedelta(minutes=1), 60, 0),
        (wait_fixed(60), 60, 0),
    ],
    ids=lambda wait: type(wait).__name__,
)
def test_after_very_many_attempts_the_wait_is_the_cap(
    wait: Wait | None, cap: float, jitter: float, attempt: int
) -> None:
    """Attempts 16, 47 and 1100 wait for the cap, give or take the jitter, and no power overflows (B26)."""
    policy = RetryPolicy(None, wait)
    for _ in range(20):
        assert cap - jitter <= policy.delay(BOOM, attempt - 1) <= cap + jitter


@pytest.mark.parametrize(
    ("retry_count", "low", "high"), [(0, 1, 2), (1, 2, 3), (2, 4, 5), (7, 128, 129), (8, 256, 257)]
)
def test_the_default_doubles_from_one_second(retry_count: int, low: float, high: float) -> None:
    """The number of an attempt is the retry count plus one: the first wait is 1 s and up to 1 s of jitter."""
    assert low <= RetryPolicy().delay(BOOM, retry_count) <= high


@pytest.mark.parametrize("retry_count", [10**6, 10**18, 10**400], ids=["million", "trillions", "googols"])
@pytest.mark.parametrize(
    "wait",
    [
        *[None, wait_exponential(), wait_exponential(multiplier=0.1), wait_random_exponential()],
        *[wait_exponential_jitter(), wait_incrementing(1), Naive(math.inf), Naive(60)],
        *[wait_exponential() + wait_exponential(), wait_chain(Naive(60))],
    ],
    ids=lambda wait: type(wait).__name__,
)
def test_a_wait_without_an_end_never_overflows(wait: Wait | None, retry_count: int) -> None:
    """Whatever the formula gives for an absurd count, the wait is finite, and its own maximum or 300 s (B26)."""
    delay = RetryPolicy(None, wait).delay(BOOM, retry_count)
    assert 0 < delay <= 300 or isinstance(wait, wait_random_exponential | wait_incrementing)
    assert delay < 100 * 366 * 86_400


@pytest.mark.parametrize(
    "later", [math.nan, math.inf, -math.inf, -1, 10**400, "soon", None, ZeroDivisionError()], ids=type
)
def test_a_wait_that_goes_wrong_later_falls_back(later: object) -> None:
    """A user's own wait that gives nonsense after its first attempts still gives a wait, and the task goes on."""
    policy = RetryPolicy(None, Answers(*[1.0] * 1_100, later))
    assert policy.delay(BOOM, 3) == 1.0
    assert 0 <= policy.delay(BOOM, 5_000) <= 300


@pytest.mark.parametrize(
    "wait",
    [
        *[0, -1, 0.0, -0.0, math.inf, -math.inf, math.nan, "0s", "", "soon", "-5s", "1 fortnight", "9" * 5000],
        *[timedelta(0), timedelta(seconds=-1), timedelta.max, 10**400, 10**5000, True, False],
        *[wait_none(), wait_fixed(0), wait_fixed(-1), wait_fixed(math.inf), wait_fixed(math.nan)],
        *[wait_random(0, 0), wait_random(-1, 1), wait_random(0, math.inf), wait_random(math.nan, 1)],
        *[
            wait_exponential(multiplier=0),
            wait_exponential(max=0),
            wait_exponential(max=-5),
            wait_exponential(max=math.inf),
        ],
        *[
            wait_exponential_jitter(jitter=-5),
            wait_exponential_jitter(jitter=math.nan),
            wait_exponential(multiplier=-1),
        ],
        *[wait_incrementing(), wait_incrementing(start=10, increment=-1), wait_random_exponential(max=-1)],
        *[
            wait_combine(wait_fixed(1), wait_fixed(-1)),
            wait_fixed(0) + wait_fixed(0),
            wait_chain(wait_fixed(1), wait_none()),
        ],
        *[Answers(0), Answers(-3), Answers(math.nan), Answers(math.inf), Answers("soon"), Answers(None)],
        *[len, lambda: 3, [3], {}, b"3s", Silent(), object(), wait_fixed, math],
    ],
    ids=lambda wait: type(wait).__name__,
)
def test_a_wait_of_nothing_less_or_for_ever_is_refused_at_once(wait: object) -> None:
    """Zero, negative, infinite and nonsense waits are refused where the task is defined, in one sentence (B26)."""
    with pytest.raises(InvalidInput) as caught:
        RetryPolicy(None, wait)  # type: ignore[arg-type]
    assert caught.value.path == "wait"
    assert str(caught.value).startswith("wait")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "wait",
    [
        *["90s", "250ms", "1.5h", 0.01, 1, timedelta(days=30), wait_fixed(3), wait_random(1, 2), wait_random()],
        *[
            wait_exponential(),
            wait_exponential(multiplier=1, min=4, max=10),
            wait_exponential_jitter(multiplier=2, max=9),
        ],
        *[wait_random_exponential(multiplier=1, max=60), wait_incrementing(start=1, increment=2, max=9), Naive(60)],
        *[wait_fixed(1) + wait_random(0, 1), wait_chain(wait_fixed(1), wait_fixed(2)), wait_none() + wait_fixed(1)],
        *[sum([wait_fixed(1), wait_fixed(2)]), Answers(OverflowError()), Answers(1, ValueError())],
        wait_exception(lambda error: error.retry_after),  # type: ignore[attr-defined]
    ],
    ids=lambda wait: type(wait).__name__,
)
def test_what_tenacity_offers_is_taken(wait: Wait) -> None:
    """Every sane wait of tenacity, alone and combined, is taken, and gives a finite wait at any attempt."""
    policy = RetryPolicy(None, wait)
    for retry_count in (0, 1, 15, 46, 1_099):
        assert 0 <= policy.delay(BadResponse(), retry_count) < math.inf


def test_a_wait_may_look_at_the_error() -> None:
    """A wait of tenacity's that asks the error gets the one that was raised, behind a step too."""
    policy = RetryPolicy(None, wait_exception(lambda error: error.retry_after))  # type: ignore[attr-defined]
    assert policy.delay(BadResponse(), 0) == 7.0
    assert policy.delay(step_failed(BadResponse()), 0) == 7.0
    assert policy.delay(ValueError(), 0) == 300.0


@given(st.integers(0, 10**9), st.floats(0.001, 1e6), st.floats(1, 1e9), st.floats(1.01, 100))
def test_any_exponential_wait_stays_within_its_bounds(count: int, multiplier: float, most: float, base: float) -> None:
    """Never negative, never more than its maximum, never an error (B26)."""
    policy = RetryPolicy(None, wait_exponential(multiplier=multiplier, max=most, exp_base=base))
    assert 0 < policy.delay(BOOM, count) <= most


Wrap: TypeAlias = Callable[[BaseException], BaseException]

value_or_type = retry_if_exception_type(ValueError) | retry_if_exception_type(TypeError)


@pytest.mark.parametrize(
    ("retry", "yes", "no"),
    [
        (None, [ValueError(), OSError(), TimeoutError(), ExceptionGroup("g", [ValueError()])], [KeyboardInterrupt()]),
        (OSError, [OSError(), ConnectionResetError(), TimeoutError()], [ValueError()]),
        ((OSError, KeyError), [OSError(), KeyError()], [ValueError(), LookupError()]),
        (TaskRunnerError, [Fail("x")], [ValueError()]),
        (retry_if_exception_type(OSError), [TimeoutError()], [ValueError()]),
        (value_or_type, [ValueError(), TypeError()], [KeyError()]),
        (
            value_or_type & retry_if_exception_message(match="again"),
            [ValueError("again")],
            [ValueError(), KeyError("again")],
        ),
        (retry_any(value_or_type, retry_if_exception_type(OSError)), [OSError(), TypeError()], [KeyError()]),
        (
            retry_all(retry_if_exception_type(OSError), retry_if_exception_type(TimeoutError)),
            [TimeoutError()],
            [OSError()],
        ),
        (retry_if_not_exception_type(ValueError), [KeyError()], [ValueError(), UnicodeError()]),
        (retry_unless_exception_type(ValueError), [KeyError()], [ValueError()]),
        (retry_if_exception(lambda error: "busy" in str(error)), [OSError("busy")], [OSError()]),
        (retry_if_result(bool), [], [ValueError()]),
        (retry_always, [ValueError()], []),
        (retry_never, [], [ValueError()]),
    ],
    ids=lambda retry: type(retry).__name__,
)
@pytest.mark.parametrize("wrap", [lambda e: e, step_failed, lambda e: step_failed(step_failed(e))])
def test_which_errors_are_retried(retry: RetryOn | None, yes: list[Exception], no: list[Exception], wrap: Wrap) -> None:
    """Types and tenacity's predicates, alone or composed, are asked about the error, also about one behind a step."""
    policy = RetryPolicy(retry, None)
    for count in (0, 1_100):
        assert all(policy.wants(wrap(error), count) for error in yes)
        assert not any(policy.wants(wrap(error), count) for error in no)


def test_a_replayed_failure_is_known_by_its_name() -> None:
    """On replay a step's failure has no cause any more: a type still finds it by name, a general one always."""
    replayed = step_failed(None, "ValueError")
    assert RetryPolicy(ValueError).wants(replayed, 0)
    assert RetryPolicy((KeyError, ValueError)).wants(replayed, 0)
    assert not RetryPolicy(KeyError).wants(replayed, 0)
    assert RetryPolicy().wants(replayed, 0)
    assert RetryPolicy(BadResponse).wants(step_failed(None, f"{__name__}.BadResponse"), 0)
    assert RetryPolicy(StepFailed).wants(step_failed(KeyError()), 0)
    assert RetryPolicy(StepFailed).wants(step_failed(None, "KeyError"), 0)
    assert not RetryPolicy(TaskRunnerError).wants(step_failed(None, "KeyError"), 0)


@pytest.mark.parametrize(
    ("retry", "recorded", "wanted"),
    [
        (OSError, "ConnectionError", True),
        (OSError, "ConnectionResetError", True),
        (OSError, "TimeoutError", True),
        (ConnectionError, "OSError", False),
        ((KeyError, LookupError), "IndexError", True),
        (ValueError, f"{__name__}.BadResponse", False),
        (ValueError, "taskrunner.InvalidInput", True),
        (TaskRunnerError, "taskrunner.Fail", True),
        (ValueError, "json.decoder.JSONDecodeError", True),
        (OSError, "not_imported.NetError", False),
        (OSError, "", False),
        (OSError, "...", False),
        (OSError, "ConnectionError.args", False),
    ],
)
def test_a_replayed_failure_counts_as_its_base_classes_too(retry: type[Exception], recorded: str, wanted: bool) -> None:
    """`retry=OSError` decides on a recorded ConnectionError as it did the first time; nothing is imported for it."""
    before = set(sys.modules)
    assert RetryPolicy(retry).wants(step_failed(None, recorded), 0) is wanted
    assert set(sys.modules) == before


def test_a_class_that_is_not_at_hand_is_known_by_its_name() -> None:
    """A class defined inside a function is found by its very name alone."""

    class LocalError(OSError):
        pass

    replayed = step_failed(None, name_of_type(LocalError))
    assert RetryPolicy(LocalError).wants(replayed, 0)
    assert not RetryPolicy(OSError).wants(replayed, 0)


def test_a_predicate_that_raises_says_no_and_tells() -> None:
    """The task fails with its own error, and a note says that the predicate is broken."""
    error = OSError("the real one")
    policy = RetryPolicy(retry_if_exception(lambda error: error.status > 500))  # type: ignore[attr-defined]
    assert not policy.wants(error, 0)
    assert error.__notes__ == ["retry= raised AttributeError when it was asked about this error"]


async def never(error: BaseException) -> bool:
    """A predicate that has to be awaited."""
    raise error


@pytest.mark.parametrize(
    "retry",
    [
        *[
            (),
            [],
            ["ValueError"],
            "ValueError",
            ValueError("x"),
            BaseException,
            KeyboardInterrupt,
            (ValueError, SystemExit),
        ],
        *[(ValueError, "x"), 3, True, object(), Silent(), len, lambda: True, int, [ValueError]],
        *[
            async_retry_if_exception(never),
            retry_never | async_retry_if_exception(never),
        ],
        retry_any(retry_never, async_retry_if_exception(never)),
    ],
    ids=lambda retry: type(retry).__name__,
)
def test_what_is_no_rule_for_errors_is_refused_at_once(retry: object) -> None:
    """Not an exception type, one that must not be caught, nothing at all, or a predicate that has to be awaited."""
    with pytest.raises(InvalidInput) as caught:
        RetryPolicy(retry)  # type: ignore[arg-type]
    assert caught.value.path == "retry"
    assert len(str(caught.value)) < 200
