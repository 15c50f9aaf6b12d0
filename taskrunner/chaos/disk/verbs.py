"""Every verb that writes, each about a world that has what it needs; the same ids and times in every run."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from taskrunner.chaos.stores import StillClock, claim, end, new_task, open_store, register
from taskrunner.core.model import Task
from taskrunner.storage.engine import Statement
from taskrunner.storage.listing import Filter
from taskrunner.storage.messages import NewMessage
from taskrunner.storage.store import Store


class SeededClock(StillClock):
    """A clock whose ids are the same in every run."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def bits(self, count: int) -> int:
        """`count` bits of the seed's."""
        return self._random.getrandbits(count)


class World:
    """What a prepared store holds: a session, tasks in every state, supervisors living and dead."""

    def __init__(self, session_id: str, running: list[Task], failed: str = "") -> None:
        self.session_id = session_id
        self.running = running
        self.failed = failed
        """The id of a task that has failed for good."""

    @property
    def first(self) -> Task:
        """A running task with a recorded step."""
        return self.running[0]

    @property
    def cancelling(self) -> Task:
        """A running task that was asked to end."""
        return self.running[2]

    def message(self, content: str = "hello", **keys: str) -> NewMessage:
        """A message for its session."""
        given = {"id": f"message {content}", "session_id": self.session_id, **keys}
        return NewMessage(role="user", content=content, token_count=3, **given)


async def build(db: Path) -> World:
    """Make the world in a new file; afterwards it is one file."""
    clock = SeededClock(1)
    async with open_store(db, clock=clock) as store:
        session = await store.messages.create_session(title="talk", model=None, system_prompt=None)
        await store.messages.write([store.messages.add(World(session.id, []).message("first"))])
        for owner in ("me", "dead", "ended"):
            await register(store, owner, lease=1e6, now=clock.now())
        await store.tasks.enqueue_many([new_task(f"run {number}", priority=0) for number in range(3)])
        running = await claim(store, "me")
        await store.tasks.cancel(running[2].id)
        await store.journal.write([record(store, running[0], "first")])
        (failed,) = await store.tasks.enqueue_many([new_task("fails", priority=0)])
        await end(store, (await claim(store, "me"))[0], "failed")
        await store.tasks.enqueue_many([new_task("orphan", priority=0) for _ in range(3)])
        await claim(store, "dead")
        await store.owners.bury([("dead", "killed"), ("ended", "killed")], boot_id="", me="", monotonic=0.0)
        await store.tasks.enqueue_many(
            [new_task("wait", unique_key="k"), new_task("late", delay=1.0), new_task("more")]
        )
        return World(session.id, running, failed)


def record(store: Store, task: Task, name: str) -> Statement:
    """A step of a running task."""
    return store.journal.record(
        task.fence,
        scope="",
        name=name,
        occurrence=0,
        position=0,
        turn=0,
        digest="",
        value='"v"',
        error_type=None,
        error=None,
    )


Verb: TypeAlias = Callable[[Store, World], Awaitable[object]]


async def _claim(store: Store, _world: World) -> object:
    return await store.tasks.claim("me", ["default"], 64, ["back"])


async def _cancel(store: Store, world: World) -> object:
    return await store.tasks.end(world.cancelling.fence, store.tasks.cancelled(world.cancelling.fence))


async def _put_back(store: Store, world: World) -> object:
    return await store.tasks.end(world.first.fence, store.tasks.release(world.first.fence, "worker:back"))


async def _cancel_pending(store: Store, _world: World) -> object:
    (row,) = await store.listing.rows(Filter(type="more"), limit=9)
    return await store.tasks.cancel(str(row[0]), "enough")


VERBS: Final[dict[str, Verb]] = {
    "enqueue": lambda store, _: store.tasks.enqueue(new_task()),
    "enqueue with both keys": lambda store, _: store.tasks.enqueue(new_task(unique_key="new", idempotency_key="i")),
    "enqueue reusing": lambda store, _: store.tasks.enqueue(new_task("wait", unique_key="k")),
    "enqueue replacing": lambda store, _: store.tasks.enqueue(
        new_task("wait", unique_key="k", input="[1]", on_conflict="replace")
    ),
    "enqueue a batch": lambda store, _: store.tasks.enqueue_many([new_task(input=f'"{"x" * 900}"') for _ in range(30)]),
    "enqueue what is large": lambda store, _: store.tasks.enqueue(new_task(input=f'"{"x" * 30_000}"')),
    "claim": _claim,
    "record a step": lambda store, world: store.journal.write([record(store, world.first, "second")]),
    "record a step with all that belongs to it": lambda store, world: store.journal.write(
        [
            record(store, world.first, "second"),
            store.tasks.progress(world.first.fence, 0.5, "half"),
            store.messages.add(world.message("step", history_id="h", write_key="1")),
            store.messages.add(world.message("step 2", history_id="h", write_key="2")),
        ]
    ),
    "log": lambda store, world: store.journal.write(
        [store.journal.log(world.first.fence, [("2026", "info", f"line {number}", "{}") for number in range(3)])]
    ),
    "complete": lambda store, world: end(store, world.first, "completed"),
    "fail": lambda store, world: end(store, world.first, "failed"),
    "retry": lambda store, world: end(store, world.first, "retried"),
    "release": lambda store, world: end(store, world.first, "released"),
    "put back": _put_back,
    "end a cancelled": _cancel,
    "ask to cancel": lambda store, world: store.tasks.cancel(world.first.id),
    "cancel": _cancel_pending,
    "retry by hand": lambda store, world: store.tasks.retry(world.failed),
    "create a session": lambda store, _: store.messages.create_session(title="new", model=None, system_prompt=None),
    "add a message": lambda store, world: store.messages.write([store.messages.add(world.message("second"))]),
    "register": lambda store, _: register(store, "new", now=StillClock().now()),
    "bury": lambda store, _: store.owners.bury([("me", "killed")], boot_id="", me="", monotonic=0.0),
    "retire": lambda store, _: store.owners.retire("me"),
}
