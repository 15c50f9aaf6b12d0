"""Claim: who gets what, how much at once, what becomes of orphans and of rows that cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskrunner.core.errors import LeaseLost, StoreError
from taskrunner.storage.engine import Statement, Unit
from taskrunner.storage.store import Store
from tests.stores import StillClock, claim, end, new_task, register, sql


async def test_a_claim_sets_the_lease_and_the_fence(store: Store, clock: StillClock) -> None:
    """The claimed row says who runs it, as which attempt, since when."""
    await store.tasks.enqueue(new_task(input='{"x": 1}'))
    await register(store, "one")
    clock.advance(5)
    (task,) = await claim(store, "one")
    assert (task.status, task.lease_owner, task.attempt, task.input) == ("running", "one", 1, {"x": 1})
    assert task.started_at == task.updated_at == clock.now()
    assert task == await store.tasks.get(task.id)
    assert await claim(store, "one") == []
    await end(store, task, "released")
    (again,) = await claim(store, "one")
    assert (again.id, again.attempt) == (task.id, 2)
    with pytest.raises(LeaseLost):
        await end(store, task)
    assert await end(store, again) == "completed"


@pytest.mark.parametrize("slots", [0, 1, 7, 63, 64, 65, 200])
async def test_a_claim_never_exceeds_the_slots(store: Store, slots: int) -> None:
    """Over several queues and with tasks that were put back, an owner never holds more than its slots (G9)."""
    queues = ["a", "b", "c"]
    await store.tasks.enqueue_many([new_task(queue=queue) for queue in queues for _ in range(80)])
    await register(store, "back")
    for task in await claim(store, "back", 64, ["c"]):
        await store.tasks.end(task.fence, store.tasks.release(task.fence, "worker:job"))
    for owner in ("one", "two"):
        await register(store, owner)
        held = 0
        while more := (await store.tasks.claim(owner, queues, slots, ["job"])).tasks:
            held += len(more)
            assert held <= slots
        assert held == min(slots, 240 if owner == "one" else 240 - min(slots, 240))


async def test_every_task_is_claimed_once(store: Store) -> None:
    """Claims of many owners at once share out the tasks: none twice, none left."""
    owners = [f"owner {number}" for number in range(8)]
    ids = await store.tasks.enqueue_many([new_task(queue=f"q{number % 3}") for number in range(300)])
    for owner in owners:
        await register(store, owner)

    async def work(owner: str) -> list[str]:
        mine = []
        while tasks := await claim(store, owner, 5, ["q0", "q1", "q2"]):
            mine += [task.id for task in tasks]
            await asyncio.gather(*(end(store, task) for task in tasks))
        return mine

    claimed = await asyncio.gather(*(work(owner) for owner in owners))
    assert sorted(task_id for mine in claimed for task_id in mine) == sorted(ids)
    assert await store.tasks.counts() == {"completed": 300}


async def test_a_claim_tells_which_queues_have_more(store: Store, clock: StillClock) -> None:
    """Every queue that holds something claimable is named, whether it was asked for or not."""
    await store.tasks.enqueue_many(
        [new_task(queue=queue) for queue in ("a", "b", "b", "")] + [new_task(queue="late", delay=9.0)]
    )
    await register(store, "one")
    first = await store.tasks.claim("one", ["a", "b", "nobody's"], 2)
    assert ([task.queue for task in first.tasks], first.queues) == (["a", "b"], ["", "b"])
    clock.advance(9)
    assert (await store.tasks.claim("one", [], 9)).queues == ["", "b", "late"]


async def test_tasks_of_unknown_types_come_back_to_who_knows_them(store: Store) -> None:
    """Put back as `worker:TYPE`, they stay out of the claim, and cost neither a retry nor a loss (B05)."""
    await store.tasks.enqueue_many([new_task("new"), new_task("old")])
    await register(store, "one")
    for task in await claim(store, "one"):
        await store.tasks.end(task.fence, store.tasks.release(task.fence, f"worker:{task.type}"))
    assert await claim(store, "one") == []
    (task,) = (await store.tasks.claim("one", [], 9, ["new"])).tasks
    assert (task.type, task.waiting_for, task.attempt, task.losses, task.retry_count) == ("new", None, 2, 0, 0)
    assert (await store.tasks.claim("one", [], 9, ["old"], only=["elsewhere"])).tasks == []
    assert len((await store.tasks.claim("one", [], 9, ["old"], only=["elsewhere", "default"])).tasks) == 1


# ── orphans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def bury(store: Store, owner: str) -> None:
    """Take an owner for dead."""
    await store.owners.bury([(owner, "it was killed")], boot_id="", me="", monotonic=0.0)


async def test_a_dead_owners_tasks_are_found_by_the_next_claim(store: Store) -> None:
    """They are pending again with one more loss, and their old attempt can write nothing."""
    await store.tasks.enqueue(new_task())
    await register(store, "one")
    (task,) = await claim(store, "one")
    await register(store, "two")
    assert (await store.tasks.claim("two", ["default"], 9)).recovered == []
    await bury(store, "one")
    brought = await store.tasks.claim("two", ["default"], 9)
    assert [(found.task_id, found.status, found.losses) for found in brought.recovered] == [(task.id, "pending", 1)]
    assert [(each.id, each.attempt, each.lease_owner, each.losses) for each in brought.tasks] == [
        (task.id, 2, "two", 1)
    ]
    with pytest.raises(LeaseLost):
        await end(store, task)
    (lost,) = await store.journal.attempts(task.id)
    assert (lost.outcome, lost.owner, lost.error_type) == ("lost", "one", "taskrunner.WorkerLost")
    assert "process 1 on here: it was killed" in str(lost.error_message)


async def test_an_owner_whose_row_is_gone_is_dead(store: Store, db: Path) -> None:
    """A row in the name of nobody is an orphan like any other."""
    await store.tasks.enqueue(new_task())
    await register(store, "one")
    (task,) = await claim(store, "one")
    sql(db, "DELETE FROM supervisors")
    await register(store, "two")
    assert [found.task_id for found in (await store.tasks.claim("two", [], 1)).recovered] == [task.id]


async def test_who_was_taken_for_dead_claims_nothing(store: Store) -> None:
    """Its claim would be an orphan at once: it has to begin anew, under another id."""
    await store.tasks.enqueue(new_task())
    await register(store, "one")
    await bury(store, "one")
    for owner in ("one", "nobody"):
        with pytest.raises(LeaseLost):
            await claim(store, owner)
    assert await store.tasks.counts() == {"pending": 1}


async def test_losses_in_a_row_quarantine_a_task(store: Store) -> None:
    """After `max_losses` deaths of its process without a recorded step it is failed, with the evidence."""
    await store.tasks.enqueue(new_task(max_losses=3))
    await register(store, "finder")
    for number in range(1, 4):
        await register(store, f"owner {number}")
        (task,) = await claim(store, f"owner {number}", suspect=number == 3)
        await bury(store, f"owner {number}")
        (found,) = (await store.tasks.claim("finder", [], 1)).recovered
        assert (found.losses, found.status) == (number, "pending" if number < 3 else "failed")
    task = await store.tasks.get(task.id)
    assert (task.status, task.losses, task.error_type) == ("failed", 3, "taskrunner.WorkerLost")
    assert "quarantined: its worker was lost 3 times in a row" in str(task.error_message)
    assert task.completed_at is not None
    assert [attempt.outcome for attempt in await store.journal.attempts(task.id)] == ["lost"] * 3


async def test_a_cancelled_orphan_becomes_cancelled(store: Store) -> None:
    """A cancel that was acknowledged is carried out by recovery when the body's process is gone (G6)."""
    await store.tasks.enqueue(new_task())
    await register(store, "one")
    (task,) = await claim(store, "one")
    assert await store.tasks.cancel(task.id, "enough") == "cancelling"
    await bury(store, "one")
    await register(store, "two")
    (found,) = (await store.tasks.claim("two", ["default"], 1)).recovered
    assert found.status == "cancelled"
    task = await store.tasks.get(task.id)
    assert (task.status, task.error_message, task.losses) == ("cancelled", "enough", 1)


