"""News: the only way anything travels up from floor to floor.

Names are nouns and past participles: `task.started`, `task.completed`, `task.retried`, `task.failed`,
`task.cancelled`, `task.released`, `task.recovered`, `task.quarantined`, `task.fenced`, `task.leaked`, `task.unknown`,
`loop.blocked`, `supervisor.started`, `supervisor.stopping`, `supervisor.stopped`, `supervisor.buried`, `lease.lost`,
`store.trouble`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Listener: TypeAlias = Callable[[Mapping[str, Any]], object]

EVERY = "*"
"""The name under which a listener hears every event."""

TROUBLE_AGAIN = 5.0
"""Seconds between two warnings of a store that cannot be used: it is tried more often, by many, for as long as it lasts."""

_log = logging.getLogger("taskrunner")


class Events:
    """Who wants to hear what. A listener's own error is logged and harms nobody else."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._troubled_at = -TROUBLE_AGAIN

    def on(self, event: str, listener: Listener) -> None:
        """Call `listener` with the fields of every `event` from now on (`"*"`: of all). It must not block."""
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
