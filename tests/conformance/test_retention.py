"""Retention: what is old and finished goes with all its rows, a small commit at a time, and nothing else does."""
# ruff: noqa: S608 - every statement is put together of the tests' own texts

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from taskrunner.chaos.disk.verbs import World, record
from taskrunner.core.model import Task
from taskrunner.runtime import retention
from taskrunner.runtime.retention import Pruner
from taskrunner.storage.health import Health
from taskrunner.storage.retention import WHOLE
from taskrunner.storage.sqlite import SQLiteEngine
from taskrunner.storage.store import Store
from tests.stores import StillClock, claim, end, new_task, pruner_of, register, sql

DAY = 86_400.0
RETRY = (
    "UPDATE tasks SET status = 'pending', series = 1, error_message = NULL, error_type = NULL, completed_at = NULL, "
    "updated_at = completed_at"
)


def pruner(store: Store, clock: StillClock, keep: float | None = DAY) -> Pruner:
    """Somebody who keeps finished tasks for a day."""
    return pruner_of(store, clock, keep)


async def finish(store: Store, *types: str, how: str = "completed", steps: int = 2, **options: str) -> list[Task]:
    """Tasks of these types that have run to their end, each with so many steps."""
    await store.tasks.enqueue_many([new_task(name, priority=0, **options) for name in types])
    tasks = await claim(store, slots=len(types))
    assert [task.type for task in tasks] == list(types)
    for task in tasks:
        for first in range(0, steps, 500):
            names = range(first, min(first + 500, steps))
            await store.journal.write([record(store, task, f"step {number}") for number in names])
        await end(store, task, how)
    return tasks


def left(db: Path) -> dict[str, int]:
    """How many rows of each kind there are."""
    tables = ("tasks", "steps", "attempts", "retries", "messages", "removals")
    counts = ", ".join(f"(SELECT count(*) FROM {table})" for table in tables)
    return dict(zip(tables, sql(db, f"SELECT {counts}")[0], strict=True))


@contextmanager
def commits(store: Store) -> Iterator[list[int]]:
    """How many rows each commit has changed."""
    if not isinstance(store.engine, SQLiteEngine):
        pytest.skip("its writer is in another process")
    writer = store.engine._writer
    assert writer is not None
    rows: list[int] = []
    changed = [0]

    def change(*_what: object) -> None:
        changed[0] += 1

    def commit() -> bool:
        rows.append(changed[0])
        changed[0] = 0
        return False

    writer.connection.set_update_hook(change)
    writer.connection.set_commit_hook(commit)
    yield rows
    writer.connection.set_update_hook(None)
    writer.connection.set_commit_hook(None)


async def test_what_is_old_and_finished_goes_with_all_its_rows(store: Store, clock: StillClock, db: Path) -> None:
    """Completed, failed and cancelled ones go with steps, attempts and retries; messages stay (B47)."""
    await register(store, "me", lease=1e9)
    session = await store.messages.create_session(title="", model=None, system_prompt=None)
    world = World(session.id, [])
    await store.messages.write([store.messages.add(world.message("kept", history_id="h", write_key="1"))])
    await finish(store, "a", "b", idempotency_key="once", session_id=session.id)
    (failed,) = await finish(store, "c", how="failed")
    cancelled = await store.tasks.enqueue(new_task("d"))
    assert await store.tasks.cancel(cancelled) == "cancelled"
    sql(db, f"{RETRY} WHERE id = '{failed.id}'")
    (again,) = await claim(store)
    await end(store, again, "failed")
    assert left(db) == {"tasks": 4, "steps": 6, "attempts": 4, "retries": 1, "messages": 1, "removals": 0}
    assert await pruner(store, clock).prune() == 0
    clock.advance(DAY + 1)
    assert await pruner(store, clock).prune() == 4
    assert left(db) == {"tasks": 0, "steps": 0, "attempts": 0, "retries": 0, "messages": 1, "removals": 0}
    assert await pruner(store, clock).prune() == 0
    first, _ = await finish(store, "a", "b", idempotency_key="once")  # the keys went with their tasks
    assert first.idempotency_key == "once"


