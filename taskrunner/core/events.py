"""News: the only way anything travels up from floor to floor.

Their names are nouns and past participles: EVENTS lists them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeAlias

from taskrunner.core.errors import InvalidInput
from taskrunner.core.hints import is_async
from taskrunner.core.places import shown

Listener: TypeAlias = Callable[[Mapping[str, Any]], object]

EVENTS: Final = (
    "child.lost",
    "child.started",
    "children.degraded",
    "lease.lost",
    "loop.blocked",
    "store.trouble",
    "supervisor.abandoned",
    "supervisor.buried",
    "supervisor.ready",
    "supervisor.started",
    "supervisor.stopped",
    "supervisor.stopping",
    "task.cancelled",
    "task.completed",
    "task.failed",
    "task.fenced",
    "task.leaked",
    "task.quarantined",
    "task.recovered",
    "task.released",
    "task.retried",
    "task.started",
    "task.unknown",
)
"""Every event's name."""

EVERY: Final = "*"
"""The name under which a listener hears every event."""

TROUBLE_AGAIN = 10.0
"""Seconds between two warnings of a store that cannot be used: it is tried more often, and by many."""

_log = logging.getLogger("taskrunner")


class Events:
    """Who wants to hear what. A listener's own error is logged and harms nobody else."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._troubled_at = -TROUBLE_AGAIN

    def on(self, event: str, listener: Listener) -> None:
        """Call `listener` with the fields of every `event` from now on (`"*"`: of all). It must not block.

        Raises:
            InvalidInput: there is no such event, or the listener cannot be called as a plain function.
        """
        if not isinstance(event, str) or event not in {*EVENTS, EVERY}:
            near = get_close_matches(event if isinstance(event, str) else "", EVENTS, n=1, cutoff=0)[0]
            message = f"event={shown(event)}: there is no such event; the nearest is {near}"
            raise InvalidInput(message, path="event")
        if not callable(listener) or is_async(listener):
            message = f"listener={shown(listener)}: a plain function is wanted, for nobody would await another"
            raise InvalidInput(message, path="listener")
        self._listeners[event].append(listener)

    def emit(self, event: str, /, **fields: object) -> None:
        """Tell everyone who listens. The fields are handed over with the event's name as `event`."""
        for name in (event, EVERY):
            for listener in self._listeners.get(name, ()):
                self._tell(listener, {"event": event, **fields})

    def warn(self, event: str, /, **fields: object) -> None:
        """Emit an event that somebody should see: without a listener it goes to the `taskrunner` logger."""
        if not self._listeners.get(event) and not self._listeners.get(EVERY):
            _log.warning("%s %s", event, " ".join(f"{key}={value}" for key, value in fields.items()))
        self.emit(event, **fields)

    def trouble(self, error: Exception, moment: float) -> None:
        """Warn that the store cannot be used now: `store.trouble`, once in a while, however many have met it.

        `moment` is the monotonic clock, in seconds.
        """
        if moment - self._troubled_at >= TROUBLE_AGAIN:
            self._troubled_at = moment
            self.warn("store.trouble", error=str(error))

    @staticmethod
    def _tell(listener: Listener, fields: Mapping[str, object]) -> None:
        try:
            listener(fields)
        except Exception:  # noqa: BLE001 - whatever a listener raises, the others still have to hear
            _log.exception("a listener of %s raised", fields["event"])
