"""The calls: each says what to ask the store for, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from taskrunner.chaos.model import attempts, births, claiming
from taskrunner.chaos.model.rows import World
from taskrunner.core.model import Fence, NewTask
from taskrunner.storage.engine import Statement
from taskrunner.storage.messages import NewMessage
from taskrunner.storage.store import Store


class Call(NamedTuple):
    """One call, with the ids and fences that its caller knows."""

    ask: Callable[[Store], Coroutine[Any, Any, object]]
    expect: Callable[[World], object]


class Op(Protocol):
    """What somebody does, told without ids, so that a sequence can be read and made shorter."""

    def bind(self, world: World) -> Call:
        """The call, as the world is now."""
        ...


# ── enqueue ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Enqueue:
    """One task, or several in one commit. `child_of` and `run_in` are not ids, but numbers of tasks and seconds."""

    new: tuple[NewTask, ...]
    child_of: int | None = None
    run_in: float | None = None

    def bind(self, world: World) -> Call:
        """Fill in the ids."""
        new = list(self.new)
        if self.child_of is not None and world.tasks:
            new[0] = _changed(new[0], parent_task_id=world.pick(self.child_of))
        if self.run_in is not None:
            new[0] = _changed(new[0], run_at=world.clock.now() + timedelta(seconds=self.run_in), delay=None)
        return Call(lambda store: store.tasks.enqueue_many(new), lambda world: births.enqueue(world, new))


def _changed(new: NewTask, **fields: object) -> NewTask:
    from msgspec.structs import replace

    return replace(new, **fields)


# ── claim ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Claim:
    """One of the owners asks for tasks."""

    owner: int
    queues: tuple[str, ...]
    slots: int
    known: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    suspect: bool = False

    def bind(self, world: World) -> Call:
        """Fill in the owner."""
        owner = owner_of(world, self.owner)
        asked = claiming.Asked(owner, self.queues, self.slots, self.known, self.only, self.suspect)

        async def ask(store: Store) -> claiming.Brought:
            claim = await store.tasks.claim(owner, self.queues, self.slots, self.known, self.only, suspect=self.suspect)
            assert not claim.unreadable
            assert all((task.status, task.lease_owner) == ("running", owner) for task in claim.tasks)
            return claiming.Brought(
                tasks=[(task.id, task.attempt) for task in claim.tasks],
                recovered={(each.task_id, each.type, each.queue, each.status, each.losses) for each in claim.recovered},
                queues=claim.queues,
                unasked=claim.unasked,
                promoted=claim.promoted,
                suspects=claim.suspects,
                limits=claim.limits,
            )

        return Call(ask, lambda world: claiming.claim(world, asked))


def owner_of(world: World, number: int | str) -> str:
    """One of the living owners; the highest numbers mean any, and so does each where none lives."""
    if isinstance(number, str):
        return number
    living = [name for name, owner in world.owners.items() if owner.ended_at is None]
    if number < min(3, len(living)):
        return living[-1 - number]
    return list(world.owners)[-1 - number % len(world.owners)] if world.owners else "nobody"


# ── the attempt's own ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _OfAttempt:
    """A write of an attempt of one of the tasks, or of one that is `back` attempts older."""

    task: int | str
    back: int = 0


@dataclass(frozen=True)
class Complete(_OfAttempt):
    """The body returns."""

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        fence = world.fence(self.task, self.back)
        return _ending(fence, lambda store: store.tasks.complete(fence, attempts.OUTPUT), attempts.complete)


@dataclass(frozen=True)
class Fail(_OfAttempt):
    """The body raises."""

    retry_in: float | None = None

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        fence = world.fence(self.task, self.back)
        kind, message, trace = attempts.ERROR

        def statement(store: Store) -> Statement:
            return store.tasks.fail(
                fence, error_type=kind, error_message=message, traceback=trace, retry_in=self.retry_in
            )

        return _ending(fence, statement, lambda world, fence: attempts.fail(world, fence, self.retry_in))


@dataclass(frozen=True)
class Release(_OfAttempt):
    """The task is handed back, perhaps for nobody knows its type."""

    unknown: bool = False

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        fence = world.fence(self.task, self.back)
        row = world.tasks.get(fence.task_id)
        waiting_for = f"worker:{row.type}" if self.unknown and row else None
        return _ending(
            fence,
            lambda store: store.tasks.release(fence, waiting_for),
            lambda world, fence: attempts.release(world, fence, waiting_for),
        )


@dataclass(frozen=True)
class Cancelled(_OfAttempt):
    """A body that was asked to end has ended; if none was, another one says so."""

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        running = [row.id for row in world.tasks.values() if row.status == "running"]
        asked = [place for place, task_id in enumerate(reversed(running)) if world.tasks[task_id].cancel_requested_at]
        fence = world.fence(asked[0] if asked else self.task, self.back)
        return _ending(fence, lambda store: store.tasks.cancelled(fence), attempts.cancelled)


def _ending(fence: Fence, statement: Callable[[Store], Statement], expect: Callable[[World, Fence], object]) -> Call:
    return Call(lambda store: store.tasks.end(fence, statement(store)), lambda world: expect(world, fence))


@dataclass(frozen=True)
class Step(_OfAttempt):
    """A step is recorded, with a value of some bytes, or with its error."""

    name: str = "plan"
    occurrence: int = 0
    size: int = 1
    fails: bool = False

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        fence = world.fence(self.task, self.back)
        value, error = (None, "it raised") if self.fails else ('"' + self.size * "x" + '"', None)

        async def ask(store: Store) -> None:
            statement = store.journal.record(
                fence, scope="", name=self.name, occurrence=self.occurrence, position=0, turn=None, digest="",
                value=value, error_type=None if error is None else "ValueError", error=error,
            )  # fmt: skip
            await store.journal.write([statement])

        step = ("", self.name, self.occurrence)
        return Call(ask, lambda world: attempts.record(world, fence, step, value, error))


@dataclass(frozen=True)
class Progress(_OfAttempt):
    """It has come this far."""

    fraction: float = 0.5

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        fence = world.fence(self.task, self.back)

        async def ask(store: Store) -> None:
            await store.journal.write([store.tasks.progress(fence, self.fraction, f"at {self.fraction}")])

        return Call(ask, lambda world: attempts.progress(world, fence, self.fraction, f"at {self.fraction}"))


@dataclass(frozen=True)
class Log(_OfAttempt):
    """Some lines of its log."""

    lines: int = 1

    def bind(self, world: World) -> Call:
        """Fill in the fence."""
        fence = world.fence(self.task, self.back)
        events = [f"line {number}" for number in range(self.lines)]
        now = world.now

        async def ask(store: Store) -> None:
            await store.journal.write([store.journal.log(fence, [(now, "info", event, "{}") for event in events])])

        return Call(ask, lambda world: attempts.log(world, fence, events))


@dataclass(frozen=True)
class Say(_OfAttempt):
    """A message: of a task, under a key of its history, or of nobody."""

    chat: int = 0
    key: str | None = None
    parent: str | None = None

    def bind(self, world: World) -> Call:
        """Fill in the fence and the session."""
        fence = world.fence(self.task, self.back) if self.key is not None else None
        chats = list(world.chats) or ["nowhere"]
        new = NewMessage(
            id=world.clock.new_id(), session_id=chats[self.chat % len(chats)], role="user", content=f"says {self.chat}",
            token_count=3, history_id=fence.history_id if fence else None, write_key=self.key,
            parent_msg_id=self.parent,
        )  # fmt: skip
        world.new_id()

        async def ask(store: Store) -> object:
            add = store.messages.add(new)
            if fence is None:
                return attempts.told(await store.messages.write([add]))
            [_held, [row]] = await store.journal.write([store.journal.fence(fence), add])
            return row[0], row[1], row[4], row[7]

        return Call(ask, lambda world: attempts.say(world, new, fence))
