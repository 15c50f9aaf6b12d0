"""The floor's one door: a store is an engine and the verbs on it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from taskrunner.storage import guard
from taskrunner.storage.bulk import Bulk
from taskrunner.storage.journal import Journal
from taskrunner.storage.listing import Listing
from taskrunner.storage.messages import MessageStore
from taskrunner.storage.owners import Owners
from taskrunner.storage.queues import Queues
from taskrunner.storage.redactions import Redactions
from taskrunner.storage.retention import Retention
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.stats import Stats
from taskrunner.storage.tasks import TaskStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from taskrunner.core.clock import Clock
    from taskrunner.core.settings import Settings
    from taskrunner.storage.engine import Engine


class Store:
    """Tasks, steps, messages, supervisors and queues in one place, and what keeps them from growing for ever."""

    def __init__(self, engine: Engine, clock: Clock, settings: Settings) -> None:
        self.engine = engine
        self.path: Path = engine.path
        self.tasks = TaskStore(engine, clock, default_retries=settings.max_retries, default_losses=settings.max_losses)
        self.listing = Listing(engine)
        self.stats = Stats(engine)
        self.bulk = Bulk(engine, clock, self.listing)
        self.journal = Journal(engine, clock)
        self.messages = MessageStore(engine, clock)
        self.owners = Owners(engine, clock)
        self.queues = Queues(engine, clock)
        self.redactions = Redactions(engine)
        self.retention = Retention(engine)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, clock: Clock, *, writing: bool = True) -> AsyncIterator[Self]:
        """Open the store that `settings.db` names, for as long as the block runs.

        A reader (`writing=False`) creates nothing and changes nothing.

        Raises:
            StoreError: it cannot be opened; the sentence says why.
        """
        engine = await SQLiteEngine.open(
            guard.resolve(settings.db),
            clock=clock,
            busy_timeout=settings.busy_timeout,
            durability=settings.durability,
            allow_unsafe_mount=settings.allow_unsafe_mount,
            writing=writing,
        )
        try:
            yield cls(engine, clock, settings)
        finally:
            await engine.close()
