"""Queues: paused ones, limits over all owners, and suspects, who are tried one at a time."""

from __future__ import annotations

import random
from datetime import datetime

import pytest

from taskrunner.chaos.disk.verbs import record
from taskrunner.core.model import Task
from taskrunner.core.waiting import waits_for
from taskrunner.storage.store import Store
from tests.stores import StillClock, claim, end, new_task, register

SLOTS = 64


async def limit(store: Store, owner: str, **limits: int | None) -> None:
    """Register an owner that says so of queues."""
    await register(store, owner, limits=limits)


async def lose(store: Store, owner: str, times: int, queue: str = "default") -> None:
    """Have an owner claim all that it may, and die, so many times."""
    for number in range(times):
        await register(store, f"{owner} {number}")
        await claim(store, f"{owner} {number}", queues=[queue])
        await store.owners.bury([(f"{owner} {number}", "killed")], boot_id="", me="", monotonic=0.0)


async def claim_suspect(store: Store, owner: str, *known: str, only: list[str] | None = None) -> list[Task]:
    """Claim in the suspects' turn."""
    return (await store.tasks.claim(owner, ["default"], SLOTS, known, only=only, suspect=True)).tasks


# ── paused ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_claimed_from_a_paused_queue(store: Store) -> None:
    """What runs goes on and can end; the rest waits until the queue is resumed, and keeps its order."""
    ids = await store.tasks.enqueue_many([new_task(queue="mail") for _ in range(4)] + [new_task()])
    await register(store, "me")
    (first,) = await claim(store, "me", 1, ["mail"])
    await store.queues.pause("mail")
    await store.queues.pause("mail")
    brought = await store.tasks.claim("me", ["mail", "default"], SLOTS)
    assert ([task.id for task in brought.tasks], brought.queues) == ([ids[4]], [])
    assert await end(store, first) == "completed"
    await store.queues.resume("mail")
    assert [task.id for task in await claim(store, "me", queues=["mail"])] == ids[1:4]
    await store.queues.resume("mail")
    await store.queues.resume("never heard of")


async def test_a_pause_says_since_when(store: Store, clock: StillClock) -> None:
    """A second pause changes nothing; the queue's row tells what runs, and goes when nothing more is said of it."""
    await store.tasks.enqueue_many([new_task(queue="mail")])
    await register(store, "me")
    await claim(store, "me", 9, ["mail"])
    since = clock.now()
    await store.queues.pause("mail")
    clock.advance(5)
    await store.queues.pause("mail")
    (queue,) = (await store.queues.all()).values()
    assert (queue.name, queue.paused_at, queue.concurrency, queue.running) == ("mail", since, None, 1)
    await store.queues.resume("mail")
    assert await store.queues.all() == {}


