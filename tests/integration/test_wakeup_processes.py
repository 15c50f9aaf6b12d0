"""Real supervisors that have nothing to do: they cost next to nothing, write nothing, and miss nothing."""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import anyio
import pytest

from taskrunner import TaskRunner
from tests.integration.commands import Folder
from tests.integration.machine import EffectLog, until

APP = """
import os
from taskrunner import TaskRunner

runner = TaskRunner()


@runner.task
async def effect(number: int) -> None:
    with open("effects.log", "a") as file:
        file.write(f"{number} {os.getpid()}\\n")
"""

WORKERS = 8
IDLE = 8.0
"""Seconds of idling: the scenario's minute, scaled down."""

LONG_LEASE = ("--lease", "600")
"""So that no heartbeat, which is every 200 seconds then, falls into the time of watching."""


def cpu(process: Popen[str]) -> float:
    """Seconds of processors that a process has used, all threads together: clock_getcpuclockid(3), as on Linux."""
    return time.clock_gettime(~process.pid << 3 | 2)


def state_of(folder: Folder) -> dict[str, tuple[int, int]]:
    """Sizes and times of the store's files."""
    paths = [folder.db, folder.db.with_name("agent.db-wal")]
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


@pytest.mark.timeout(90)
async def test_idle_supervisors_sleep_and_hear(tmp_path: Path) -> None:
    """B49: eight idle workers take less than 2 % of a core together and write nothing; then each task is started."""
    folder = Folder.make(tmp_path)
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    log = EffectLog(tmp_path / "effects.log")
    chance = random.Random(49)
    client = TaskRunner(folder.db)
    with ExitStack() as stack:
        workers = [stack.enter_context(folder.started("run", "app:runner", *LONG_LEASE)) for _ in range(WORKERS)]
        async with client:
            await all_there(client, WORKERS)
            await anyio.sleep(1.5)  # they have met
            before, used = state_of(folder), sum(map(cpu, workers))
            await anyio.sleep(IDLE)
            share = (sum(map(cpu, workers)) - used) / IDLE
            print(f"{WORKERS} idle supervisors: {share:.2%} of a core")  # noqa: T201 - a figure
            assert state_of(folder) == before
            assert share < 0.02
            for number in range(60):
                await anyio.sleep(chance.uniform(0, 0.05))
                if number % 12 == 6:
                    workers[number // 12].send_signal(signal.SIGKILL)
                await client.enqueue("effect", {"number": number})
                assert len(log.wait_for(number + 1, within=1)) == number + 1
    assert [line.split()[0] for line in log.lines()] == [str(number) for number in range(60)]


async def all_there(client: TaskRunner, count: int) -> None:
    """Wait until so many supervisors are at work."""

    async def here() -> bool:
        return len(await client.store.owners.living()) == count

    await until(here, within=30)
