"""What a supervisor works with, handed down its floor in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskrunner.authoring.definition import Host, TaskDefinition
    from taskrunner.core.clock import Clock
    from taskrunner.core.events import Events
    from taskrunner.core.settings import Settings
    from taskrunner.runtime.origin import Origin
    from taskrunner.storage.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """One store, the task types that are known here, and the seams."""

    store: Store
    definitions: Mapping[str, TaskDefinition[..., Any]]
    settings: Settings
    clock: Clock
    events: Events
    host: Host
    """The runner, as the bodies' own tasks see it."""
    limits: Mapping[str, int | None]
    """How many tasks of a queue may run at the same time; None lifts a limit."""
    resources: Any
    """What the runner's lifespan gave in this process."""
    origin: Origin | None = None
    """Where the runner comes from, for children to import it; needed when there are to be any."""
