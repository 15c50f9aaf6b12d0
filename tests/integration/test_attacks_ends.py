"""Ends and stops at bad moments: nothing is charged for them, and nothing left running."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskrunner.core.model import Step
from taskrunner.storage.claims import Claim
from taskrunner.storage.journal import Journal
from taskrunner.storage.tasks import TaskStore
from tests.integration.machine import quick, sql, until
from tests.integration.rival import Rival


async def test_a_task_that_returned_in_time_is_not_timed_out_by_a_locked_store(db: Path) -> None:
    """Its end waits for the store beyond timeout and grace: it is completed all the same."""
    runner = quick(db, busy_timeout=0.1, grace=0.3)
    rival = Rival(db)

    @runner.task(timeout=1.0, max_retries=0)
    def job() -> str:
        rival.hold(2.5)
        return "done"

    async with runner.working():
        handle = await job.enqueue()
        try:
            assert await handle.result(timeout=10) == "done"
        finally:
            await rival.gone()


async def test_a_task_that_is_refused_at_its_start_keeps_no_stop_waiting(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop came while its steps were read, which nobody can: there is nothing to wait for, the grace or less."""
    runner = quick(db, grace=8)
    asked: list[str] = []

    @runner.task
    async def job() -> None:
        return None

    async def odd(_journal: Journal, history_id: str) -> list[Step]:
        asked.append(history_id)
        await anyio.sleep(0.3)
        raise ValueError

    monkeypatch.setattr(Journal, "steps", odd)
    async with runner:
        handle = await job.enqueue()
        sql(db, "UPDATE tasks SET status = 'running', attempt = 1, lease_owner = 'x', started_at = created_at")
        async with runner.working():
            await until(lambda: asked)
            begun = time.monotonic()
        assert time.monotonic() - begun < 3
        assert await handle.status() == "failed"


async def test_a_second_cancellation_leaves_nothing_undone(db: Path) -> None:
    """Cancelled thrice from outside beside a body that ignores it, a supervisor hands it back, and ends."""
    runner = quick(db)
    over = asyncio.Event()
    runs: list[int] = []

    @runner.task
    async def job() -> None:
        runs.append(1)
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    async with runner:
        handle = await job.enqueue()
        running = asyncio.create_task(runner.run())
        await until(lambda: runs)
        for _ in range(3):
            running.cancel()
            await anyio.sleep(0.1)
        try:
            await asyncio.wait([running], timeout=6)
            assert running.done()
            task = await handle.task()
            assert (task.status, task.losses) == ("pending", 0)
        finally:
            over.set()
            await asyncio.wait([running])


async def test_a_claim_outlives_the_cancellation_that_it_meets(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` is cancelled while a claim is on its way: what it brings is run or handed back, not lost."""
    runner = quick(db)
    claim, claimed = TaskStore.claim, anyio.Event()

    async def slowly(store: TaskStore, *args: Any, **kwargs: Any) -> Claim:  # noqa: ANN401 - as `claim` has them
        brought = await claim(store, *args, **kwargs)
        if brought.tasks:
            claimed.set()
            await anyio.sleep(0.1)
        return brought

    @runner.task
    async def job() -> None:
        return None

    monkeypatch.setattr(TaskStore, "claim", slowly)
    async with runner:
        handle = await job.enqueue()
        running = asyncio.create_task(runner.run())
        await claimed.wait()
        running.cancel()
        await asyncio.wait([running], timeout=5)
        assert running.cancelled()
        monkeypatch.undo()
        await runner.drain()
        assert await handle.status() == "completed"
        assert ["lost"] not in sql(db, "SELECT outcome FROM attempts")
