"""Enqueue: what is stored, what the keys do, what the task type's row decides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskrunner.core.clock import Clock
from taskrunner.core.errors import InvalidInput, NoSession
from taskrunner.core.model import NewTask, Task, TaskType
from taskrunner.storage.listing import Filter
from taskrunner.storage.store import Store
from taskrunner.storage.tasks import KeyTaken
from tests.stores import StillClock, claim, end, new_task, register


async def enqueue(store: Store, *new: NewTask) -> list[Task]:
    """Enqueue in one commit, and look at what is stored."""
    return [await store.tasks.get(task_id) for task_id in await store.tasks.enqueue_many(new)]


async def in_order(store: Store) -> list[str]:
    """The types of what is due, in the order in which one slot would run it."""
    owner = Clock().new_id()
    await register(store, owner)
    types = []
    while tasks := await claim(store, owner, 1):
        types.append(tasks[0].type)
        await end(store, tasks[0])
    return types


async def test_a_task_is_stored_as_given(store: Store, clock: StillClock) -> None:
    """Every option is a column; what is not given has the default of the house."""
    plain, full = await enqueue(
        store,
        new_task("plain", input='{"x": null}'),
        new_task(
            "full", queue="q", priority=0, unique_key="u", idempotency_key="i", parent_task_id="p",
            max_retries=0, timeout=1.5, max_losses=3,
        ),
    )  # fmt: skip
    assert (plain.queue, plain.priority, plain.max_retries, plain.timeout, plain.max_losses) == (
        "default",
        5,
        3,
        None,
        5,
    )
    assert (plain.input, plain.output, plain.session_id, plain.unique_key) == ({"x": None}, None, None, None)
    assert (plain.status, plain.attempt, plain.losses, plain.retry_count, plain.series) == ("pending", 0, 0, 0, 0)
    assert plain.run_at == plain.created_at == plain.updated_at == clock.now()
    assert plain.history_id == plain.id
    assert (full.queue, full.priority, full.max_retries, full.timeout, full.max_losses) == ("q", 0, 0, 1.5, 3)
    assert (full.unique_key, full.idempotency_key, full.parent_task_id) == ("u", "i", "p")


async def test_the_row_of_a_type_fills_in_what_is_not_given(store: Store) -> None:
    """Enqueue by name knows a type's own settings from its row; a given value counts before it, 0 too."""
    kind = TaskType(name="job", queue="slow", priority=7, max_retries=9, timeout=30.0, max_losses=4)
    await register(store, "one", types=[kind])
    known, given, other = await enqueue(
        store,
        new_task(),
        new_task(queue="fast", priority=0, max_retries=0, timeout=1.0, max_losses=3),
        new_task("other"),
    )
    assert (known.queue, known.priority, known.max_retries, known.timeout, known.max_losses) == ("slow", 7, 9, 30.0, 4)
    assert (given.queue, given.priority, given.max_retries, given.timeout, given.max_losses) == ("fast", 0, 0, 1.0, 3)
    assert (other.queue, other.priority, other.max_retries, other.timeout, other.max_losses) == (
        "default",
        5,
        3,
        None,
        5,
    )
    await register(store, "two", types=[TaskType(name="job")])
    (changed,) = await enqueue(store, new_task())
    assert (changed.queue, changed.priority, changed.max_retries, changed.timeout) == ("default", 5, 3, None)


async def test_lower_priority_first_then_the_order_of_enqueue(store: Store) -> None:
    """Equal priorities run in exact enqueue order, whatever their ids and their moment (B06)."""
    many = [new_task(f"{priority}.{number:02}", priority=priority) for number in range(20) for priority in (9, 5, 0)]
    await store.tasks.enqueue_many(many)
    assert await in_order(store) == sorted(task.type for task in many)


