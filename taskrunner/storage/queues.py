"""The verbs of queues: pause, resume, and what is said of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskrunner.core.durations import moment, stamp
from taskrunner.core.model import Queue
from taskrunner.storage.changes import WORK
from taskrunner.storage.engine import Statement, Unit

if TYPE_CHECKING:
    from taskrunner.core.clock import Clock
    from taskrunner.storage.engine import Engine, Row


class Queues:
    """What was said of queues. A queue needs no row: it is there as soon as a task names it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def pause(self, name: str) -> None:
        """No supervisor claims from this queue from now on; its running tasks go on. Durable when it returns."""
        await self._write(name, "pause_queue")

    async def resume(self, name: str) -> None:
        """Supervisors claim from this queue again; harmless when it was not paused. Durable when it returns."""
        await self._write(name, "resume_queue", "forget_queue")

    async def is_known(self, name: str) -> bool:
        """Whether a task or a task type has this queue, or something was said of it; it may read all tasks."""
        return bool((await self._engine.read(Statement("queue_is_known", {"name": name})))[0][0])

    async def all(self) -> dict[str, Queue]:
        """The queues of which something was said, by name; a row that nobody can read is left out."""
        found = (_queue_of(row) for row in await self._engine.read(Statement("queues", {})))
        return {queue.name: queue for queue in found if queue is not None}

    async def _write(self, name: str, *statements: str) -> None:
        params = {"name": name, "now": stamp(self._clock.now())}
        await self._engine.write(Unit(tuple([Statement(each, params) for each in statements]), topics=(WORK,)))


def _queue_of(row: Row) -> Queue | None:
    name, paused_at, concurrency, running = row
    try:
        return Queue(
            name=str(name),
            paused_at=None if paused_at is None else moment(str(paused_at)),
            concurrency=None if concurrency is None else int(str(concurrency)),
            running=int(str(running)),
        )
    except ValueError:
        return None
