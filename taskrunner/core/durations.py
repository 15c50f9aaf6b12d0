"""Durations as users write them, and instants as the store keeps them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from taskrunner.core.errors import InvalidInput
from taskrunner.core.places import shown

Duration: TypeAlias = float | str | timedelta
"""Seconds as a number, a text such as `"90s"`, `"15m"`, `"2h"`, `"30d"` (also `"250ms"`), or a timedelta."""

MAX_SECONDS: Final = 100 * 365.25 * 86_400.0
"""The longest duration that is taken, a hundred years in seconds: `now` plus it is still a date."""

_WIDTH: Final = len("2026-01-31T12:00:00.000000Z")

_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, None: 1.0}


def seconds(value: Duration, name: str, *, zero: bool = False) -> float:
    """Turn a duration into seconds.

    `name` is the option's name, for the error; `zero` says whether 0 is taken (default: it is not).

    Raises:
        InvalidInput: not a duration, not finite, negative, zero where zero is refused, or over a hundred years.
    """
    number = _number(value, name)
    if not math.isfinite(number) or number < 0 or number > MAX_SECONDS or (number == 0 and not zero):
        rule = "0 or more" if zero else "more than 0"
        message = (
            f"{name}={shown(value)}: a duration must be {rule} and at most a hundred years, in seconds or like '90s'"
        )
        raise InvalidInput(message, path=name)
    return number


def _number(value: Duration, name: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str) and (match := _FORM.fullmatch(value)):
        return float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    message = f"{name}={shown(value)}: not a duration; write seconds, or a number with ms, s, m, h or d, such as '90s'"
    raise InvalidInput(message, path=name)


def aware(moment: datetime, name: str) -> datetime:
    """Return `moment` in UTC.

    Raises:
        InvalidInput: it has no time zone, or no UTC instant stands for it.
    """
    if not isinstance(moment, datetime):
        message = f"{name}={shown(moment)}: not a datetime"
        raise InvalidInput(message, path=name)
    if moment.tzinfo is None or moment.utcoffset() is None:
        message = f"{name}={moment.isoformat()}: a datetime needs a time zone, such as datetime.now(UTC)"
        raise InvalidInput(message, path=name)
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        message = f"{name}={moment.isoformat()}: outside the years 1 to 9999 in UTC"
        raise InvalidInput(message, path=name) from None


def after(moment: datetime, delay: float) -> datetime:
    """`moment` plus `delay` seconds, held at the last representable instant."""
    try:
        return moment + timedelta(seconds=delay)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def stamp(moment: datetime) -> str:
    """An aware UTC datetime as the store keeps it: one fixed width, so that the order of texts is the order of time."""
    text: str = msgspec.to_builtins(moment)  # an eighth of the time of isoformat; it leaves out microseconds that are 0
    return text if len(text) == _WIDTH else text[:-1] + ".000000Z"


def moment(text: str) -> datetime:
    """The aware UTC datetime of a text made by `stamp`.

    Raises:
        ValueError: the text is not an ISO 8601 instant, or it has no zone.
    """
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        message = f"{text!r} has no time zone"
        raise ValueError(message)
    return instant
