"""A pool that is cancelled from outside, at any moment: what it has claimed is run or handed back."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import anyio
import pytest

from taskrunner import TaskContext
from tests.integration.machine import quick, sql


@pytest.mark.parametrize("how", ["scope", "task"])
async def test_no_row_stays_claimed(db: Path, how: str) -> None:
    """B02, B21: thirty pools, each cancelled some milliseconds after its start, in the middle of whatever it does.

    No row is left running, nothing is burned, a finished task is not run again; at last all of them are done.
    """
    chance = random.Random(2)
    runner = quick(db, grace=0)
    ends: Counter[int] = Counter()

    @runner.task(max_retries=0)
    async def brief(ctx: TaskContext, number: int) -> int:
        await ctx.step("one", asyncio.sleep, number % 3 * 0.001)
        await ctx.step("two", asyncio.sleep, number % 5 * 0.001)
        ends[number] += 1
        return number

    async def pool() -> None:
        async with runner.working(concurrency=8):
            await anyio.sleep_forever()

    async with runner:
        await runner.enqueue_many([brief.bind(number) for number in range(400)])
        for _ in range(30):
            after = chance.uniform(0, 0.03)
            if how == "scope":
                with anyio.move_on_after(after):
                    await pool()
            else:
                task = asyncio.create_task(pool())
                await asyncio.sleep(after)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        left = sql(db, "SELECT status, sum(retry_count), sum(losses) FROM tasks GROUP BY status ORDER BY status")
        assert {row[0] for row in left} <= {"completed", "pending"}
        assert all(row[1:] == [0, 0] for row in left)
        completed = dict(sql(db, "SELECT json_extract(input, '$.number'), 1 FROM tasks WHERE status = 'completed'"))
        before = dict(ends)
        await runner.drain()
        assert await runner.tasks.list(status="completed", limit=1)
    assert sql(db, "SELECT status, count(*) FROM tasks GROUP BY status") == [["completed", 400]]
    assert all(ends[number] == before.get(number) for number in completed)
    assert max(ends.values()) <= 3
    assert sql(db, "SELECT count(*) FROM supervisors WHERE ended_at IS NULL") == [[0]]