async def test_a_delayed_task_takes_its_enqueue_place_when_due(store: Store, clock: StillClock) -> None:
    """It is not claimed before its moment; then it goes before what was enqueued after it."""
    await store.tasks.enqueue_many(
        [
            new_task("first", delay=60.0),
            new_task("second", run_at=clock.now() + timedelta(seconds=61)),
            new_task("past", run_at=clock.now() - timedelta(days=1)),
            new_task("no delay", delay=0.0),
            new_task("far", delay=1e12),
        ]
    )
    assert await store.tasks.next_due() == clock.now() + timedelta(seconds=60)
    assert await in_order(store) == ["past", "no delay"]
    clock.advance(59.999)
    assert await in_order(store) == []
    await store.tasks.enqueue(new_task("later"))
    clock.advance(0.001)
    assert await in_order(store) == ["first", "later"]
    clock.advance(1)
    assert await in_order(store) == ["second"]


async def test_a_batch_is_stored_in_order_or_not_at_all(store: Store) -> None:
    """One duplicate, one unknown session: nothing of the batch is there afterwards."""
    await store.tasks.enqueue(new_task(unique_key="k"))
    with pytest.raises(KeyTaken, match="'job' has unique_key='k' already"):
        await store.tasks.enqueue_many([new_task("a"), new_task(unique_key="k", on_conflict="reject"), new_task("b")])
    with pytest.raises(NoSession):
        await store.tasks.enqueue_many([new_task("a"), new_task("b", session_id="nobody")])
    assert await store.tasks.counts() == {"pending": 1}
    assert await store.tasks.enqueue_many([]) == []
    ids = await store.tasks.enqueue_many([new_task(str(number)) for number in range(2_000)])
    assert len(set(ids)) == 2_000
    tasks = [await store.tasks.get(task_id) for task_id in (ids[0], ids[1], ids[-1])]
    assert [task.type for task in tasks] == ["0", "1", "1999"]
    assert tasks[2].seq - tasks[0].seq == 1_999


# ── unique keys ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_reuse_gives_the_task_that_holds_the_key(store: Store) -> None:
    """The first task stays as it is, whatever the second one says."""
    (first,) = await enqueue(store, new_task(unique_key="k", input='{"n": 1}', priority=3))
    (second,) = await enqueue(store, new_task(unique_key="k", input='{"n": 2}', priority=9, delay=60.0))
    assert second == first
    assert await store.tasks.counts() == {"pending": 1}


async def test_replace_rewrites_a_task_that_never_started(store: Store, clock: StillClock) -> None:
    """Input, run_at and priority are the second one's; id and place in the order stay."""
    (first,) = await enqueue(store, new_task(unique_key="k", input='{"n": 1}', max_retries=7))
    clock.advance(1)
    replacing = new_task(unique_key="k", input='{"n": 2}', priority=1, delay=60.0, max_retries=2, on_conflict="replace")
    (second,) = await enqueue(store, replacing)
    assert (second.id, second.seq, second.max_retries) == (first.id, first.seq, 7)
    assert (second.input, second.priority, second.run_at) == ({"n": 2}, 1, clock.now() + timedelta(seconds=60))
    await register(store, "one")
    assert await claim(store, "one") == []
    await enqueue(store, new_task(unique_key="k", input='{"n": 3}', on_conflict="replace"))
    (task,) = await claim(store, "one")
    assert (task.id, task.input, task.priority) == (first.id, {"n": 3}, 5)


@pytest.mark.parametrize("started", ["running", "retried", "released"])
async def test_replace_acts_as_reject_once_the_task_has_started(store: Store, started: str) -> None:
    """What has run may have done half of its work on its old input."""
    await store.tasks.enqueue(new_task(unique_key="k", input='{"n": 1}'))
    await register(store, "one")
    (task,) = await claim(store, "one")
    if started != "running":
        await end(store, task, started)
    with pytest.raises(KeyTaken):
        await store.tasks.enqueue(new_task(unique_key="k", input='{"n": 2}', on_conflict="replace"))
    assert (await store.tasks.get(task.id)).input == {"n": 1}


