"""The verbs of supervisors: register, beat, bury the dead, and say which task types exist."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from taskrunner.core.durations import stamp
from taskrunner.storage.changes import OWNERS, WORK
from taskrunner.storage.engine import Statement, Unit, json_of
from taskrunner.storage.rows import supervisor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from taskrunner.core.clock import Clock
    from taskrunner.core.model import SupervisorRow, TaskType
    from taskrunner.storage.engine import Engine, Outcome, Value

NANOSECONDS = 1_000_000_000
ENDED_KEPT = timedelta(days=30)
"""How long the row of an ended supervisor is kept: `show` names it as the owner of past attempts."""


class Owners:
    """Supervisors and their leases, which are judged by the monotonic clock of one boot."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    async def register(
        self,
        row: SupervisorRow,
        version: str,
        lease: float,
        types: Iterable[TaskType],
        limits: Mapping[str, int | None] | None = None,
    ) -> None:
        """Store a supervisor that lives for `lease` seconds from now, the types that it runs, and its queues' limits.

        A limit is how many tasks of the queue may run at the same time; None lifts it.
        """
        now = stamp(row.started_at)
        me: dict[str, Value] = {
            "id": row.id,
            "boot_id": row.boot_id,
            "pid": row.pid,
            "pid_namespace": row.pid_namespace,
            "start_time": row.start_time,
            "host": row.host,
            "lock_name": row.lock_name,
            "bell": row.bell,
            "version": version,
            "expires_at": self._expiry(lease),
            "now": now,
        }
        forget = Statement("forget_supervisors", {"before": stamp(row.started_at - ENDED_KEPT)})
        known = [Statement("register_type", {**_type(kind), "now": now}) for kind in types]
        limited = [
            Statement("limit_queue", {"name": queue, "concurrency": most, "now": now})
            for queue, most in (limits or {}).items()
        ]
        first = Statement("register_supervisor", me, expect_rows=1)
        topics = (OWNERS, WORK) if limited else (OWNERS,)
        await self._engine.write(Unit((first, forget, *known, *limited), topics=topics))

    def keep_beating(
        self, supervisor_id: str, lease: float, interval: float, told: Callable[[Outcome], None]
    ) -> Callable[[], None]:
        """Renew the lease every `interval` seconds from the writer's thread, until the answer is called.

        Each outcome is told in that thread.
        """

        def make() -> Unit:
            now: dict[str, Value] = {
                "id": supervisor_id,
                "expires_at": self._expiry(lease),
                "now": stamp(self._clock.now()),
            }
            return Unit((Statement("beat", now, expect_rows=1),))

        return self._engine.beat(interval, make, told)

    async def bury(
        self, dead: Sequence[tuple[str, str]], *, boot_id: str, me: str, monotonic: float
    ) -> list[tuple[str, str]]:
        """End the rows of owners that were judged dead (id and how), and of those of this boot whose lease ran out.

        `monotonic` is the clock as it stood when the sweep began. Returns whom it ended, and how: not those
        whom somebody else has buried meanwhile.
        """
        now = stamp(self._clock.now())
        judged = [Statement("bury", {"id": owner, "how": how, "now": now}) for owner, how in dead]
        expired: dict[str, Value] = {
            "boot_id": boot_id,
            "self": me,
            "now": now,
            "monotonic": int(monotonic * NANOSECONDS),
        }
        results = await self._engine.write(Unit((*judged, Statement("bury_expired", expired)), topics=(WORK,)))
        return [(str(owner), str(how)) for rows in results for owner, how in rows]

    async def retire(self, supervisor_id: str) -> None:
        """End one's own row, at a clean stop."""
        params = {"id": supervisor_id, "how": "it was stopped", "now": stamp(self._clock.now())}
        none_left = _children(supervisor_id, ())
        await self._engine.write(Unit((Statement("bury", params), none_left), topics=(WORK,)))

    async def record_children(self, supervisor_id: str, children: Iterable[tuple[int, int]]) -> None:
        """Write down the children of a supervisor, by pid and start time: what it may leave behind when it dies."""
        await self._engine.write(Unit((_children(supervisor_id, children),)))

    async def left_children(self) -> list[tuple[SupervisorRow, list[tuple[int, int]]]]:
        """The ended supervisors that may have left children behind, and those; what nobody can read is no help."""
        found: list[tuple[SupervisorRow, list[tuple[int, int]]]] = []
        for *row, children in await self._engine.read(Statement("left_children", {})):
            with suppress(ValueError, TypeError, msgspec.MsgspecError):
                found.append(
                    (supervisor_of(tuple(row)), msgspec.json.decode(str(children), type=list[tuple[int, int]]))
                )
        return found

    async def living(self) -> list[SupervisorRow]:
        """The supervisors whose row has not ended; one that something else wrote, and nobody can read, is no help."""
        return await self._readable(Statement("living_supervisors", {}))

    async def all(self, limit: int = 100) -> list[SupervisorRow]:
        """The newest supervisors, living and ended, but for rows that nobody can read."""
        return await self._readable(Statement("supervisors", {"limit": limit}))

    async def _readable(self, statement: Statement) -> list[SupervisorRow]:
        rows: list[SupervisorRow] = []
        for row in await self._engine.read(statement):
            with suppress(ValueError, TypeError):
                rows.append(supervisor_of(row))
        return rows

    def _expiry(self, lease: float) -> int:
        return int((self._clock.monotonic() + lease) * NANOSECONDS)


def _children(supervisor_id: str, children: Iterable[tuple[int, int]]) -> Statement:
    return Statement("record_children", {"id": supervisor_id, "children": json_of(list(children))})


def _type(kind: TaskType) -> dict[str, str | int | float | None]:
    return {
        "name": kind.name,
        "queue": kind.queue,
        "priority": kind.priority,
        "max_retries": kind.max_retries,
        "timeout": kind.timeout,
        "max_losses": kind.max_losses,
    }
