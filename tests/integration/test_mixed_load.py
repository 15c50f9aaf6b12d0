"""Everything at once: supervisors that come and go over tasks that work, fail, retry, time out and are cancelled."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import anyio

from taskrunner import Fail, Retry, TaskCancelled, TaskContext, TaskFailed, TaskRunner
from tests.integration.machine import quick, sql

KINDS = {0: {"completed"}, 1: {"completed"}, 2: {"failed"}, 3: {"completed"}, 4: {"failed"}}
"""How tasks of each kind end if they are not cancelled."""


class Load:
    """The tasks, and what has become of them."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.chance = random.Random(7)
        self.running: Counter[str] = Counter()
        self.overlaps: list[str] = []
        self.ends: Counter[str] = Counter()

    def machine(self) -> TaskRunner:
        """A runner that knows the task."""
        runner = quick(self.db, grace=0.1)
        runner.task(name="job", wait=0.01, max_retries=3, timeout=0.5)(self.job)
        return runner

    async def part(self, number: int) -> int:
        """A step."""
        await anyio.sleep(self.chance.uniform(0, 0.01))
        return number

    async def job(self, ctx: TaskContext, kind: int) -> int:
        """Four steps, and then an ending."""
        self.running[ctx.task.id] += 1
        if self.running[ctx.task.id] > 1:
            self.overlaps.append(ctx.task.id)
        try:
            for number in range(4):
                assert await ctx.step("part", self.part, number) == number
            if kind == 1 and ctx.task.retry_count < 2:
                raise ConnectionError
            if kind == 2:
                raise Fail("never")
            if kind == 3 and ctx.task.retry_count == 0:
                await anyio.sleep(5)
            if kind == 4:
                raise Retry(after=0.01)
        finally:
            self.running[ctx.task.id] -= 1
        return kind

    async def come_and_go(self, runner: TaskRunner) -> None:
        """Supervise for a while, stop, and again."""
        while True:
            async with runner.working(concurrency=5):
                await anyio.sleep(self.chance.uniform(0.2, 0.6))

    async def one(self, client: TaskRunner, kind: int, *, cancel: bool) -> None:
        """Enqueue one, perhaps cancel it, and see that it ends as it must."""
        handle = await client.enqueue("job", {"kind": kind}, max_retries=3, timeout=0.5)
        answer = "too_late"
        if cancel:
            await anyio.sleep(self.chance.uniform(0, 0.5))
            answer = await handle.cancel()
        try:
            assert await handle.result(timeout=15) == kind
            end = "completed"
        except TaskFailed:
            end = "failed"
        except TaskCancelled:
            end = "cancelled"
        assert end in (KINDS[kind] if answer == "too_late" else {"cancelled"})
        self.ends[end] += 1


async def test_a_mixed_load_ends_well(db: Path) -> None:
    """Each task ends once and as it must, no two attempts of one overlap, and stops have cost nobody anything."""
    load = Load(db)
    client = quick(db)
    async with client, anyio.create_task_group() as group:
        for runner in [load.machine() for _ in range(3)]:
            group.start_soon(load.come_and_go, runner)
        await asyncio.gather(*(load.one(client, number % 5, cancel=number % 7 == 0) for number in range(150)))
        group.cancel_scope.cancel()
    assert load.ends.total() == 150
    assert load.overlaps == []
    open_rows = "SELECT count(*) FROM tasks WHERE status IN ('pending', 'running') OR losses > 0"
    assert sql(db, open_rows) == [[0]]
    unaccounted = "SELECT count(*) FROM tasks WHERE attempt <> (SELECT count(*) FROM attempts WHERE task_id = tasks.id)"
    assert sql(db, unaccounted) == [[0]]
    assert sql(db, "PRAGMA integrity_check") == [["ok"]]