async def test_unfinished_and_young_tasks_stay(store: Store, clock: StillClock, db: Path) -> None:
    """However old: pending, delayed, waiting and running ones stay; what ended lately stays, whenever it was born."""
    await register(store, "me", lease=1e9)
    await store.tasks.enqueue_many([new_task("run", priority=0), new_task("unknown", priority=0), new_task("late")])
    running, unknown, late = await claim(store)
    await store.tasks.end(unknown.fence, store.tasks.release(unknown.fence, "worker:unknown"))
    await store.tasks.enqueue_many([new_task("waits"), new_task("delayed", delay=100 * DAY)])
    clock.advance(10 * DAY)
    await end(store, late)
    clock.advance(DAY / 2)
    assert await pruner(store, clock).prune() == 0
    clock.advance(DAY)
    assert await pruner(store, clock).prune() == 1
    assert sorted(row[0] for row in sql(db, "SELECT type FROM tasks")) == ["delayed", "run", "unknown", "waits"]
    assert await end(store, running) == "completed"


async def test_a_parent_goes_after_its_children(store: Store, clock: StillClock, db: Path) -> None:
    """A child stays while its parent is unfinished, a parent while a child is there; a whole tree goes."""
    await register(store, "me", lease=1e9)
    (root,) = await finish(store, "root")
    parent = root
    for depth in range(3):
        (parent,) = await finish(store, f"child {depth}", parent_task_id=parent.id)
    await store.tasks.enqueue(new_task("young", parent_task_id=parent.id))
    waiting = await store.tasks.enqueue(new_task("waiting parent", delay=100 * DAY))
    await finish(store, "early child", parent_task_id=waiting)
    clock.advance(DAY + 1)
    assert await pruner(store, clock).prune() == 0
    (young,) = await claim(store)
    await end(store, young)
    await store.tasks.cancel(waiting)
    clock.advance(DAY + 1)
    assert await pruner(store, clock).prune() == 7
    assert left(db)["tasks"] == 0