# ── rows that something else wrote ────────────────────────────────────────────────────────────────────────────────────

NOT_UTF8 = "CAST(x'ff41' AS TEXT)"


@pytest.mark.parametrize("column", ["id", "type", "queue", "input", "unique_key", "history_id"])
async def test_a_row_that_is_no_text_stops_nobody(store: Store, db: Path, column: str) -> None:
    """A row with bytes that are not UTF-8 is failed with a sentence, and the others are claimed (G9)."""
    await store.tasks.enqueue_many([new_task("before"), new_task("after", priority=6)])
    fields = dict.fromkeys(["id", "history_id"], "'bad'") | {"type": "'bad'", "queue": "'default'", "input": "'{}'"}
    fields |= {"unique_key": "NULL", "max_retries": "3", "max_losses": "5"}
    fields |= {column: NOT_UTF8} | dict.fromkeys(
        ["run_at", "created_at", "updated_at"], "'2026-01-01T00:00:00.000000Z'"
    )
    sql(db, f"INSERT INTO tasks({', '.join(fields)}) VALUES ({', '.join(fields.values())})")  # noqa: S608 - its own text
    await register(store, "one")
    tasks = await claim(store, "one")
    assert [task.type for task in tasks] == ["before", "after"]
    told = sql(db, "SELECT status, error_message FROM tasks WHERE status <> 'running'")
    assert told == [["failed", "its row is unreadable: it holds text that is not UTF-8"]]


