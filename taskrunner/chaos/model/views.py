"""What the store's questions have to answer: counts, lists in pages, who waits for what, and what is due next."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypedDict

from taskrunner.chaos.model.rows import CLAIMABLE, SUSPECT, UNTIL_RUN_AT, WAITS_FOR, Row, World
from taskrunner.core.durations import moment
from taskrunner.core.states import STATUSES
from taskrunner.storage.health import Health
from taskrunner.storage.listing import Filter, Place

if TYPE_CHECKING:
    from datetime import datetime

    from taskrunner.storage.store import Store

PAGE = 3


class Views(TypedDict):
    """The answers."""

    counts: dict[str, int]
    next_due: datetime | None
    due: dict[str, int]
    waiting: dict[str, int]
    suspects: int
    running: dict[str, int]
    asked_to_end: dict[str, set[tuple[str, int]]]
    lists: dict[str, list[str]]


async def asked(store: Store, owners: list[str]) -> Views:
    """What the store says."""
    health = Health(store.engine)
    lists: dict[str, list[str]] = {}
    for status in (None, *STATUSES):
        ids: list[str] = []
        after: Place | None = None
        while page := await store.listing.ids(Filter(status=status), limit=PAGE, after=after):
            ids += [task_id for task_id, _place, _status in page]
            after = page[-1][1]
        lists[status or "all"] = ids
    return Views(
        counts=await store.tasks.counts(),
        next_due=await store.tasks.next_due(),
        due=await health.due(),
        waiting=await health.waiting(),
        suspects=await health.suspects(),
        running=await health.running(),
        asked_to_end={owner: set(await store.tasks.cancel_requests(owner)) for owner in owners},
        lists=lists,
    )


def expected(world: World) -> Views:
    """What it has to say."""
    rows = list(world.tasks.values())
    running = [row for row in rows if row.status == "running"]
    lists = {"all": [row.id for row in sorted(rows, key=lambda row: -row.seq)]}
    for status in STATUSES:
        lists[status] = [row.id for row in sorted(rows, key=_born, reverse=True) if row.status == status]
    return Views(
        counts=dict(Counter(row.status for row in rows)),
        next_due=min((moment(row.run_at) for row in world.pending(UNTIL_RUN_AT)), default=None),
        due=dict(Counter(row.queue for row in world.pending(CLAIMABLE))),
        waiting=dict(Counter(row.waiting_for or "" for row in world.pending(WAITS_FOR))),
        suspects=sum(row.losses >= 2 for row in world.pending(CLAIMABLE, UNTIL_RUN_AT, WAITS_FOR, SUSPECT)),
        running=dict(Counter(row.lease_owner or "" for row in running)),
        asked_to_end={
            owner: {(row.id, row.attempt) for row in running if row.lease_owner == owner and row.cancel_requested_at}
            for owner in world.owners
        },
        lists=lists,
    )


def _born(row: Row) -> tuple[str, int]:
    return row.created_at, row.seq
