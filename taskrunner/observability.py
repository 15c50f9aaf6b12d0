"""What is seen of a supervisor: structlog set up for a service, and every event of a runner as a log line.

The library itself only emits events and lets tasks log through `ctx.log`; it sets nothing up. The command
`taskrunner run` calls the two functions here, and so may any program.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog

from taskrunner import TaskRunner
from taskrunner.core.events import EVERY

_LEVELS: Final = {
    "task.failed": "error",
    "task.quarantined": "error",
    "store.trouble": "error",
    "children.degraded": "error",
    "child.lost": "warning",
    "task.retried": "warning",
    "task.recovered": "warning",
    "task.unknown": "warning",
    "task.leaked": "warning",
    "task.fenced": "warning",
    "lease.lost": "warning",
    "loop.blocked": "warning",
    "supervisor.abandoned": "warning",
    "supervisor.buried": "warning",
}
"""Events that are more than news."""


_LINES: Final = frozenset({"exception", "stack"})
"""Fields whose text has lines."""


def configure(stream: TextIO | None = None, *, level: str = "info") -> None:
    """Set structlog and the standard library's logging up to write to `stream`, by default standard error.

    On a terminal a line is made for people, elsewhere it is one JSON object. `level` is the least that is written:
    debug, info, warning, error. A stream that nobody reads any more is left alone: a task must not fail for its log.
    """
    out = cast("TextIO", _Stream(sys.stderr if stream is None else stream))
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer = _renderer(out)
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer]
    )
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(least, logging.WARNING), force=True)


def log_events(runner: TaskRunner) -> None:
    """Write a line for every event of this runner, under the event's name, such as `task.started`."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger("taskrunner")

    def write(fields: Mapping[str, Any]) -> None:
        name = str(fields["event"])
        rest = {key: value for key, value in fields.items() if key != "event"}
        getattr(log, _LEVELS.get(name, "info"))(name, **rest)

    runner.on(EVERY, write)


def _renderer(out: TextIO) -> list[structlog.typing.Processor]:
    if not out.isatty():
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=_text)]
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return [structlog.processors.format_exc_info, _neutralise, console]


def _neutralise(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Show what a terminal would obey as escapes: nothing that users' tasks say is trusted."""
    return {_harmless(name): _shown(name, value) for name, value in fields.items()}


def _shown(name: str, value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else _text(value)
    if name in _LINES:
        return "\n".join(map(_harmless, text.splitlines()))
    return _harmless(text)


def _harmless(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _text(value: object) -> str:
    """What a value says of itself; a task must not fail for a value that raises."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - anybody's __str__ or __repr__
        return f"<{type(value).__name__}>"


class _Stream:
    """A text stream that drops what it cannot write: its reader may have gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return self._stream.isatty()
        return False
