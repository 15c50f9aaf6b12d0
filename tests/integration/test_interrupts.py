"""Ctrl-C in a plain program, keys that meet, and listeners that would never be called."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from taskrunner import InvalidInput, TaskRunner

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import asyncio, signal, sys
from taskrunner import TaskRunner

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background of a shell inherits deaf ears

runner = TaskRunner(sys.argv[1], grace="5s")

@runner.task
async def nap(seconds: float) -> None:
    print("asleep", flush=True)
    await asyncio.sleep(seconds)

with runner.sync as wait:
    wait(nap.enqueue(600))
    wait(runner.drain())
"""


def test_ctrl_c_in_a_plain_program_costs_its_tasks_nothing(db: Path, tmp_path: Path) -> None:
    """Ctrl-C while `sync` waits for a drain: the program ends at once, its task is handed back without a loss."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with subprocess.Popen([sys.executable, program, db], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asleep\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == -signal.SIGINT
    runner = TaskRunner(db)
    with runner.sync as wait:
        (task,) = wait(runner.tasks.list())
        assert (task.status, task.losses, task.retry_count) == ("pending", 0, 0)
        assert [attempt.outcome for attempt in wait(runner.handle(task.id).info()).attempts] == ["released"]
    assert sorted(path.name for path in db.parent.iterdir()) == [db.name, "program.py"]


async def test_a_task_found_by_its_unique_key_is_found_by_the_idempotency_key_too(db: Path) -> None:
    """What was enqueued with an idempotency key is never enqueued again, also if a unique key found an older task."""
    runner = TaskRunner(db)

    @runner.task
    async def sell(n: int) -> int:
        return n

    async with runner:
        first = await sell.options(unique_key="u").enqueue(1)
        second = await sell.options(unique_key="u", idempotency_key="pay-1").enqueue(2)
        await runner.drain()
        third = await sell.options(unique_key="u", idempotency_key="pay-1").enqueue(2)
        assert first.id == second.id == third.id
        assert (await first.task()).idempotency_key == "pay-1"


@pytest.mark.parametrize("name", ["task.complete", "", "TASK.STARTED", "tasks"])
def test_a_misspelt_event_is_refused(name: str) -> None:
    """A listener that would never be called is refused, with the nearest event's name."""
    with pytest.raises(InvalidInput, match=r"there is no such event; the nearest is \w+\.\w+"):
        TaskRunner().on(name, print)


def test_a_listener_that_would_have_to_be_awaited_is_refused() -> None:
    """Nobody awaits a listener, so an `async def` is refused."""

    async def listener(_event: object) -> None:
        """Do nothing."""

    with pytest.raises(InvalidInput, match="a plain function is wanted"):
        TaskRunner().on("task.completed", listener)
