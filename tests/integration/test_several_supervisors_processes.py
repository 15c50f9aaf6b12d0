"""Several real supervisors on one file, by plan or by mistake: by any name, in any order, old beside new."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskrunner import TaskRunner, Tasks
from tests.integration.commands import Folder, sql, wait_until
from tests.integration.machine import EffectLog, until
from tests.stores import beside

APP = """
import asyncio, os
from taskrunner import TaskContext, TaskRunner

runner = TaskRunner()
LOG = os.environ["EFFECTS"]


def effect(number: int) -> int:
    with open(LOG, "a") as file:
        file.write(f"{number} {os.getpid()}\\n")
    return number


@runner.task
async def line(number: int) -> None:
    effect(number)
    await asyncio.sleep(0.02)  # long enough for the other one to get its share


@runner.task
async def job(ctx: TaskContext, number: int) -> None:
    await ctx.step("effect", effect, number)
    await asyncio.sleep(0.05)
"""


tasks = Tasks()


@tasks.task
async def line(number: int) -> None:
    """The app's task, as those who enqueue it see it."""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with the app."""
    made = Folder.make(tmp_path)
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return Folder(tmp_path, {**made.env, "EFFECTS": str(tmp_path / "effects.log")})


class Team:
    """Supervisors of one folder, and what each has written."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.members: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []

    def start(self, *args: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[bytes]:
        """Start one more."""
        log = self.folder.path / f"supervisor {len(self._logs)}.log"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "taskrunner", "run", "app:runner", "--sweep", "0.2", *args]
            environment = {**self.folder.env, "PYTHONPATH": str(self.folder.path), **env}
            member = subprocess.Popen(
                command, cwd=cwd or self.folder.path, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        self.members.append(member)
        self._logs.append(log)
        return member

    def stop(self) -> list[int]:
        """End all of them as an operator does; their exit codes."""
        for member in self.members:
            member.send_signal(signal.SIGTERM)
        return [member.wait(20) for member in self.members]

    def complaints(self) -> list[str]:
        """Lines that are no news: errors, tracebacks, a store that could not be used."""
        lines = [line for log in self._logs for line in log.read_text(encoding="utf-8").splitlines()]
        return [
            line
            for line in lines
            if not line.startswith("{")
            or json.loads(line).get("event") == "store.trouble"
            or json.loads(line)["level"] == "error"
        ]


@contextmanager
def team(folder: Folder) -> Iterator[Team]:
    """Have supervisors, and leave nothing of them."""
    made = Team(folder)
    try:
        yield made
    finally:
        for member in made.members:
            member.kill()
            member.wait()


async def living(client: TaskRunner, count: int) -> None:
    """Wait until so many supervisors are at work."""

    async def all_here() -> bool:
        return len(await client.store.owners.living()) == count

    await until(all_here, within=30)


async def all_ended(client: TaskRunner) -> None:
    """Wait until no task is left to be run."""

    async def nothing_left() -> bool:
        return not {"pending", "running"} & (await client.store.tasks.counts()).keys()

    await until(nothing_left, within=30)


@pytest.mark.timeout(90)
async def test_sixteen_start_at_once_on_a_fresh_file(folder: Folder) -> None:
    """A2: one makes the store, all come up, none has anything to complain of; they leave, and one file is left."""
    with team(folder) as crew:
        for _ in range(16):
            crew.start()
        wait_until(folder.db.exists, within=30)
        async with TaskRunner(folder.db) as client:
            await living(client, 16)
            for number in range(32):
                await client.enqueue("line", {"number": number})
            await all_ended(client)
        assert crew.stop() == [0] * 16
        assert crew.complaints() == []
    assert beside(folder.db) == ["agent.db"]
    assert sql(folder.db, "PRAGMA integrity_check") == [["ok"]]
    assert sql(folder.db, "SELECT status, attempt, losses, count(*) FROM tasks GROUP BY 1, 2, 3") == [
        ["completed", 1, 0, 32]
    ]


@pytest.mark.timeout(90)
async def test_two_thousand_lines(folder: Folder) -> None:
    """B01: two supervisors drain 2,000 one-line jobs: 2,000 starts, one for each, at their first attempts."""
    log = EffectLog(folder.path / "effects.log")
    async with TaskRunner(folder.db) as client:
        with team(folder) as crew:
            pair = [crew.start("--concurrency", "20") for _ in range(2)]
            await living(client, 2)
            for first in range(0, 2_000, 100):
                await client.enqueue_many([line.bind(number) for number in range(first, first + 100)])
            await all_ended(client)
            assert crew.stop() == [0, 0]
            assert crew.complaints() == []
    starts = [line.split() for line in log.lines()]
    assert Counter(number for number, _pid in starts) == Counter(map(str, range(2_000)))
    assert {int(pid) for _number, pid in starts} == {member.pid for member in pair}  # both took part
    assert sql(folder.db, "SELECT status, attempt, losses, count(*) FROM tasks GROUP BY 1, 2, 3") == [
        ["completed", 1, 0, 2_000]
    ]


@pytest.mark.timeout(90)
async def test_by_any_name_and_in_any_order(folder: Folder) -> None:
    """By path, link, relative path, from another HOME: they come, stop and crash in any order, and all is done."""
    (folder.path / "elsewhere").mkdir()
    (folder.path / "link.db").symlink_to("agent.db")
    (folder.path / "folder").symlink_to(".")
    names: list[dict[str, Any]] = [
        {"TASKRUNNER_DB": "agent.db"},
        {"TASKRUNNER_DB": str(folder.db)},
        {"TASKRUNNER_DB": "link.db"},
        {"TASKRUNNER_DB": "folder/folder/agent.db"},
        {"TASKRUNNER_DB": "../agent.db", "cwd": folder.path / "elsewhere", "HOME": str(folder.path / "elsewhere")},
    ]
    chance = random.Random(2)
    async with TaskRunner(folder.db) as client:
        with team(folder) as crew:
            for name in names:
                crew.start("--concurrency", "3", **name)
            await living(client, len(names))
            for turn in range(10):
                for number in range(10):
                    await client.enqueue("job", {"number": 10 * turn + number})
                leaving = crew.members.pop(chance.randrange(len(crew.members)))
                leaving.send_signal(chance.choice([signal.SIGTERM, signal.SIGKILL]))
                crew.start("--concurrency", "3", **chance.choice(names))
                leaving.wait(20)
            await all_ended(client)
            await living(client, len(names))  # the killed are buried, and the last one has come
            assert crew.stop() == [0] * len(names)
            assert crew.complaints() == []
    assert sorted(path.name for path in folder.path.glob("*.db*")) == ["agent.db", "link.db"]
    assert sql(folder.db, "SELECT status, count(*) FROM tasks GROUP BY 1") == [["completed", 100]]
    again = (
        "SELECT count(*) FROM tasks WHERE attempt <> (SELECT count(*) FROM attempts WHERE task_id = tasks.id) "
        "OR attempt > 1 AND NOT EXISTS "
        "(SELECT 1 FROM attempts WHERE task_id = tasks.id AND outcome IN ('lost', 'released'))"
    )
    assert sql(folder.db, again) == [[0]]
    assert sql(folder.db, "SELECT count(*) FROM supervisors WHERE ended_at IS NULL") == [[0]]
