"""Several runners in one program, and one that was made before a fork."""

from __future__ import annotations

from pathlib import Path

from taskrunner import TaskRunner
from tests.integration.machine import EffectLog, program, quick

FORKS = """
@runner.task
async def which() -> int:
    return os.getpid()

async def works():
    async with runner.working():
        return await (await which.enqueue()).result(timeout=10)

child = os.fork()
if child == 0:
    effect(asyncio.run(works()) == os.getpid())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
effect(asyncio.run(works()) == os.getpid())
"""


async def test_two_runners_on_one_file_in_one_process(db: Path) -> None:
    """Each works on its own types, both see all tasks, and what closes first takes nothing from the other."""
    one, two = quick(db), TaskRunner(db)

    @one.task
    async def first() -> int:
        return 1

    @two.task
    async def second() -> int:
        return 2

    async with one.working():
        async with two.working():
            assert await (await one.enqueue("second")).result(timeout=10) == 2
            assert await (await two.enqueue("first")).result(timeout=10) == 1
            assert len(await one.tasks.list()) == len(await two.tasks.list()) == 2
        assert await (await first.enqueue()).result(timeout=10) == 1


def test_a_runner_that_was_made_before_a_fork(db: Path, tmp_path: Path) -> None:
    """B54: making a runner opens nothing, so it may cross a fork; child and parent each open it for themselves."""
    log = EffectLog(tmp_path / "effects")
    with program(db, log, FORKS) as both:
        assert both.wait() == (0, "")
    assert log.lines() == ["True", "True"]
