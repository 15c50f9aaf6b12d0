"""Times as people write them on the command line."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from taskrunner.core.clock import Clock
from taskrunner.core.durations import aware, seconds
from taskrunner.core.errors import InvalidInput


def instant_of(text: str, option: str, or_else: str = "") -> datetime:
    """The instant of an ISO 8601 text with a time zone; `or_else` names what else the option takes.

    Raises:
        InvalidInput: the text is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{option}={text!r}: write {or_else}an ISO 8601 time with a time zone, such as 2030-01-31T09:00Z"
        raise InvalidInput(message, path=option) from error
    if moment.tzinfo is None:
        whole = f"{text}Z" if ":" in text else f"{moment:%Y-%m-%d}T09:00Z"
        message = f"{option}={text!r}: a time needs its hour and its time zone: write {whole}"
        raise InvalidInput(message, path=option)
    return moment


def past_of(text: str, option: str) -> datetime:
    """The instant of a text as `instant_of` reads it, or of a duration such as `2h`: so long ago.

    Raises:
        InvalidInput: the text is neither.
    """
    ago: float | None = None
    with suppress(InvalidInput):
        ago = seconds(text, option, zero=True)
    if ago is not None:
        return Clock().now() - timedelta(seconds=ago)
    return aware(instant_of(text, option, "how long ago it was, such as 2h, or "), option)
