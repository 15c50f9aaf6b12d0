"""The ends of an attempt, its steps and its progress: all under the fence, each written once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskrunner.core.errors import LeaseLost, TaskNotFound
from taskrunner.core.model import Fence, Task
from taskrunner.storage.engine import Rejected, Statement
from taskrunner.storage.listing import Filter
from taskrunner.storage.store import Store
from tests.stores import StillClock, claim, end, new_task, register


@pytest.fixture
async def task(store: Store) -> Task:
    """A running task with two retries."""
    await store.tasks.enqueue(new_task(max_retries=2))
    await register(store, "one")
    return (await claim(store, "one"))[0]


def record(store: Store, fence: Fence, name: str = "search", **given: Any) -> Statement:  # noqa: ANN401 - its own kinds
    """The record of a step."""
    fields: dict[str, Any] = {"scope": "", "occurrence": 0, "position": 0, "turn": 0, "digest": "d"}
    outcome: dict[str, Any] = {"value": "1", "error_type": None, "error": None}
    return store.journal.record(fence, name=name, **{**fields, **outcome, **given})


async def again(store: Store) -> Task:
    """The next attempt of the task."""
    (task,) = await claim(store, "one")
    return task


async def test_completed(store: Store, task: Task, clock: StillClock) -> None:
    """The output is stored, progress is full, and the end is final."""
    clock.advance(1)
    assert await store.tasks.end(task.fence, store.tasks.complete(task.fence, '{"x": [null]}')) == "completed"
    done = await store.tasks.get(task.id)
    assert (done.output, done.progress, done.lease_owner, done.completed_at) == ({"x": [None]}, 1.0, None, clock.now())
    for how in ("completed", "failed", "retried", "released"):
        with pytest.raises(LeaseLost):
            await end(store, task, how)
    assert await store.tasks.get(task.id) == done
    assert await store.tasks.cancel(task.id) == "too_late"


async def test_retried_until_the_retries_are_used_up(store: Store, task: Task, clock: StillClock) -> None:
    """Each failure with a retry left goes back with its wait; the last one fails the task."""
    fail = {"error_type": "ValueError", "error_message": "no", "traceback": "there"}
    for count in (1, 2):
        assert await store.tasks.end(task.fence, store.tasks.fail(task.fence, **fail, retry_in=60.0)) == "pending"
        waiting = await store.tasks.get(task.id)
        assert (waiting.retry_count, waiting.run_at) == (count, clock.now() + timedelta(seconds=60))
        assert (waiting.error_type, waiting.error_message, waiting.completed_at) == ("ValueError", "no", None)
        assert await claim(store, "one") == []
        clock.advance(60)
        task = await again(store)
    assert await store.tasks.end(task.fence, store.tasks.fail(task.fence, **fail, retry_in=60.0)) == "failed"
    failed = await store.tasks.get(task.id)
    assert (failed.retry_count, failed.attempt, failed.completed_at) == (2, 3, clock.now())
    assert [attempt.outcome for attempt in await store.journal.attempts(task.id)] == ["retried", "retried", "failed"]


async def test_failed_for_good_burns_no_retry(store: Store, task: Task) -> None:
    """Without a wait there is no other attempt, however many retries are left."""
    assert await end(store, task, "failed") == "failed"
    assert (await store.tasks.get(task.id)).retry_count == 0


async def test_released_costs_nothing(store: Store, task: Task) -> None:
    """A task that is handed back can be claimed at once, with all its retries."""
    for attempt in range(2, 9):
        assert await end(store, task, "released") == "pending"
        task = await again(store)
        assert (task.attempt, task.retry_count, task.losses, task.max_retries) == (attempt, 0, 0, 2)


@pytest.mark.parametrize("how", ["completed", "failed", "retried", "released"])
async def test_a_cancelled_task_becomes_cancelled_however_it_ends(store: Store, task: Task, how: str) -> None:
    """From the acknowledged cancel on nothing else can become of it (G6)."""
    assert await store.tasks.cancel(task.id, "enough") == "cancelling"
    assert await store.tasks.cancel(task.id, "again") == "cancelling"
    assert await store.tasks.cancel_requests("one") == [(task.id, 1)]
    assert await store.tasks.cancel_requests("two") == []
    assert await end(store, task, how) == "cancelled"
    cancelled = await store.tasks.get(task.id)
    assert (cancelled.output, cancelled.retry_count, cancelled.waiting_for) == (None, 0, None)
    assert await store.tasks.cancel(task.id) == "too_late"
    assert [attempt.outcome for attempt in await store.journal.attempts(task.id)] == ["cancelled"]


async def test_cancel_before_it_runs(store: Store) -> None:
    """Pending, delayed and put-back tasks are cancelled at once, with the reason."""
    await store.tasks.enqueue_many([new_task(), new_task("late", delay=60.0), new_task("back", priority=0)])
    await register(store, "one")
    (back,) = await claim(store, "one", 1)
    await store.tasks.end(back.fence, store.tasks.release(back.fence, "worker:back"))
    for row in await store.listing.rows(Filter(), limit=9):
        task_id = str(row[0])
        assert await store.tasks.cancel(task_id, "not now") == "cancelled"
        task = await store.tasks.get(task_id)
        assert (task.status, task.error_message, task.waiting_for) == ("cancelled", "not now", None)
    assert await claim(store, "one") == []
    with pytest.raises(TaskNotFound, match="no task has the id 'nobody'"):
        await store.tasks.cancel("nobody")


async def test_the_body_of_a_task_that_nobody_cancelled_is_not_cancelled(store: Store, task: Task) -> None:
    """Only an acknowledged cancel ends a task as cancelled."""
    with pytest.raises(LeaseLost):
        await store.tasks.end(task.fence, store.tasks.cancelled(task.fence))
    await store.tasks.cancel(task.id)
    assert await store.tasks.end(task.fence, store.tasks.cancelled(task.fence)) == "cancelled"


# ── steps and progress ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_steps_come_back_as_recorded_and_in_order(store: Store, task: Task) -> None:
    """Values, errors, scopes and positions, exactly as they were written."""
    records: list[dict[str, Any]] = [
        {"name": "b", "value": '"\\u0000 ü"', "turn": None, "scope": "k"},
        {"name": "a", "value": None, "error_type": "E", "error": "why", "position": 1},
        {"name": "a", "occurrence": 1, "position": 2, "value": "null"},
    ]
    await store.journal.write([record(store, task.fence, **fields) for fields in records])
    steps = await store.journal.steps(task.history_id)
    assert [
        {name: getattr(step, name) for name in fields} for step, fields in zip(steps, records, strict=True)
    ] == records
    assert await store.journal.steps("nobody") == []


async def test_a_step_is_recorded_once(store: Store, task: Task) -> None:
    """A second record of the same call is refused, whoever writes it, with all that came with it (G2)."""
    await store.journal.write([record(store, task.fence)])
    with pytest.raises(Rejected, match="recorded already"):
        await store.journal.write(
            [
                store.tasks.progress(task.fence, 0.9, ""),
                record(store, task.fence, "new"),
                record(store, task.fence, value="2"),
            ]
        )
    assert [record.value for record in await store.journal.steps(task.history_id)] == ["1"]
    assert (await store.tasks.get(task.id)).progress == 0.0


@pytest.mark.parametrize("stale", ["attempt", "owner", "task"])
async def test_a_zombie_writes_nothing(store: Store, task: Task, stale: str) -> None:
    """Every write of an attempt that lost its task is refused, and changes nothing (G3)."""
    given: dict[str, Any] = {"task_id": task.id, "owner": "one", "attempt": 1, "history_id": task.history_id}
    given["task_id" if stale == "task" else stale] = {"task": "nobody", "owner": "two", "attempt": 2}[stale]
    fence = Fence(**given)
    before = await store.tasks.get(task.id)
    writes: list[list[Statement]] = [
        [record(store, fence)],
        [store.tasks.progress(fence, 0.5, "")],
        [store.journal.fence(fence), record(store, task.fence)],
        [record(store, task.fence), store.tasks.progress(fence, 0.5, "")],
    ]
    for statements in writes:
        with pytest.raises(LeaseLost):
            await store.journal.write(statements)
    for statement in (
        store.tasks.complete(fence, "1"),
        store.tasks.fail(fence, error_type="E", error_message="", retry_in=None),
        store.tasks.release(fence),
        store.tasks.cancelled(fence),
    ):
        with pytest.raises(LeaseLost):
            await store.tasks.end(fence, statement, [record(store, task.fence)])
    assert await store.tasks.get(task.id) == before
    assert await store.journal.steps(task.history_id) == []


async def test_progress_that_is_shown_never_falls(store: Store, task: Task) -> None:
    """A replay begins at 0 and shows what was reached; the message is the latest."""
    for fraction, shown in ((0.5, 0.5), (0.25, 0.5), (0.75, 0.75)):
        await store.journal.write([store.tasks.progress(task.fence, fraction, f"at {fraction}")])
        now = await store.tasks.get(task.id)
        assert (now.progress, now.progress_message) == (shown, f"at {fraction}")
    await end(store, task, "released")
    task = await again(store)
    await store.journal.write([store.tasks.progress(task.fence, 0.1, "")])
    assert (await store.tasks.get(task.id)).progress == 0.75


async def test_a_recorded_step_clears_the_losses(store: Store, task: Task) -> None:
    """An attempt that recorded a step was no poison: its loss is the first one in a row."""
    for number, recorded in enumerate([False, False, True, False]):
        if recorded:
            await store.journal.write([record(store, task.fence)])
        await store.owners.bury([(str(task.lease_owner), "killed")], boot_id="", me="", monotonic=0.0)
        await register(store, f"next {number}")
        brought = await store.tasks.claim(f"next {number}", ["default"], 1, suspect=number in {1, 3})
        (task,) = brought.tasks
        assert brought.recovered[0].losses == {0: 1, 1: 2, 2: 1, 3: 2}[number]