async def test_a_paused_queue_keeps_those_that_were_put_back_too(store: Store) -> None:
    """A task that waits for who knows its type waits for its queue as well."""
    await store.tasks.enqueue_many([new_task(queue="mail"), new_task()])
    await register(store, "me")
    for task in await claim(store, "me", queues=["mail", "default"]):
        await store.tasks.end(task.fence, store.tasks.release(task.fence, "worker:job"))
    await store.queues.pause("mail")
    assert [task.queue for task in (await store.tasks.claim("me", [], SLOTS, ["job"])).tasks] == ["default"]
    await store.queues.resume("mail")
    assert [task.queue for task in (await store.tasks.claim("me", [], SLOTS, ["job"])).tasks] == ["mail"]


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_limit_holds_over_all_owners(store: Store) -> None:
    """Three owners of 64 slots each claim at random for a while: never more than the limit run, and all get done."""
    chance = random.Random(7)
    await store.tasks.enqueue_many([new_task(queue="gpu") for _ in range(60)] + [new_task() for _ in range(60)])
    owners = ["one", "two", "three"]
    for owner in owners:
        await limit(store, owner, gpu=3)
    running: list[Task] = []
    most = 0
    while running or (await store.tasks.counts()).get("pending"):
        running += await claim(store, chance.choice(owners), chance.randint(1, SLOTS), ["gpu", "default"])
        gpu = [task for task in running if task.queue == "gpu"]
        most = max(most, len(gpu))
        for task in chance.sample(running, len(running) // 2 + 1):
            await end(store, task, chance.choice(["completed", "released"]))
            running.remove(task)
    assert most == 3
    assert await store.tasks.counts() == {"completed": 120}


async def test_a_kill_leaks_nothing_of_a_limit(store: Store) -> None:
    """What a dead owner ran counts until it is put back, in the very unit that claims again."""
    await store.tasks.enqueue_many([new_task(queue="gpu") for _ in range(4)])
    await limit(store, "one", gpu=2)
    await register(store, "two")
    assert len(await claim(store, "one", queues=["gpu"])) == 2
    assert await claim(store, "two", queues=["gpu"]) == []
    await store.owners.bury([("one", "killed")], boot_id="", me="", monotonic=0.0)
    assert len(await claim(store, "two", queues=["gpu"])) == 2
    assert await claim(store, "two", queues=["gpu"]) == []


async def test_a_full_queue_is_not_named_as_having_more(store: Store) -> None:
    """A supervisor that looks where there is something to claim is not sent to a queue without room."""
    await store.tasks.enqueue_many([new_task(queue="gpu"), new_task(queue="gpu"), new_task(queue="other")])
    await limit(store, "me", gpu=1)
    assert (await store.tasks.claim("me", ["gpu"], SLOTS)).queues == ["other"]


async def test_a_limit_stays_until_somebody_says_otherwise(store: Store) -> None:
    """Who says nothing of a queue leaves its limit; the last one that says something counts; None lifts it."""
    await store.tasks.enqueue_many([new_task(queue="gpu") for _ in range(9)])
    await limit(store, "one", gpu=1)
    await limit(store, "two")
    assert len(await claim(store, "two", queues=["gpu"])) == 1
    await limit(store, "three", gpu=3)
    assert len(await claim(store, "two", queues=["gpu"])) == 2
    await limit(store, "four", gpu=None)
    assert len(await claim(store, "two", queues=["gpu"])) == 6


async def test_a_limit_holds_for_those_that_were_put_back(store: Store) -> None:
    """Claimed by their type, over all queues at once, they take no more of a queue than its limit."""
    await store.tasks.enqueue_many([new_task(queue=queue) for queue in ("gpu", "gpu", "gpu", "other", "other")])
    await register(store, "old")
    for task in await claim(store, "old", queues=["gpu", "other"]):
        await store.tasks.end(task.fence, store.tasks.release(task.fence, "worker:job"))
    await limit(store, "me", gpu=2)
    brought = (await store.tasks.claim("me", [], SLOTS, ["job"])).tasks
    assert sorted(task.queue for task in brought) == ["gpu", "gpu", "other", "other"]
    assert (await store.tasks.claim("me", [], SLOTS, ["job"])).tasks == []
    await end(store, next(task for task in brought if task.queue == "gpu"))
    assert len((await store.tasks.claim("me", [], SLOTS, ["job"])).tasks) == 1


# ── suspects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_from_its_second_loss_in_a_row_a_task_is_a_suspect(store: Store) -> None:
    """It leaves the common line, and is claimed alone, in its own turn."""
    ids = await store.tasks.enqueue_many([new_task() for _ in range(3)])
    await lose(store, "dead", 2)
    await store.tasks.enqueue(new_task("fresh"))
    await register(store, "me")
    brought = await store.tasks.claim("me", ["default"], SLOTS)
    assert ([task.type for task in brought.tasks], brought.suspects) == (["fresh"], True)
    for task_id in ids:
        (suspect,) = await claim_suspect(store, "me")
        assert (suspect.id, suspect.losses, suspect.is_suspect) == (task_id, 2, True)
        await end(store, suspect)
    assert await claim_suspect(store, "me") == []
    assert not (await store.tasks.claim("me", ["default"], SLOTS)).suspects


async def test_a_suspect_that_records_a_step_is_none_any_more(store: Store) -> None:
    """Its next loss counts as the first one again."""
    await store.tasks.enqueue(new_task())
    await lose(store, "dead", 2)
    await register(store, "me")
    await store.tasks.claim("me", [], 1)
    (suspect,) = await claim_suspect(store, "me")
    await store.journal.write([record(store, suspect, "first")])
    await store.owners.bury([("me", "killed")], boot_id="", me="", monotonic=0.0)
    await register(store, "next")
    (task,) = await claim(store, "next")
    assert (task.losses, task.is_suspect) == (1, False)


async def test_a_released_suspect_stays_one(store: Store) -> None:
    """A graceful stop charges nothing and forgives nothing; an error of the body's own forgives."""
    await store.tasks.enqueue(new_task())
    await lose(store, "dead", 2)
    await register(store, "me")
    await store.tasks.claim("me", [], 1)
    (suspect,) = await claim_suspect(store, "me")
    await end(store, suspect, "released")
    assert await claim(store, "me") == []
    (suspect,) = await claim_suspect(store, "me")
    await end(store, suspect, "retried")
    (task,) = await claim(store, "me")
    assert (task.losses, task.is_suspect) == (0, False)


async def test_suspects_obey_queues_limits_and_slots(store: Store) -> None:
    """They are claimed from the supervisor's queues, not from a paused or full one, and only into a free slot."""
    await store.tasks.enqueue_many([new_task(queue="gpu", priority=1)])
    await lose(store, "dead", 2, "gpu")
    await register(store, "me")
    assert await claim_suspect(store, "me", only=["other"]) == []
    await store.queues.pause("gpu")
    assert await claim_suspect(store, "me") == []
    assert not (await store.tasks.claim("me", ["gpu"], SLOTS)).suspects
    await store.queues.resume("gpu")
    assert (await store.tasks.claim("me", [], 0, suspect=True)).tasks == []
    assert len(await claim_suspect(store, "me", only=["gpu", "other"])) == 1


async def test_a_suspect_of_an_unknown_type_comes_back_to_who_knows_it(store: Store) -> None:
    """Put back as others are, it is still claimed alone and in the suspects' turn."""
    await store.tasks.enqueue(new_task())
    await lose(store, "dead", 2)
    await register(store, "me")
    await store.tasks.claim("me", [], 1)
    (suspect,) = await claim_suspect(store, "me")
    await store.tasks.end(suspect.fence, store.tasks.release(suspect.fence, "worker:job"))
    assert await claim_suspect(store, "me", "other") == []
    assert (await store.tasks.claim("me", ["default"], SLOTS, ["job"])).tasks == []
    (again,) = await claim_suspect(store, "me", "job")
    assert (again.id, again.waiting_for) == (suspect.id, None)


# ── why it waits ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        ("nothing", ["its turn"]),
        ("pause", ["queue default is paused"]),
        ("delay", ["until 2026-01-01 00:01:00"]),
        ("delay and pause", ["queue default is paused", "until 2026-01-01 00:01:00"]),
        ("limit", ["queue default runs 1 of 1"]),
        ("unknown type", ["worker:job"]),
        ("losses", ["suspect: one at a time"]),
        ("run", []),
    ],
)
async def test_the_true_reason_is_named(store: Store, clock: StillClock, prepare: str, says: list[str]) -> None:
    """B06: what keeps a pending task from being claimed is said, all of it, and nothing else."""
    await register(store, "me")
    if prepare == "limit":
        await limit(store, "other", default=1)
        await store.tasks.enqueue(new_task())
    task_id = await store.tasks.enqueue(new_task(delay=60.0 if "delay" in prepare else None))
    if "pause" in prepare:
        await store.queues.pause("default")
    elif prepare == "unknown type":
        (task,) = await claim(store)
        await store.tasks.end(task.fence, store.tasks.release(task.fence, "worker:job"))
    elif prepare == "losses":
        await lose(store, "dead", 2)
        await store.tasks.claim("me", [], 1)
    elif prepare in {"run", "limit"}:
        await claim(store)
    now: datetime = clock.now()
    assert waits_for(await store.tasks.get(task_id), await store.queues.all(), now) == says