@pytest.mark.parametrize("ended", ["completed", "failed", "cancelled"])
async def test_a_key_is_free_again_when_its_task_has_ended(store: Store, ended: str) -> None:
    """A unique key is unique among the unfinished tasks of a type."""
    for rule in ("reuse", "replace", "reject"):
        new = new_task(unique_key="k", on_conflict=rule)
        (first,) = await enqueue(store, new)
        taken = KeyTaken(new.type, "k")
        assert await store.tasks.holder_of(taken) == first.id
        if ended == "cancelled":
            await store.tasks.cancel(first.id)
        else:
            await register(store, rule)
            await end(store, (await claim(store, rule))[0], ended)
        assert await store.tasks.holder_of(taken) is None
        (second,) = await enqueue(store, new)
        assert second.id != first.id
        await store.tasks.cancel(second.id)


async def test_a_key_belongs_to_its_type(store: Store) -> None:
    """Two types may use one key; reject names the one that is taken."""
    ids = await store.tasks.enqueue_many([new_task(kind, unique_key="k", on_conflict="reject") for kind in "ab"])
    assert len(set(ids)) == 2
    with pytest.raises(KeyTaken, match="'b' has unique_key='k'"):
        await store.tasks.enqueue(new_task("b", unique_key="k", on_conflict="reject"))


async def test_one_key_twice_in_a_batch(store: Store) -> None:
    """Reuse makes them one task; reject refuses the batch in one sentence and does not try for ever."""
    ids = await store.tasks.enqueue_many([new_task(unique_key="k"), new_task(unique_key="k")])
    assert ids[0] == ids[1]
    twins = [new_task(unique_key="new", on_conflict="reject") for _ in range(2)]
    with pytest.raises(InvalidInput, match="unique_key='new': two tasks of one batch have it"):
        await store.tasks.enqueue_many(twins)
    assert await store.tasks.counts() == {"pending": 1}


# ── idempotency keys ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ended", [None, "completed", "failed"])
async def test_an_idempotency_key_gives_the_first_task_for_ever(store: Store, ended: str | None) -> None:
    """A second enqueue gets the first one's task whatever its input and whatever became of it."""
    (first,) = await enqueue(store, new_task(idempotency_key="i", input='{"n": 1}'))
    if ended is not None:
        await register(store, "one")
        await end(store, (await claim(store, "one"))[0], ended)
    (second,) = await enqueue(store, new_task(idempotency_key="i", input='{"n": 2}', priority=9, queue="other"))
    assert (second.id, second.input, second.queue) == (first.id, {"n": 1}, "default")
    (other,) = await enqueue(store, new_task("other", idempotency_key="i"))
    assert other.id != first.id


@pytest.mark.parametrize("rule", ["reuse", "replace", "reject"])
async def test_with_both_keys_the_idempotency_key_counts_first(store: Store, rule: str) -> None:
    """A request that is sent again is the first one, even when its unique key would refuse or rewrite."""

    def new(**fields: Any) -> NewTask:  # noqa: ANN401 - the fields' own kinds
        return new_task(on_conflict=rule, **fields)

    (first,) = await enqueue(store, new(unique_key="u", idempotency_key="i", input='{"n": 1}'))
    (again,) = await enqueue(store, new(unique_key="u", idempotency_key="i", input='{"n": 2}'))
    assert again == first
    (elsewhere,) = await enqueue(store, new(unique_key="v", idempotency_key="i", input='{"n": 3}'))
    assert elsewhere == first
    (other,) = await enqueue(store, new(unique_key="w", idempotency_key="j"))
    (crossed,) = await enqueue(store, new(unique_key="u", idempotency_key="j", input='{"n": 4}'))
    assert crossed == other
    assert (await store.tasks.get(first.id)).input == {"n": 1}


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_of_a_session(store: Store) -> None:
    """It is listed with its session; one that is not there is named in one sentence."""
    session = await store.messages.create_session(title="", model=None, system_prompt=None)
    (task,) = await enqueue(store, new_task(session_id=session.id))
    assert task.session_id == session.id
    assert [row[0] for row in await store.listing.rows(Filter(session_id=session.id), limit=9)] == [task.id]
    with pytest.raises(NoSession, match="no session has this id"):
        await store.tasks.enqueue(new_task(session_id="nobody"))
    with pytest.raises(NoSession):
        await store.tasks.enqueue(new_task(session_id="nobody", unique_key="k"))
