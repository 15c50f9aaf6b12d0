"""The calls of people and of supervisors: what is done to tasks, queues, sessions and owners from outside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from taskrunner.chaos.model import claiming, hands
from taskrunner.chaos.model.calls import Call, owner_of
from taskrunner.chaos.model.rows import Chat, World
from taskrunner.core.model import SupervisorRow, TaskType
from taskrunner.core.states import Status
from taskrunner.storage.store import Store

# ── by hand ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Cancel:
    """Somebody cancels a task."""

    task: int | str
    reason: str = ""
    running: bool = False

    def bind(self, world: World) -> Call:
        """Fill in the id."""
        task_id = world.fence(self.task).task_id if self.running else world.pick(self.task)
        return Call(
            lambda store: store.tasks.cancel(task_id, self.reason),
            lambda world: hands.cancel(world, task_id, self.reason),
        )


@dataclass(frozen=True)
class Retry:
    """Somebody retries a task."""

    task: int | str

    def bind(self, world: World) -> Call:
        """Fill in the id."""
        task_id = world.pick_ended(self.task)
        return Call(lambda store: store.tasks.retry(task_id), lambda world: hands.retry(world, task_id))


@dataclass(frozen=True)
class Pause:
    """A queue is paused, or goes on."""

    queue: str
    resume: bool = False

    def bind(self, _world: World) -> Call:
        """There is nothing to fill in."""
        if self.resume:
            return Call(lambda store: store.queues.resume(self.queue), lambda world: hands.resume(world, self.queue))
        return Call(lambda store: store.queues.pause(self.queue), lambda world: hands.pause(world, self.queue))


@dataclass(frozen=True)
class Open:
    """A conversation begins."""

    def bind(self, _world: World) -> Call:
        """There is nothing to fill in."""

        async def ask(store: Store) -> str:
            return (await store.messages.create_session(title="", model=None, system_prompt=None)).id

        def expect(world: World) -> str:
            session_id = world.new_id()
            world.chats[session_id] = Chat()
            return session_id

        return Call(ask, expect)


# ── supervisors ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Register:
    """A supervisor comes."""

    types: tuple[TaskType, ...] = ()
    limits: tuple[tuple[str, int | None], ...] = ()

    def bind(self, world: World) -> Call:
        """Give it an id."""
        owner = world.clock.new_id()
        world.new_id()
        now = world.clock.now()
        row = SupervisorRow(
            id=owner, boot_id=world.clock.boot_id(), pid=1, pid_namespace="", start_time=0, host="here",
            lock_name=f"{owner}.lock", expires_at=0, started_at=now, beat_at=now, ended_at=None, ended_how=None,
        )  # fmt: skip
        limits = dict(self.limits)
        return Call(
            lambda store: store.owners.register(row, "0", hands.LEASE, self.types, limits),
            lambda world: hands.register(world, owner, self.types, limits),
        )


@dataclass(frozen=True)
class Bury:
    """One owner judges others."""

    me: int
    dead: tuple[int | str, ...] = ()

    def bind(self, world: World) -> Call:
        """Fill in the owners, and the time at which they were judged."""
        me = owner_of(world, self.me)
        dead = [(owner, "it was killed") for owner in dict.fromkeys(owner_of(world, number) for number in self.dead)]
        boot, monotonic = world.clock.boot_id(), world.clock.monotonic()

        async def ask(store: Store) -> object:
            return set(await store.owners.bury(dead, boot_id=boot, me=me, monotonic=monotonic))

        return Call(ask, lambda world: hands.bury(world, dead, me))


@dataclass(frozen=True)
class Retire:
    """A supervisor stops."""

    owner: int

    def bind(self, world: World) -> Call:
        """Fill in the owner."""
        owner = owner_of(world, self.owner)

        def expect(world: World) -> None:
            row = world.owners.get(owner)
            if row is not None and row.ended_at is None:
                row.ended_at, row.ended_how = world.now, "it was stopped"

        return Call(lambda store: store.owners.retire(owner), expect)


@dataclass(frozen=True)
class Beat:
    """A supervisor renews its lease."""

    owner: int

    def bind(self, world: World) -> Call:
        """Fill in the owner."""
        owner = owner_of(world, self.owner)

        async def ask(store: Store) -> bool:
            told: list[object] = []
            store.owners.keep_beating(owner, hands.LEASE, 1.0, told.append)
            return isinstance(told[0], list)

        return Call(ask, lambda world: hands.beat(world, owner))


@dataclass(frozen=True)
class Lose:
    """An owner says that the process of some of its tasks has died."""

    owner: int | str
    tasks: tuple[int | str, ...]
    back: int = 0

    def bind(self, world: World) -> Call:
        """Fill in the owner and the fences."""
        owner = owner_of(world, self.owner)
        fences = list(
            {fence.task_id: fence for fence in (world.fence(task, self.back) for task in self.tasks)}.values()
        )

        async def ask(store: Store) -> object:
            lost = await store.tasks.lose(owner, fences, "its child died")
            return {(each.task_id, each.type, each.queue, each.status, each.losses) for each in lost}

        return Call(ask, lambda world: claiming.lose(world, owner, fences, "its child died"))


# ── retention ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Remove:
    """What finished some seconds ago is removed: a task, its parent, and another one."""

    task: int
    age: float

    def bind(self, world: World) -> Call:
        """Fill in the ids and the moment."""
        before = world.clock.now() - timedelta(seconds=self.age)
        task_id = world.pick_ended(self.task)
        parent = world.tasks[task_id].parent_task_id if task_id in world.tasks else None
        ids = list(dict.fromkeys([task_id, parent or world.pick(self.task + 1), world.pick(self.task + 2)]))
        return Call(lambda store: store.retention.remove(ids, before), lambda world: hands.remove(world, ids, before))


@dataclass(frozen=True)
class RemovePart:
    """A task is removed a part at a time: its removal is begun, goes on, or ends."""

    task: int | str
    what: Literal["begin", "steps", "log", "end"]
    age: float = 0.0
    most: int = 1

    def bind(self, world: World) -> Call:
        """Fill in the id and the moment."""
        before = world.clock.now() - timedelta(seconds=self.age)
        task_id = world.pick_ended(self.task)
        if self.what == "begin":
            return Call(
                lambda store: store.retention.begin(task_id, before),
                lambda world: hands.begin_removal(world, task_id, before),
            )
        if self.what == "steps":
            return Call(
                lambda store: store.retention.remove_steps(task_id, self.most),
                lambda world: hands.remove_steps(world, task_id, self.most),
            )
        if self.what == "log":
            return Call(
                lambda store: store.retention.remove_log_lines(task_id, self.most),
                lambda world: hands.remove_log_lines(world, task_id, self.most),
            )
        return Call(lambda store: store.retention.end(task_id), lambda world: hands.end_removal(world, task_id))


@dataclass(frozen=True)
class Survey:
    """Retention looks for what is old."""

    status: Status
    age: float

    def bind(self, world: World) -> Call:
        """Fill in the moment."""
        before = world.clock.now() - timedelta(seconds=self.age)

        async def ask(store: Store) -> object:
            found = await store.retention.finished(self.status, before)
            return [(task.seq, task.id, task.created_at, task.work) for task in found]

        return Call(ask, lambda world: hands.finished(world, self.status, before))
