"""Tasks in child processes: the same calls, the same results, and nothing of them in the supervisor's process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskrunner import TaskFailed
from tests.integration import children_app as app
from tests.integration.machine import EffectLog, sql, until


async def test_all_that_a_body_may_ask_goes_through_the_supervisor(db: Path, tmp_path: Path) -> None:
    """Steps, progress, messages, enqueue, result, cancel, lists: with one child, and then with others beside it.

    A recorded step is not run again in another process, and a child never opens the file.
    """
    async with app.at_work(db, processes=2) as heard:
        session = await app.runner.sessions.create(title="t")
        handle = await app.everything.options(session_id=session.id).enqueue(str(tmp_path / "log"))
        found = await handle.result(timeout=15)
        pids = {(await (await app.who.enqueue()).result(timeout=10)) for _ in range(4)}
        [pid, number] = await (await app.plain_who.enqueue(4)).result(timeout=10)
        info = await handle.info()
        for each in {*pids, pid, found["here"]}:
            names = [str(link.readlink()) for link in Path(f"/proc/{each}/fd").iterdir()]
            assert not [name for name in names if db.name in name]
    assert os.getpid() not in {*pids, pid, found["here"], found["first"]}
    assert number == 10
    assert (found["answer"], found["cancel"]) == (42, ["cancelled", "cancelled"])
    assert (found["said"], found["sessions"], found["tasks"]) == (["hello"], 1, 1)
    assert [attempt.outcome for attempt in info.attempts] == ["retried", "completed"]
    assert [step.attempt for step in info.steps if step.name == "first"] == [1]
    assert (info.task.progress, info.task.progress_message) == (1.0, "half way")
    assert len(heard.of("child.started")) == 2
    assert heard.of("child.lost") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [db.name]


@pytest.mark.parametrize("what", app.ERRORS)
async def test_no_error_harms_the_supervisor(db: Path, what: str) -> None:
    """B27: errors travel as bounded text: the job is failed with the type's name, and both processes go on."""
    async with app.at_work(db, processes=1) as heard:
        before = await (await app.who.enqueue()).result(timeout=10)
        handle = await app.broken.enqueue(what)
        with pytest.raises(TaskFailed) as failed:
            await handle.result(timeout=10)
        task = await handle.task()
        assert await (await app.who.enqueue()).result(timeout=10) == before
    assert task.error_type == app.error_type_of(what)
    assert 0 < len(failed.value.details.encode()) < 20_000
    assert heard.of("child.lost") == []


async def test_children_share_the_work(db: Path, tmp_path: Path) -> None:
    """Two children share the work; each task is run once, and none is claimed beyond the slots."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=2, concurrency=6):
        handles = [await app.nap.enqueue(str(log.path), 0.05) for _ in range(30)]
        pids = {await handle.result(timeout=15) for handle in handles}
    assert len(pids) == 2
    assert len(log.lines()) == 60
    assert sql(db, "SELECT count(*), max(attempt) FROM tasks") == [[30, 1]]


async def test_a_child_is_replaced_when_it_has_had_its_tasks(db: Path) -> None:
    """`max_tasks_per_child=3`: seven tasks meet three children, and each of those ends by itself."""
    async with app.at_work(db, processes=1, max_tasks_per_child=3, concurrency=1) as heard:
        pids = [await (await app.who.enqueue()).result(timeout=10) for _ in range(7)]
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]
        await until(lambda: not Path(f"/proc/{pids[0]}").exists(), within=6)
    assert heard.of("child.lost") == []


async def test_memory_has_a_limit(db: Path) -> None:
    """`max_memory`: a task that asks for more fails with MemoryError; its child is replaced, others go on."""
    async with app.at_work(db, processes=1, max_memory="300MB") as heard:
        first = await (await app.who.enqueue()).result(timeout=10)
        assert await (await app.greedy.enqueue(50)).result(timeout=10) == 50_000_000
        handle = await app.greedy.enqueue(400)
        with pytest.raises(TaskFailed, match="MemoryError"):
            await handle.result(timeout=10)
        assert await (await app.who.enqueue()).result(timeout=10) != first
        task = await handle.task()
    assert (task.error_type, task.losses) == ("MemoryError", 0)
    assert heard.of("child.lost") == []


@pytest.mark.timeout(40)
async def test_memory_that_is_never_given_back_is_the_end_of_its_task_alone(db: Path, tmp_path: Path) -> None:
    """A body leaves no memory even for the child itself: the task fails, with that or as the death of its child.

    What ran beside it completes, and is charged at most two losses.
    """
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=2, max_memory="150MB") as heard:
        handle = await app.hoard.enqueue()
        naps = [await app.nap.enqueue(str(log.path), 0.3) for _ in range(8)]
        for nap in naps:
            await nap.result(timeout=30)
        await until(lambda: heard.of("task.failed") or heard.of("task.quarantined"), within=30)
        task = await handle.task()
    assert (task.status, task.error_type) in {("failed", "MemoryError"), ("failed", "taskrunner.WorkerLost")}
    assert sql(db, "SELECT max(losses) <= 2 FROM tasks WHERE status = 'completed'") == [[1]]


async def test_the_end_of_the_work_leaves_no_process(db: Path, tmp_path: Path) -> None:
    """When the block ends, what runs is handed back unharmed, and no child is there any more."""
    log = EffectLog(tmp_path / "log")
    async with app.at_work(db, processes=2):
        handles = [await app.nap.enqueue(str(log.path), 60) for _ in range(3)]
        await until(lambda: len(log.lines()) == 3)
    pids = {int(line.split()[2]) for line in log.lines()}
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    with app.runner.override(db=db):
        async with app.runner:
            tasks = [await handle.task() for handle in handles]
    assert {(task.status, task.losses, task.retry_count) for task in tasks} == {("pending", 0, 0)}
    assert sql(db, "SELECT children FROM supervisors") == [["[]"]]
