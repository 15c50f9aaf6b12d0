"""Several runners in one program: on two files, and on one file by two names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from taskrunner import TaskContext, Tasks
from tests.integration.machine import quick, sql

tasks = Tasks()


@tasks.task
async def where(ctx: TaskContext, number: int) -> int:
    """Take a step."""
    return await ctx.step("same", int, number)


async def test_two_files(db: Path) -> None:
    """Each works on its own; a task that is in both is enqueued by name of the runner."""
    one, two = quick(db), quick(db.with_name("other.db"))
    for runner in (one, two):
        runner.include(tasks)
    async with one.working(), two.working():
        handles = [await runner.enqueue(where.bind(number)) for number in range(30) for runner in (one, two)]
        assert [await handle.result(timeout=5) for handle in handles] == [number // 2 for number in range(60)]
    for path in (one, two):
        assert sql(Path(str(path._code["db"])), "SELECT count(*) FROM steps") == [[30]]
    assert sorted(path.name for path in db.parent.iterdir()) == ["agent.db", "other.db"]


@pytest.mark.parametrize("name", ["same", "symlink", "relative"])
async def test_one_file_twice(db: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two supervisors of one program on one file, by its path, a symlink or a relative path: each task runs once."""
    monkeypatch.chdir(db.parent)
    other = db
    if name == "symlink":
        other = db.with_name("link.db")
        other.symlink_to(db)
    elif name == "relative":
        other = Path("./") / db.name
    ran: Counter[int] = Counter()
    one, two = quick(db), quick(other)

    async def count(number: int) -> int:
        ran[number] += 1
        return number

    for runner in (one, two):
        runner.task(count)
    async with one.working(concurrency=3), two.working(concurrency=3):
        handles = [
            await runner.enqueue("count", {"number": 2 * n + i})
            for n in range(40)
            for i, runner in enumerate((one, two))
        ]
        assert [await handle.result(timeout=5) for handle in handles] == list(range(80))
    assert set(ran.values()) == {1}
    assert len(ran) == 80
    assert [path.name for path in db.parent.iterdir() if not path.is_symlink()] == ["agent.db"]