async def test_a_running_row_that_is_no_text_stops_no_recovery(store: Store, db: Path) -> None:
    """An orphan that cannot be read is ended, and the other orphans are put back (G9)."""
    await store.tasks.enqueue_many([new_task(), new_task(), new_task()])
    await register(store, "one")
    tasks = await claim(store, "one")
    await store.tasks.cancel(tasks[2].id)
    sql(db, f"UPDATE tasks SET queue = {NOT_UTF8} WHERE seq <> {tasks[0].seq}")  # noqa: S608 - a test's own text
    await bury(store, "one")
    await register(store, "two")
    assert [found.task_id for found in (await store.tasks.claim("two", [], 1)).recovered] == [tasks[0].id]
    assert sql(db, "SELECT status FROM tasks ORDER BY seq") == [["pending"], ["failed"], ["cancelled"]]
    assert sql(db, "SELECT outcome FROM attempts ORDER BY outcome") == [["cancelled"], ["failed"], ["lost"]]


async def test_a_row_that_is_no_json_is_handed_over_as_unreadable(store: Store, db: Path) -> None:
    """The claim brings it apart from the others, so that the supervisor can fail it (G9)."""
    await store.tasks.enqueue_many([new_task("before"), new_task("after")])
    sql(db, "UPDATE tasks SET input = 'no json' WHERE type = 'before'")
    await register(store, "one")
    brought = await store.tasks.claim("one", ["default"], 9)
    assert ([task.type for task in brought.tasks], len(brought.unreadable)) == (["after"], 1)
    with pytest.raises(StoreError, match="its row is unreadable"):
        await store.tasks.get(str(brought.unreadable[0][0]))


async def test_a_unit_that_names_no_statement_harms_nobody(store: Store) -> None:
    """A fault of the program itself is told to who made it, and the writer goes on."""
    with pytest.raises(StoreError, match="KeyError"):
        await store.engine.write(Unit((Statement("no such statement", {}),)))
    with pytest.raises(StoreError, match="KeyError"):
        await store.engine.write(Unit((Statement("beat", {}),)))
    await store.tasks.enqueue(new_task())
