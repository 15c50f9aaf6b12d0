"""Waking up: what one process commits starts in another at once, though nobody polls.

Two runners on one file, each with an engine of its own, as two processes have them. The one that works looks at the
store by itself every ten minutes only, so nothing but a bell can wake it.
"""

from __future__ import annotations

import random
import signal
import stat
import time
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import pytest

from taskrunner import TaskCancelled
from taskrunner.storage.bells import Bell, folder_of
from tests.integration.machine import EffectLog, Heard, program, quick, sql, until

FAR = 600.0
"""Seconds: nothing in a test waits for that long."""


class Scene:
    """A runner that works, one that only asks, and when bodies started."""

    def __init__(self, db: Path, sweep: float = FAR) -> None:
        self.db = db
        self.worker, self.client = quick(db, sweep=sweep), quick(db)
        self.started = anyio.Event()
        self.task = self.worker.task(name="job")(self.job)

    async def job(self, *, wait: bool = False) -> None:
        """Say that it runs."""
        self.started.set()
        if wait:
            await anyio.sleep(FAR)

    async def start(self, *, within: float = 1.0) -> None:
        """Wait for the next start."""
        with anyio.fail_after(within):
            await self.started.wait()
        self.started = anyio.Event()


@pytest.fixture
def scene(db: Path) -> Scene:
    """The two of them."""
    return Scene(db)


async def test_work_of_another_process_starts_at_once(scene: Scene) -> None:
    """B49: however long everybody has slept, each task that another process enqueues is heard of."""
    chance = random.Random(49)
    async with scene.worker.working(), scene.client:
        for _ in range(30):
            await anyio.sleep(chance.uniform(0, 0.1))
            await scene.client.enqueue("job")
            await scene.start()


async def test_a_timer_is_set_to_the_earliest_task(scene: Scene) -> None:
    """Who sleeps until the next task is due hears of one that is due before it, and wakes for that."""
    async with scene.worker.working(), scene.client:
        await scene.client.enqueue("job", delay="1h")
        await anyio.sleep(0.1)
        began = time.monotonic()
        await scene.client.enqueue("job", delay=0.4)
        await scene.start(within=1.4)
        assert time.monotonic() - began >= 0.4


async def test_a_cancel_of_another_process_is_heard(scene: Scene) -> None:
    """Item 6: the body is woken where it waits."""
    async with scene.worker.working(), scene.client:
        handle = await scene.client.enqueue("job", {"wait": True})
        await scene.start()
        with anyio.fail_after(1):
            assert await handle.cancel() == "cancelling"
            with pytest.raises(TaskCancelled):
                await handle.result()


async def serve(scene: Scene, stop: anyio.Event, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Work until it is told to stop."""
    async with scene.worker.working():
        task_status.started()
        await stop.wait()


async def test_what_is_handed_back_is_taken_by_another(scene: Scene) -> None:
    """A supervisor that stops rings the others: what it could not end goes on there at once."""
    other, stop = Scene(scene.db), anyio.Event()
    async with scene.client, anyio.create_task_group() as group:
        await group.start(serve, scene, stop)
        await scene.client.enqueue("job", {"wait": True})
        await scene.start()
        await group.start(serve, other, other_stop := anyio.Event())
        stop.set()
        await other.start(within=0.5 + 1)  # the grace, and then at once
        other_stop.set()


NEWCOMER = """
@runner.task
async def never() -> None: ...

async def main():
    runner.on("supervisor.started", lambda _fields: print("up", flush=True))
    async with runner.working():
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_newcomer_is_known_at_once(scene: Scene, tmp_path: Path) -> None:
    """It rings when it comes: from then on its death is seen, and what it left is removed."""
    heard = Heard(scene.worker, "supervisor.buried")
    async with scene.worker.working(), scene.client:
        with program(scene.db, EffectLog(tmp_path / "log"), NEWCOMER) as newcomer:
            assert await anyio.to_thread.run_sync(newcomer.hear) == "up"
            assert len(await scene.client.store.owners.living()) == 2
            newcomer.kill(signal.SIGKILL)
            await until(lambda: heard.events, within=1)
        folder = folder_of(scene.client.store.path)
        await until(lambda: len(list(folder.iterdir())) == 2)  # our lock and our bell


async def test_where_there_are_no_bells(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system where no socket can be made: commits of others are polled for, and nothing else changes."""
    monkeypatch.setattr(Bell, "hang", lambda _folder, _id: None)
    async with scene.worker.working(), scene.client:
        (row,) = await scene.client.store.owners.living()
        assert row.bell is None
        for _ in range(5):
            await scene.client.enqueue("job")
            await scene.start()
        handle = await scene.client.enqueue("job", {"wait": True})
        await scene.start()
        with anyio.fail_after(1):
            await handle.cancel()
            with pytest.raises(TaskCancelled):
                await handle.result()


async def test_a_program_that_rings_nobody_is_noticed(db: Path) -> None:
    """A database shell, or an older taskrunner: its task is found by the look that is taken every `sweep`."""
    scene = Scene(db, sweep=1)
    async with scene.worker.working():
        await anyio.sleep(0.1)
        insert = (
            "INSERT INTO tasks(id, history_id, type, max_retries, max_losses, run_at, created_at, updated_at) "
            "VALUES ('1', '1', 'job', 3, 5, ?1, ?1, ?1)"
        )
        sql(scene.db, insert, "2026-01-01T00:00:00.000000Z")
        await scene.start(within=1 + 1)


async def test_a_result_of_another_process_is_not_waited_for_long(scene: Scene) -> None:
    """Who waits for a result is no supervisor and has no bell: it polls, also where a supervisor beside it has one."""
    other = Scene(scene.db)
    async with scene.worker.working(queues=["nothing"]), other.worker.working():
        handle = await scene.worker.enqueue("job")
        with anyio.fail_after(1):
            await handle.result()


async def test_the_bell_stands_beside_the_lock(scene: Scene) -> None:
    """It is in the supervisor's row, private like all of the store's files, and gone after a clean stop."""
    async with scene.client:
        async with scene.worker.working():
            (row,) = await scene.client.store.owners.living()
            assert row.bell is not None
            found = (folder_of(scene.client.store.path) / row.bell).stat()
            assert (stat.S_ISSOCK(found.st_mode), stat.S_IMODE(found.st_mode)) == (True, 0o600)
        assert not folder_of(scene.client.store.path).exists()
