"""A living supervisor's tasks whose own process died: charged in one statement, those that are named and no others."""

from __future__ import annotations

from typing import Any

import pytest

from taskrunner.core.model import Task
from taskrunner.storage.store import Store
from tests.stores import claim, new_task, register

HOW = "child process 7 of supervisor process 1 on here: it was killed by SIGKILL (signal 9)"


@pytest.fixture
async def tasks(store: Store) -> list[Task]:
    """Three running tasks of one owner."""
    await store.tasks.enqueue_many([new_task(max_losses=3) for _ in range(3)])
    await register(store, "one")
    return await claim(store, "one")


async def lost(store: Store, task: Task, **fields: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the fields of a fence
    """Charge one task, and say what became of it."""
    fence = task.fence if not fields else type(task.fence)(**{**_fields(task), **fields})
    found = await store.tasks.lose("one", [fence], HOW)
    return tuple((each.task_id == task.id, each.status, each.losses) for each in found)


def _fields(task: Task) -> dict[str, Any]:
    fence = task.fence
    return {
        "task_id": fence.task_id,
        "owner": fence.owner,
        "attempt": fence.attempt,
        "history_id": fence.history_id,
    }


async def test_a_loss_is_one_more_than_before(store: Store, tasks: list[Task]) -> None:
    """The task is pending at once, the attempt has its evidence, and nobody else's task is touched."""
    assert await lost(store, tasks[0]) == ((True, "pending", 1),)
    [attempt] = await store.journal.attempts(tasks[0].id)
    assert (attempt.outcome, attempt.error_type, attempt.error_message) == (
        "lost",
        "taskrunner.WorkerLost",
        f"worker lost: {HOW}",
    )
    assert await store.tasks.counts() == {"pending": 1, "running": 2}


async def test_several_are_charged_at_once(store: Store, tasks: list[Task]) -> None:
    """All of a child's tasks in one statement; again it finds none of them."""
    fences = [task.fence for task in tasks]
    assert len(await store.tasks.lose("one", fences, HOW)) == 3
    assert await store.tasks.lose("one", fences, HOW) == []


async def test_an_attempt_that_recorded_a_step_begins_the_count_afresh(store: Store, tasks: list[Task]) -> None:
    """Lost without a record, then with one: one loss, as if there had been none before."""
    [task, *_others] = tasks
    assert await lost(store, task) == ((True, "pending", 1),)
    [again] = await claim(store, "one")
    record = store.journal.record(
        again.fence, scope="", name="s", occurrence=0, position=0, turn=0, digest="d", value="1", error_type=None,
        error=None,
    )  # fmt: skip
    await store.journal.write([record])
    assert await lost(store, again) == ((True, "pending", 1),)


async def test_at_max_losses_it_is_quarantined_with_the_evidence(store: Store, tasks: list[Task]) -> None:
    """Failed after exactly as many losses in a row, with what is known of the last one."""
    task = tasks[0]
    for losses in (1, 2, 3):
        assert await lost(store, task) == ((True, "failed" if losses == 3 else "pending", losses),)
        if losses < 3:
            [task] = (await store.tasks.claim("one", ["default"], 64, suspect=losses == 2)).tasks
    ended = await store.tasks.get(task.id)
    assert ended.error_message == (
        f"quarantined: its worker was lost 3 times in a row without recording a step (max_losses 3); the last was {HOW}"
    )


async def test_one_whose_cancel_was_asked_for_is_cancelled(store: Store, tasks: list[Task]) -> None:
    """An acknowledged cancel holds, whatever the process died of."""
    await store.tasks.cancel(tasks[0].id, "no need")
    assert await lost(store, tasks[0]) == ((True, "cancelled", 1),)
    assert (await store.tasks.get(tasks[0].id)).error_message == "no need"


@pytest.mark.parametrize("fields", [{"attempt": 2}, {"task_id": "another"}])
async def test_an_attempt_that_is_not_the_one_is_left_alone(
    store: Store, tasks: list[Task], fields: dict[str, Any]
) -> None:
    """Only the very attempt that ran in the dead process is charged."""
    assert await lost(store, tasks[0], **fields) == ()
    assert await store.tasks.counts() == {"running": 3}


async def test_who_is_not_the_owner_charges_nobody(store: Store, tasks: list[Task]) -> None:
    """Only the owner ends a running attempt."""
    await register(store, "two")
    assert await store.tasks.lose("two", [task.fence for task in tasks], HOW) == []


async def test_children_are_kept_with_their_supervisor(store: Store) -> None:
    """Those of a supervisor that has ended are found, until they are written off; a clean stop leaves none."""
    await register(store, "one")
    await register(store, "two")
    for owner in ("one", "two"):
        await store.owners.record_children(owner, [(7, 123), (8, 456)])
    assert await store.owners.left_children() == []
    await store.owners.bury([("one", "gone")], boot_id="", me="two", monotonic=0.0)
    await store.owners.retire("two")
    [(row, children)] = await store.owners.left_children()
    assert (row.id, children) == ("one", [(7, 123), (8, 456)])
    await store.owners.record_children("one", ())
    assert await store.owners.left_children() == []
