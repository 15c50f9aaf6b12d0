"""The retry by hand: what it takes, what it clears, what it keeps; and cancel and retry of many tasks."""

from __future__ import annotations

import anyio
import pytest

from taskrunner.core.errors import InvalidInput, TaskNotFound
from taskrunner.core.model import Task
from taskrunner.core.states import STATUSES, Status
from taskrunner.storage.listing import Filter
from taskrunner.storage.store import Store
from taskrunner.storage.tasks import KeyTaken
from tests.conformance.test_ends import record
from tests.stores import StillClock, claim, end, new_task, register

HOUR = 3_600.0


async def task_in(store: Store, status: Status, **options: str) -> Task:
    """A task with a step, and in this status after one attempt that was retried."""
    await register(store, owner := f"owner of {status} {options}")
    task_id = await store.tasks.enqueue(new_task(max_retries=1, priority=0, **options))
    (task,) = await claim(store, owner, 1)
    await store.journal.write([record(store, task.fence), store.tasks.progress(task.fence, 0.5, "half")])
    if status == "pending":
        return task
    await end(store, task, "retried")
    (task,) = await claim(store, owner, 1)
    if status == "cancelled":
        await store.tasks.cancel(task_id, "enough")
        await store.tasks.end(task.fence, store.tasks.cancelled(task.fence))
    elif status != "running":
        await end(store, task, status)
    return await store.tasks.get(task_id)


@pytest.mark.parametrize("status", ["failed", "cancelled"])
async def test_a_finished_task_is_run_again(store: Store, clock: StillClock, status: Status) -> None:
    """It is pending at once, as a new series: with its steps, its progress and its next attempt, but a clean slate."""
    before = await task_in(store, status, input='{"x": [1]}')
    clock.advance(HOUR)
    await store.tasks.retry(before.id)
    task = await store.tasks.get(before.id)
    assert (task.status, task.series, task.run_at, task.updated_at) == ("pending", 1, clock.now(), clock.now())
    assert (task.retry_count, task.losses, task.error_type, task.error_message) == (0, 0, None, None)
    assert (task.output, task.completed_at, task.cancel_requested_at, task.waiting_for) == (None, None, None, None)
    assert (task.input, task.progress, task.attempt) == ({"x": [1]}, 0.5, 2)
    assert [step.name for step in await store.journal.steps(task.history_id)] == ["search"]
    assert [attempt.attempt for attempt in await store.journal.attempts(task.id)] == [1, 2]
    (log,) = await store.journal.retries(task.id)
    assert (log.series, log.from_status, log.error_message) == (1, status, before.error_message)
    assert log.retried_at == clock.now()
    (again,) = await claim(store, f"owner of {status} {{'input': '{{\"x\": [1]}}'}}")
    assert (again.id, again.attempt) == (before.id, 3)
    assert await end(store, again) == "completed"


async def test_a_task_is_retried_as_often_as_somebody_likes(store: Store) -> None:
    """Each time is a series of its own, and is logged."""
    task = await task_in(store, "failed")
    await register(store, "one")
    for series in range(1, 6):
        await store.tasks.retry(task.id)
        (again,) = await claim(store, "one")
        assert (again.series, again.attempt) == (series, 2 + series)
        await end(store, again, "failed")
    assert [each.series for each in await store.journal.retries(task.id)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in {"failed", "cancelled"}])
async def test_no_other_task_is_retried(store: Store, status: Status) -> None:
    """A completed one is final, an unfinished one needs none: one sentence says so, and nothing is written."""
    task = await task_in(store, status)
    before = await store.tasks.get(task.id)
    with pytest.raises(InvalidInput, match=f"is {before.status}: only a failed or cancelled task can be retried"):
        await store.tasks.retry(task.id)
    assert await store.tasks.get(task.id) == before
    with pytest.raises(TaskNotFound, match="no task has the id 'nobody'"):
        await store.tasks.retry("nobody")


async def test_its_unique_key_may_be_taken_meanwhile(store: Store) -> None:
    """Two unfinished tasks never share a key: the retry waits until the other one has ended."""
    old = await task_in(store, "failed", unique_key="k")
    new = await store.tasks.enqueue(new_task(unique_key="k"))
    with pytest.raises(KeyTaken, match="'job' has unique_key='k' already") as refused:
        await store.tasks.retry(old.id)
    assert await store.tasks.holder_of(refused.value) == new
    assert (await store.tasks.get(old.id)).status == "failed"
    await store.tasks.cancel(new)
    await store.tasks.retry(old.id)
    with pytest.raises(KeyTaken):
        await store.tasks.retry(new)


async def test_of_many_retries_at_once_one_counts(store: Store) -> None:
    """Whoever comes first retries the task, and whoever comes later hears that it is pending."""
    task = await task_in(store, "failed")
    answers: list[str] = []

    async def retry() -> None:
        try:
            await store.tasks.retry(task.id)
            answers.append("retried")
        except InvalidInput as late:
            answers.append(str(late).partition(":")[0])

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(retry)
    assert sorted(answers) == ["retried", *[f"task {task.id} is pending"] * 9]
    assert (await store.tasks.get(task.id)).series == 1


async def chosen(store: Store, filtered: Filter) -> list[str]:
    """All the ids that a filter means."""
    return [task_id async for batch in store.bulk.choose(filtered) for task_id in batch]


async def test_many_are_cancelled_in_batches(store: Store) -> None:
    """A filter brings the ids in batches, the newest first; each task has its own answer."""
    ids = await store.tasks.enqueue_many([new_task(f"t{number % 2}") for number in range(2_250)])
    assert await chosen(store, Filter(status="pending")) == ids[::-1]
    await register(store, "one")
    (running,) = await claim(store, "one", 1)
    batches = [batch async for batch in store.bulk.choose(Filter(status="pending", type="t1"))]
    assert [len(batch) for batch in batches] == [*[100] * 11, 25]
    answers = [done for batch in batches for done in await store.bulk.cancel(batch, "enough")]
    assert {done.answer for done in answers} == {"cancelled"}
    assert (await store.tasks.get(ids[1])).error_message == "enough"
    await end(store, (await claim(store, "one", 2))[0])
    rest = await store.bulk.cancel([running.id, ids[1], ids[2], "nobody"])
    assert [(done.answer, done.why) for done in rest] == [
        ("cancelling", ""),
        ("too_late", "cancelled"),
        ("too_late", "completed"),
        ("not_found", ""),
    ]


async def test_many_are_retried_and_one_refusal_spoils_nothing(store: Store) -> None:
    """A key that is taken, a task that waits already: each has its answer, and the others are run again."""
    free, keyed = await task_in(store, "failed"), await task_in(store, "failed", unique_key="k")
    await store.tasks.enqueue(new_task(unique_key="k"))
    done = await store.bulk.retry([free.id, keyed.id, free.id])
    assert [each.answer for each in done] == ["retried", "key_taken", "not_retriable"]
    assert "unique_key='k'" in done[1].why
    with pytest.raises(InvalidInput, match="lone surrogates"):
        await store.bulk.retry(["\ud800"])