async def test_commits_are_small_however_much_is_old(
    store: Store, clock: StillClock, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of many steps, or of large ones, is removed a part at a time: no commit holds up the others (B47)."""
    monkeypatch.setattr(retention, "SHORTEST_PAUSE", 0.0)
    await register(store, "me", lease=1e9)
    await finish(store, *["small"] * 60, steps=20)
    await finish(store, "many", steps=3 * WHOLE)
    assert left(db)["steps"] == 60 * 20 + 3 * WHOLE
    clock.advance(DAY + 1)
    with commits(store) as rows:
        assert await pruner(store, clock).prune() == 61
    assert left(db) == {"tasks": 0, "steps": 0, "attempts": 0, "retries": 0, "messages": 0, "removals": 0}
    assert max(rows) <= WHOLE + 30
    assert len(rows) > 5


async def test_a_long_log_goes_before_its_task(store: Store, clock: StillClock, db: Path) -> None:
    """Lines of a log are work like steps, and where there are many they are removed a part at a time."""
    await register(store, "me", lease=1e9)
    await store.tasks.enqueue_many([new_task("few"), new_task("few"), new_task("many")])
    for task in await claim(store):
        lines = [("2026", "info", "x", "{}")] * (3 * WHOLE if task.type == "many" else WHOLE * 2 // 3)
        await store.journal.write([store.journal.log(task.fence, lines)])
        await end(store, task)
    clock.advance(DAY + 1)
    with commits(store) as rows:
        assert await pruner(store, clock).prune() == 3
    assert sql(db, "SELECT (SELECT count(*) FROM tasks), (SELECT count(*) FROM logs)") == [[0, 0]]
    assert max(rows) <= WHOLE + 30
    assert len(rows) >= 6


async def test_large_steps_are_much_work(store: Store, clock: StillClock, db: Path) -> None:
    """Values of a megabyte are removed a few at a time, for each of their pages is touched."""
    await register(store, "me", lease=1e9)
    (task,) = await finish(store, "large", steps=0, how="retried")
    (task,) = await claim(store)
    for number in range(20):
        columns = "history_id, scope, name, occurrence, position, digest, value, task_id, attempt, created_at"
        values = f"id, '', 's', {number}, 0, '', '1' || hex(zeroblob(500000)), id, attempt, created_at"
        sql(db, f"INSERT INTO steps({columns}) SELECT {values} FROM tasks")
    await end(store, task)
    clock.advance(DAY + 1)
    with commits(store) as rows:
        assert await pruner(store, clock).prune() == 1
    assert max(rows) <= WHOLE // 61 + 3  # a megabyte is 62 rows' work; the task, its attempts and the mark


@pytest.mark.parametrize("keep", [100 * DAY, None])
async def test_a_removal_that_was_cut_off_is_finished_by_the_next_one(
    store: Store, clock: StillClock, db: Path, keep: float | None
) -> None:
    """Whoever died amid a large task: from its beginning on nobody retries it, and the next round removes the rest.

    So it does when nothing that is finished is removed any more.
    """
    await register(store, "me", lease=1e9)
    (task,) = await finish(store, "many", steps=2 * WHOLE, how="failed")
    clock.advance(DAY + 1)
    await store.retention.begin(task.id, clock.now() - timedelta(days=1))
    assert await store.retention.remove_steps(task.history_id, 10) == 10
    retry = (
        "UPDATE tasks SET status = 'pending', series = 1, error_message = NULL, error_type = NULL, completed_at = NULL"
    )
    with pytest.raises(AssertionError, match="this task is being removed"):
        sql(db, retry)
    assert await pruner(store, clock, keep).prune() == 1
    assert left(db) == {"tasks": 0, "steps": 0, "attempts": 0, "retries": 0, "messages": 0, "removals": 0}


async def test_a_task_that_got_a_child_while_it_was_removed_stays_for_it(
    store: Store, clock: StillClock, db: Path
) -> None:
    """A child that comes amid the removal of its parent keeps it: it goes as soon as the child has gone."""
    await register(store, "me", lease=1e9)
    (parent,) = await finish(store, "parent")
    clock.advance(DAY + 1)
    await store.retention.begin(parent.id, clock.now() - timedelta(days=1))
    (child,) = await finish(store, "child", parent_task_id=parent.id)
    assert await pruner(store, clock).prune() == 0
    assert await Health(store.engine).invariants() == []
    assert sql(db, "SELECT id, parent_task_id FROM tasks ORDER BY seq") == [[parent.id, None], [child.id, parent.id]]
    clock.advance(DAY + 1)
    assert await pruner(store, clock).prune() == 2
    assert left(db)["tasks"] == 0


async def test_what_was_retried_meanwhile_stays(store: Store, clock: StillClock, db: Path) -> None:
    """Between the look and the commit somebody retries a failed task: it stays, with its steps."""
    await register(store, "me", lease=1e9)
    await finish(store, "a", "b", how="failed")
    clock.advance(DAY + 1)
    before = clock.now() - timedelta(days=1)
    page = await store.retention.finished("failed", before)
    sql(db, f"{RETRY} WHERE type = 'a'")
    assert await store.retention.remove([task.id for task in page], before) == 1
    await store.retention.begin(page[0].id, before)
    assert sql(db, "SELECT type FROM tasks") == [["a"]]
    assert left(db) == {"tasks": 1, "steps": 2, "attempts": 1, "retries": 1, "messages": 0, "removals": 0}


async def test_the_file_does_not_grow_where_as_much_is_removed(store: Store, clock: StillClock, db: Path) -> None:
    """The pages of what was removed are written again: a file that is pruned stays as large as it was."""
    await register(store, "me", lease=1e9)
    sizes = []
    for _ in range(5):
        await finish(store, *["job"] * 50, steps=10)
        clock.advance(DAY + 1)
        assert await pruner(store, clock).prune() == 50
        sizes.append(int(sql(db, "PRAGMA page_count")[0][0]))
    assert sizes[-1] <= sizes[0] + 5


async def test_several_prune_at_once(store: Store, clock: StillClock, db: Path) -> None:
    """Two supervisors that look at the same tasks remove each once between them."""
    await register(store, "me", lease=1e9)
    for _ in range(5):
        await finish(store, *["job"] * 60, steps=3)
    clock.advance(DAY + 1)
    removed = await asyncio.gather(*(pruner(store, clock).prune() for _ in range(3)))
    assert sum(removed) == 300
    assert left(db)["tasks"] == left(db)["steps"] == 0
