"""What a body says through `ctx.log`: emitted as the program has configured structlog, and kept for `taskrunner tail`.

Kept is what was emitted, so neither what the level filters out nor what a processor drops; and as the last processor
got it, so that what an earlier one has hidden stays hidden. Nothing here waits, and nothing here may fail: a line is
worth less than the task that says it.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from taskrunner.core.durations import stamp
from taskrunner.core.errors import error_text, safe_text
from taskrunner.core.places import shown
from taskrunner.core.redaction import Redaction
from taskrunner.core.traces import traceback_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from structlog.typing import EventDict, FilteringBoundLogger

    from taskrunner.core.clock import Clock

MOST_LINES: Final = 1_000
"""Lines that are kept of an attempt."""

MOST_TEXT: Final = 4_096
"""Characters that are kept of an event, and of all its fields together."""

_SLACK: Final = 64
"""Characters by which a text may be longer that says of itself that it was cut."""

_LONGEST: Final = 1_000_000
"""Characters of an event or a traceback that are looked through."""

_ADDED: Final = ("level", "timestamp")
"""What processors add of which a row has columns of its own."""

Line: TypeAlias = "tuple[str, str, str, str]"
"""When, at what level, what, and with which fields, as JSON text."""


class LogLines:
    """The lines of one attempt that wait for the next write. For any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._numbers = count()
        self.waiting: deque[Line] = deque()

    def keep(self, level: str, event: object, fields: Mapping[str, Any]) -> None:
        """Keep a line; the first one that is too many says so, and those behind it are gone."""
        number = next(self._numbers)
        if number < MOST_LINES:
            text = safe_text(_text(event), MOST_TEXT)
            self.waiting.append((stamp(self._clock.now()), safe_text(level, _SLACK), text, _fields(fields)))
        elif number == MOST_LINES:
            text = f"this attempt has logged {MOST_LINES:,} lines: those that follow are not kept here"
            self.waiting.append((stamp(self._clock.now()), "warning", text, "{}"))

    def take(self) -> list[Line]:
        """All that waits."""
        return [self.waiting.popleft() for _ in range(len(self.waiting))]

    def put_back(self, lines: Sequence[Line]) -> None:
        """Have lines wait again that could not be written."""
        self.waiting.extendleft(reversed(lines))


def logger_for(known: Mapping[str, object], lines: LogLines, redaction: Redaction) -> FilteringBoundLogger:
    """The program's own structlog logger, with what is known of the attempt; its lines are kept as well."""
    import structlog  # it loads rich when that is there: 0.1 s that only who logs has to wait for

    tee = _Tee(structlog.get_config()["processors"], known, lines, redaction)
    logger = structlog.wrap_logger(None, processors=[tee], logger_factory_args=("taskrunner.task",))
    bound: FilteringBoundLogger = logger.bind(**known)
    return bound


class _Tee:
    """Stands for the configured processors: the very list, which `structlog.testing.capture_logs` changes in place."""

    def __init__(
        self,
        processors: Sequence[Callable[..., Any]],
        known: Mapping[str, object],
        lines: LogLines,
        redaction: Redaction,
    ) -> None:
        self._processors = processors
        self._redaction = redaction
        self._known = known
        self._lines = lines

    def __call__(self, logger: Any, name: str, event_dict: EventDict) -> Any:  # noqa: ANN401 - as structlog has them
        given, told = frozenset(event_dict), event_dict
        last = len(self._processors) - 1
        if not self._processors and self._redaction.is_active:
            told = self._redacted(event_dict)
        for place, processor in enumerate(self._processors):
            if place == last and self._redaction.is_active:
                event_dict = self._redacted(event_dict)
            if isinstance(event_dict, dict):
                told = event_dict.copy()
            event_dict = processor(logger, name, event_dict)
        fields = {key: value for key, value in told.items() if key in given or key not in _ADDED}
        for key, value in self._known.items():
            if fields.get(key) is value:
                del fields[key]
        if (error := _error(fields.pop("exc_info", None))) is not None:
            fields["exception"] = error
        self._lines.keep(name, fields.pop("event", ""), fields)
        return event_dict

    def _redacted(self, event_dict: EventDict) -> EventDict:
        """A line as it may be seen: what earlier processors have added to it, too, such as an error's traceback."""
        redaction, seen = self._redaction, dict(event_dict)
        error = _error_of(seen.pop("exc_info", None))
        if error is not None:
            seen["exception"] = traceback_text(error)
        texts = {name: seen.pop(name) for name in ("event", "exception", "stack") if name in seen}
        ours = {name: seen.pop(name) for name, value in self._known.items() if seen.get(name) is value}
        ours |= {name: seen.pop(name) for name in _ADDED if name in seen}
        redaction.learn(seen)
        hidden = redaction.value(seen) if seen else {}
        ours |= hidden if isinstance(hidden, dict) else {"fields": hidden}
        return ours | {name: redaction.text(safe_text(_text(text), _LONGEST)) for name, text in texts.items()}


def _fields(fields: Mapping[str, Any]) -> str:
    """All the fields as one JSON object, within the bound."""
    parts: list[str] = []
    room = MOST_TEXT
    for name, given in fields.items():
        if room <= 0:
            parts.append(f'"…":"{len(fields) - len(parts)} more"')
            break
        value = safe_text(given, room) if type(given) is str else given
        text = _json(value)
        if len(text) > room + _SLACK:
            text = _json(f"{text[:room]}…")
        parts.append(f"{_json(safe_text(name, _SLACK))}:{text}")
        room -= len(parts[-1])
    return "{" + ",".join(parts) + "}"


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_text).decode()
    except Exception:  # noqa: BLE001 - endless, too large a number, or its own methods raise anything
        return msgspec.json.encode(safe_text(_text(value), MOST_TEXT)).decode()


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything
        return shown(value)


def _error(exc_info: object) -> str | None:
    """What of an error is kept where the last processor would have printed its traceback."""
    error = _error_of(exc_info)
    return None if error is None else error_text(error)


def _error_of(exc_info: object) -> BaseException | None:
    error = exc_info[1] if isinstance(exc_info, tuple) and len(exc_info) > 1 else exc_info
    error = sys.exc_info()[1] if error is True else error
    return error if isinstance(error, BaseException) else None
