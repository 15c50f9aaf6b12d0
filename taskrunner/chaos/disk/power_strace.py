"""The power cut under unmodified processes: `taskrunner run` and a client, whose writes `strace` has recorded."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from taskrunner.chaos.disk.judge import Bench, Judge, judging
from taskrunner.chaos.disk.power import BREACHES
from taskrunner.chaos.disk.power_cut import CutAt, Image, cuts, distinct, honest
from taskrunner.chaos.disk.trace import STRACE, records
from taskrunner.chaos.report import Tally

if TYPE_CHECKING:
    from taskrunner.chaos.disk.faulty_disk import Record
    from taskrunner.chaos.report import Order

Found: TypeAlias = tuple[tuple[int, Any, str], Image]

IMAGES: Final = 2_100
"""Of a whole run."""

MANY: Final = 8
"""How often each way to lose something is tried, at each moment, at most."""

DB: Final = "agent.db"
ACKS: Final = "acks"
COMMIT: Final = slice(4, 8)
"""Of the header of a frame in the WAL: not zero in the last one of a commit."""

HEADER: Final = 24

_APP: Final = """
import os

import anyio

from taskrunner import TaskContext, TaskRunner

runner = TaskRunner({db!r})
acks = os.open({acks!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def acknowledged(what: str) -> None:
    os.write(acks, what.encode() + b"\\n")


async def work(size: int) -> str:
    await anyio.sleep(0.01)
    return "x" * size


@runner.task
async def job(ctx: TaskContext, size: int) -> int:
    await ctx.step("work", work, size)
    acknowledged(f"step {{ctx.task.id}}")
    return size


async def client() -> None:
    async with runner:
        handles = []
        for size in {sizes}:
            handles.append(await job.enqueue(size))
            acknowledged(f"task {{handles[-1].id}}")
        for handle in handles:
            await handle.result()
            acknowledged(f"done {{handle.id}}")


if __name__ == "__main__":
    anyio.run(client)
"""

_BOTH: Final = """
import signal, subprocess, sys
supervisor = subprocess.Popen([sys.executable, "-m", "taskrunner", "run", "traced_app:runner"])
client = subprocess.run([sys.executable, "traced_app.py"], timeout=90)
supervisor.send_signal(signal.SIGTERM)
sys.exit(supervisor.wait(20) or client.returncode)
"""

_FACTS: Final = (
    "SELECT 'task ' || id FROM tasks",
    "SELECT 'done ' || id FROM tasks WHERE status = 'completed'",
    "SELECT 'step ' || task_id FROM steps",
)


def run(order: Order) -> Tally:
    """Record runs, and judge so many images of what the disk may hold."""
    tally = Tally(order.kind)
    wanted, number = order.share(IMAGES), 0
    with judging() as judge:
        while (missing := wanted - tally.reached.get("images of unmodified processes", 0)) > 0:
            with tempfile.TemporaryDirectory(dir=order.folder) as folder:
                many = max(1, min(MANY, missing // 120))
                _round(tally, order.seed * 1_000 + number, Path(folder), judge, many=many)
            number += 1
    return tally


def _round(tally: Tally, seed: int, folder: Path, judge: Judge, *, many: int) -> None:
    chance = random.Random(seed)
    log = _record(folder, [chance.choice([10, 900, 6_000]) for _ in range(6)])
    story = Story(log, folder / "honest", judge)
    tally.count("commits of unmodified processes", len(story.states))
    tally.count("acknowledgements of unmodified processes", len(story.acks))

    bench = Bench(folder / "images", judge, DB)
    for (place, numbers, kind), sound, state in bench.look(_images(story, chance, many, honest)):
        tally.faults += 1
        tally.count("images of unmodified processes")
        verdict = story.verdict(numbers, state) if sound == "ok" else sound
        if verdict != "right":
            where = f"round {seed}, cut {place} with {kind}"
            then = f"after {numbers[0]} acknowledgements and {numbers[1]} commits"
            tally.broken(BREACHES[verdict], f"{where}, {then}: {verdict}: {state}")
    for (_place, numbers, _kind), sound, state in bench.look(_images(story, chance, 1, lambda name: name != DB)):
        tally.faults += 1
        if sound != "ok" or story.verdict(numbers, state) != "right":
            tally.count("lies about their WAL that were found")


def _images(story: Story, chance: random.Random, many: int, lies: Callable[[str], bool]) -> Iterator[Found]:
    """What the disk may hold after the first acknowledgement: until then there is nothing to be lost."""
    for found in distinct(cuts({}, story.log, lies), chance, many):
        if found[0][1] and found[0][1][0]:
            yield found


def _record(folder: Path, sizes: list[int]) -> list[Record]:
    db = folder / DB
    (folder / "traced_app.py").write_text(_APP.format(db=str(db), acks=str(folder / ACKS), sizes=sizes))
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    words = [*STRACE, "-o", str(folder / "trace"), sys.executable, "-c", _BOTH]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return list(records(folder / "trace", db, ACKS))


class Story:
    """What has happened in a recorded run: each commit's state, and which of them has what was acknowledged."""

    def __init__(self, log: list[Record], folder: Path, judge: Judge) -> None:
        self.log: list[Record] = []
        """The record, whose acknowledgements have the numbers of those and of the commits until then."""
        self.acks: list[str] = []
        self.states: list[str] = []
        self._facts: list[set[str]] = []
        now, ends = CutAt((0, 0), {}), False
        folder.mkdir()
        for record in log:
            if record[0] == "ack":
                self.acks.append(record[1])
            else:
                self.log.append(record)
                now.take(record)
            if record[0] == "write" and record[1] == f"{DB}-wal":
                if len(record[3]) == HEADER:
                    ends = any(record[3][COMMIT])
                elif ends:
                    ends = False
                    self._committed(now.whole(), folder, judge)
            numbers = len(self.acks), len(self.states)
            if numbers != now.acked:
                now.acked = numbers
                self.log.append(("ack", numbers))

    def needed(self, text: str) -> int:
        """The number of the first commit that has this."""
        return next((number for number, facts in enumerate(self._facts) if text in facts), len(self.states))

    def verdict(self, numbers: tuple[int, int], state: str) -> str:
        """What is to be said of an image with this state, after so many acknowledgements and commits."""
        acks, commits = numbers
        found = [number for number, known in enumerate(self.states) if known == state]
        needed = max(self.needed(text) for text in self.acks[:acks])
        if not found:
            return "half applied"
        if any(needed <= number <= commits for number in found):
            return "right"
        return "lost" if max(found) < needed else "ahead"

    def _committed(self, image: Image, folder: Path, judge: Judge) -> None:
        for name, content in image.items():
            (folder / name).write_bytes(content)
        sound, state = judge.look(folder / DB)
        assert sound == "ok", state
        self.states.append(state)
        with closing(sqlite3.connect(folder / DB)) as connection:
            self._facts.append({str(fact) for sql in _FACTS for (fact,) in connection.execute(sql)})
        for path in folder.iterdir():
            path.unlink()
