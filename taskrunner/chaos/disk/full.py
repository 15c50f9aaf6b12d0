"""A disk that is filled up and freed again under a working supervisor and a client: a small file system of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from taskrunner.app import TaskRunner
from taskrunner.chaos.disk.full_disk import no_space, small_disk
from taskrunner.chaos.disk.judge import judging
from taskrunner.chaos.plants import plant
from taskrunner.chaos.report import Tally
from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown, TaskRunnerError

if TYPE_CHECKING:
    from taskrunner.authoring.handle import TaskHandle
    from taskrunner.chaos.report import Breach, Order

FILLS: Final = 210
"""Of a whole run."""

PER_STORE: Final = 15
JOBS: Final = 4
"""Jobs that are enqueued before each filling."""

WITHIN: Final = 40.0
"""Seconds within which everything has to be done once there is room again."""

_APP = """
import os

import anyio

from taskrunner import TaskContext, TaskRunner

runner = TaskRunner({db!r}, lease=5, heartbeat=0.3, sweep=0.1, grace=0.5, busy_timeout=0.2)
told = os.open({runs!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


async def work(name: str) -> str:
    os.write(told, (name + "\\n").encode())
    await anyio.sleep(0.01)
    return "x" * 2_000


@runner.task(max_retries=0)
async def job(ctx: TaskContext, name: str, load: str = "") -> str:
    for number in range(4):
        await ctx.step("work", work, f"{{name}} {{number}}")
        await ctx.progress(number / 4, "at work")
    return name
"""


def run(order: Order) -> Tally:
    """Fill the disk so often, some times for each store."""
    plant(order.plant)
    tally = Tally(order.kind)
    left, number = order.share(FILLS), 0
    while left > 0:
        place = Path(order.folder) / str(number)
        place.mkdir()
        seed = order.seed * 1_000 + number
        with small_disk(place / "disk", "24m") as disk:
            anyio.run(Lane(tally, place, disk, seed).run, min(left, PER_STORE))
        left -= PER_STORE
        number += 1
    return tally


class Lane:
    """One store on a disk of its own, with its supervisor in another process."""

    def __init__(self, tally: Tally, place: Path, disk: Path, seed: int) -> None:
        self._tally = tally
        self._place = place
        self._disk = disk
        self._seed = seed
        self._chance = random.Random(seed)
        self._db = disk / "agent.db"
        self._runs = place / "runs"
        self._client = TaskRunner(self._db, busy_timeout=0.2)
        self._handles: dict[str, TaskHandle[str]] = {}
        self._unknown = 0

    async def run(self, fills: int) -> None:
        """Fill it so often, then wait until all that was acknowledged is done, and look at what there is."""
        async with self._client:
            with self._supervising() as supervisor:
                await self._enqueue("the first", 10)
                await self._all_done()  # one that starts on a full disk says so, and ends
                for number in range(fills):
                    await self._fill(f"fill {number}")
                await self._all_done()
                if supervisor.poll() is not None:
                    self._broken("wrong", f"the supervisor has ended with {supervisor.returncode}")
            await self._look()
        with judging() as judge:
            sound, why = judge.look(self._db)
            if sound != "ok":
                self._broken("corrupt", why)

    @contextmanager
    def _supervising(self) -> Iterator[subprocess.Popen[bytes]]:
        (self._place / "filled_app.py").write_text(_APP.format(db=str(self._db), runs=str(self._runs)))
        command = [sys.executable, "-m", "taskrunner", "run", "filled_app:runner"]
        with (self._place / "log").open("wb") as log:
            env = os.environ | {"PYTHONPATH": os.pathsep.join([str(self._place), *filter(None, sys.path)])}
            with subprocess.Popen(command, cwd=self._place, env=env, stdout=log, stderr=log) as process:
                try:
                    yield process
                finally:
                    process.send_signal(signal.SIGTERM)
                    try:
                        process.wait(10)
                    except subprocess.TimeoutExpired:
                        self._broken("stuck", "the supervisor does not end")
                        process.kill()

    async def _fill(self, name: str) -> None:
        for number in range(JOBS):
            await self._enqueue(f"{name}, job {number}", 10)
        await anyio.sleep(self._chance.random() * 0.15)
        with no_space(self._disk, self._chance.choice([0, 0, 5_000, 60_000])):
            self._tally.faults += 1
            self._tally.count("fills")
            for number in range(40):
                if not await self._enqueue(f"{name}, call {number}", 9_000):
                    self._tally.count("calls refused by a full disk")
                    break
            await anyio.sleep(self._chance.random() * 0.4)
        if not await self._enqueue(f"{name}, afterwards", 10):
            self._broken("wrong", f"{name}: there is room, and a call is refused")

    async def _enqueue(self, name: str, size: int) -> bool:
        try:
            self._handles[name] = await self._client.enqueue("job", {"name": name, "load": "x" * size})
        except StoreUnknown:
            self._unknown += 1
            self._tally.ended("unknown")
            return False
        except StoreBusy:
            self._tally.ended("failed")
            return False
        except StoreError as error:
            self._broken("wrong", f"{name}: a full disk is told of as {error}")
            return False
        self._tally.ended("ok")
        return True

    async def _all_done(self) -> None:
        for name, handle in self._handles.items():
            try:
                with anyio.fail_after(WITHIN):
                    if await handle.result() != name:
                        self._broken("wrong", f"{name}: another result")
            except TimeoutError:
                self._broken("stuck", f"{name}: not done within {WITHIN} s: {await handle.status()}")
                return
            except TaskRunnerError as error:
                self._broken("lost" if isinstance(error, LookupError) else "wrong", f"{name}: {error!r}")
            else:
                self._tally.count("jobs completed")

    async def _look(self) -> None:
        (row,) = await self._client.read("SELECT count(*) AS tasks, sum(losses) AS losses FROM tasks")
        there, acked = int(str(row["tasks"])), len(self._handles)
        if not acked <= there <= acked + self._unknown:
            self._broken("wrong", f"{there} tasks are there, {acked} were acknowledged")
        if row["losses"]:
            self._broken("wrong", f"{row['losses']} losses were counted, and nobody has died")
        runs = Counter(self._runs.read_text().splitlines())
        if again := [name for name, number in runs.items() if number > 1]:
            self._broken("doubled", f"steps that were run again: {again[:5]}")

    def _broken(self, breach: Breach, text: str) -> None:
        log = (self._place / "log").read_text(errors="replace")[-300:] if (self._place / "log").exists() else ""
        self._tally.broken(breach, f"store {self._seed}: {text} (the supervisor's last words: {log!r})")
