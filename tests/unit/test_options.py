"""Options: each is checked where it is given."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tenacity import wait_fixed

from taskrunner.authoring.definition import Tasks
from taskrunner.core.errors import InvalidInput
from tests.unit.functions import research
from tests.unit.samples import Silent

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["", "x" * 201, "a\nb", "a\x00b", "\x7f", "\ud800", 3, b"x", True, ["x"], Silent()]
HUGE = 10**5000
DURATIONS: list[Any] = [
    0,
    -1,
    math.nan,
    math.inf,
    "soon",
    "0s",
    "-1s",
    True,
    [],
    Silent(),
    HUGE,
    timedelta(-1),
    "1" * 99,
]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *[("name", value) for value in NAMES],
        *[("queue", value) for value in [*NAMES, None]],
        *[("priority", value) for value in [-1, 10, 5.0, "5", True, None, HUGE, Silent()]],
        *[("timeout", value) for value in DURATIONS],
        *[("max_retries", value) for value in [-1, 1.5, "3", True, math.inf, 1_000_001, HUGE, Silent()]],
        *[("max_losses", value) for value in [-1, 0, 1, 2, 1_001, 3.0, True, "5", HUGE]],
        *[("retry", value) for value in ["ValueError", BaseException, (), 3]],
        *[("wait", value) for value in [*DURATIONS, wait_fixed(0), len]],
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else type(value).__name__,
)
def test_a_definition_with_a_bad_option_is_refused(option: str, value: Any) -> None:  # noqa: ANN401 - anything is tried
    """Every option is checked where the task is defined: one sentence with the option's name, and no task."""
    tasks = Tasks()
    options: dict[str, Any] = {option: value}
    with pytest.raises(InvalidInput) as caught:
        tasks.task(**options)(research)
    assert caught.value.path == option
    assert option in str(caught.value)
    assert len(str(caught.value)) < 500
    assert not tasks.definitions


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize(
    ("options", "path"),
    [
        *[({"priority": value}, "priority") for value in [-1, 10, 5.0, "5", True, HUGE, Silent()]],
        *[({"queue": value}, "queue") for value in NAMES],
        *[({"unique_key": value}, "unique_key") for value in NAMES],
        *[({"idempotency_key": value}, "idempotency_key") for value in NAMES],
        *[({"session_id": value}, "session_id") for value in NAMES],
        *[({"max_retries": value}, "max_retries") for value in [-1, 1.5, True, "3", 1_000_001, HUGE]],
        *[({"timeout": value}, "timeout") for value in DURATIONS],
        *[({"delay": value}, "delay") for value in DURATIONS if value not in (0, "0s")],
        *[({"run_at": value}, "run_at") for value in [NAIVE, "2026-01-01", 3, NAIVE.min, Silent()]],
        ({"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))}, "run_at"),
        ({"delay": 1, "run_at": EPOCH}, "run_at"),
        ({"on_conflict": "ignore", "unique_key": "k"}, "on_conflict"),
        ({"on_conflict": Silent(), "unique_key": "k"}, "on_conflict"),
        ({"on_conflict": ["reuse"], "unique_key": "k"}, "on_conflict"),
        ({"on_conflict": "reject"}, "on_conflict"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_enqueue_with_a_bad_option_is_refused(options: dict[str, Any], path: str) -> None:
    """Every option of an enqueue is checked when it is given: one sentence with the option's name."""
    task = Tasks().task(research)
    with pytest.raises(InvalidInput) as caught:
        task.options(**options)
    assert caught.value.path == path
    assert path in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("unknown", ["prio", "concurrency", "rate", "deadline", "budget", "schedule"])
def test_an_unknown_option_is_an_error_of_the_call(unknown: str) -> None:
    """As Python itself says it; what later stages bring is not there yet."""
    task = Tasks().task(research)
    options: dict[str, Any] = {unknown: 1}
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{unknown}'"):
        task.options(**options)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Tasks().task(**options)
