"""Several supervisors in one program: each keeps its own lease."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from taskrunner import TaskContext
from taskrunner.runtime import leases
from tests.integration.machine import Heard, quick, sql, until
from tests.unit.processes import owner


async def test_a_drain_beside_a_pool_takes_nothing_from_it(db: Path) -> None:
    """`drain()` while `working()`: when it ends, the pool's lease goes on, and a task that runs longer is run once."""
    runner = quick(db, lease=1, heartbeat=0.2)
    heard = Heard(runner)

    @runner.task
    async def long(seconds: float) -> str:
        await anyio.sleep(seconds)
        return "done"

    watching = quick(db, lease=1, heartbeat=0.2)  # it would take over what it sees without a living owner
    async with watching.working(queues=["nothing"]), runner.working():
        first = await long.enqueue(2.5)
        await anyio.sleep(0.2)
        assert await runner.drain() == 0
        assert await first.result(timeout=10) == "done"
        assert (await first.task()).attempt == 1
    assert heard.of("lease.lost") == []
    assert sql(db, "SELECT sum(losses) FROM tasks") == [[0]]


async def test_two_pools_of_one_runner(db: Path) -> None:
    """One for each kind of queue, on one store: both beat, both run, neither disturbs the other's end."""
    runner = quick(db, lease=1, heartbeat=0.2)
    heard = Heard(runner)
    owners: dict[str, set[str]] = {}

    @runner.task
    async def long(ctx: TaskContext) -> None:
        owners.setdefault(ctx.task.queue, set()).add(ctx.task.lease_owner or "")
        await anyio.sleep(2)

    async with runner.working(queues=["a"], concurrency=2):
        async with runner.working(queues=["b"], concurrency=2):
            handles = [await long.options(queue=queue).enqueue() for queue in "aabb"]
            for handle in handles:
                await handle.result(timeout=10)
        again = await long.options(queue="a").enqueue()
        await again.result(timeout=10)
    assert len(owners["a"]) == len(owners["b"]) == 1
    assert owners["a"] != owners["b"]
    assert heard.of("lease.lost") == []
    assert sql(db, "SELECT max(attempt), sum(losses) FROM tasks") == [[1, 0]]


async def test_one_that_left_its_row_in_a_process_that_goes_on(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not end its row, for the store was locked; its process lives, its lock is free: so it is buried."""
    monkeypatch.setattr(leases, "JUDGE_ALL", 0.2)
    runner = quick(db)
    heard = Heard(runner, "supervisor.buried")
    with owner(db, "release") as other:
        async with runner.working():
            await runner.store.owners.register(other.row, "0", 600, ())
            await anyio.sleep(0.5)
            assert heard.events == []
            other.say()
            assert other.hear() == "released"
            await until(lambda: heard.events, within=1)
    assert [event["how"] for event in heard.events] == ["its lock was released"]
