"""Every call with one operation of the disk failing in turn: what is reported is what is in the file."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from taskrunner.chaos.disk.calls import READS, STEPS, WRITES, Job, opened
from taskrunner.chaos.disk.faulty_disk import FAULTS, Disk, disk
from taskrunner.chaos.disk.judge import Judge, judging
from taskrunner.chaos.disk.rival import holding
from taskrunner.chaos.disk.verbs import VERBS, SeededClock, World, build
from taskrunner.chaos.plants import plant
from taskrunner.chaos.report import Tally
from taskrunner.chaos.stores import new_task, open_store, writer_of
from taskrunner.core.errors import StoreBusy, StoreError, StoreUnknown

if TYPE_CHECKING:
    from taskrunner.app import TaskRunner
    from taskrunner.chaos.report import Breach, Order
    from taskrunner.core.model import Task
    from taskrunner.storage.store import Store

ERRORS: Final = 5_100
"""Of a whole run."""

LOCKED: Final = 110
"""Calls of a whole run that meet a lock of another program's."""

WITH_CHECKPOINTS: Final = ("enqueue a batch", "claim", "record a step with all that belongs to it", "complete")
"""Verbs that are tried with a copy of the WAL into the database in the same commit, too."""

FROM_THEN_ON: Final = 1_000_000
NEVER: Final = 1_000_000_000
WITHIN: Final = 20
"""Seconds within which a call has to end."""

ENDED: Final[dict[str, Any]] = {"done": "ok", "busy": "failed", "error": "failed", "unknown": "unknown"}

MAY: Final = {"a sync fails": {"unknown"}, "no room to write": {"done", "busy"}}
"""What a call may report of an error: what was not synced may be there after a crash, and a full disk may have room."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A call, and how that is opened on which it is made. A call that only looks is one that changes nothing."""

    name: str
    open: Callable[[Path, int], AbstractAsyncContextManager[Any]]
    """Of a file, with the seed of the ids."""
    call: Callable[[Any, World], Awaitable[object]]
    later: Callable[[Any], Awaitable[object]]


def scenes() -> list[Scene]:
    """Every verb of the store, and every call of a client."""
    return [
        *(Scene(f"store: {name}", _store, verb, _later_in_store) for name, verb in VERBS.items()),
        *(
            Scene(f"store, with checkpoints: {name}", _copying, VERBS[name], _later_in_store)
            for name in WITH_CHECKPOINTS
        ),
        *(Scene(f"runner: {name}", opened, call, _later_in_runner) for name, call in (WRITES | READS).items()),
    ]


def _store(db: Path, seed: int) -> AbstractAsyncContextManager[Store]:
    return open_store(db, vfs="failing", clock=SeededClock(seed), busy_timeout=0.1)


@asynccontextmanager
async def _copying(db: Path, seed: int) -> AsyncIterator[Store]:
    async with _store(db, seed) as store:
        await store.tasks.enqueue(new_task("first"))  # else a WAL would be made first
        writer_of(store).wal_autocheckpoint(1)
        yield store


async def _later_in_store(store: Store) -> object:
    return await store.tasks.enqueue(new_task("later"))


async def _later_in_runner(runner: TaskRunner) -> object:
    return await runner.enqueue("later", {"size": 1})


def run(order: Order) -> Tally:
    """Let so many operations fail, each in a run of its own; the kinds of errors and the calls take turns."""
    plant(order.plant)
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
    base = memory if memory.is_dir() else Path(order.folder)
    with (
        tempfile.TemporaryDirectory(prefix="taskrunner-errors-", dir=base) as folder,
        judging() as judge,
        disk("failing", default=True) as bad,
    ):
        trials = Trials(order, Path(folder), judge, bad)
        anyio.run(trials.run)
    return trials.tally


async def _look(job: Job, task_id: str) -> Task:
    async with job.runner:
        return await job.runner.tasks.get(task_id)


class Trials:
    """One error after another, and what came of them."""

    def __init__(self, order: Order, folder: Path, judge: Judge, bad: Disk) -> None:
        self.tally = Tally(order.kind)
        self._order = order
        self._chance = random.Random(order.seed)
        self._judge = judge
        self._bad = bad
        self._template = folder / "template.db"
        self._db = folder / "work" / "agent.db"
        self._operations: dict[tuple[str, str], int] = {}
        self._states: dict[str, tuple[str, str]] = {}
        self._world = World("", [])
        self._case = ""

    async def run(self) -> None:
        """All of them; some calls of each dozen are made while the store is opened, closed, or works."""
        self._world = await build(self._template)
        whats, all_ = list(FAULTS), scenes()
        wanted, number = self._order.share(ERRORS), 0
        while self.tally.faults < wanted:
            what = whats[number % len(whats)]
            turn = number // len(whats) % 12
            number += 1
            times = self._chance.choice([1, 1, FROM_THEN_ON])
            if turn in {3, 9}:
                await self._try("inside of a job", what, self._chance.choice([1, 1, 3]), self._working)
            elif turn == 6:
                await self._try("opening", what, times, self._opening)
            elif turn == 11:
                await self._try("closing", what, times, self._closing)
            else:
                scene = self._chance.choice(all_)
                await self._know(scene)
                await self._try(scene.name, what, times, partial(self._calling, scene))
        for _ in range(self._order.share(LOCKED)):
            await self._locked(self._chance.choice(all_))

    async def _try(self, name: str, what: str, times: int, trial: Callable[[], Awaitable[None]]) -> None:
        """Let one of the operations fail that this asks of the disk."""
        key = name, what
        if key not in self._operations:
            self._case = f"{name}, with a good disk"
            with self._armed(what, NEVER, 1):
                await trial()
            self._operations[key] = self._bad.met
        if not self._operations[key]:
            return
        nth = self._chance.randrange(self._operations[key]) + 1
        self._case = f"seed {self._order.seed}: {name}: {what}, operation {nth}, {'once' if times == 1 else times}"
        with self._armed(what, nth, times):
            await trial()
        if self._bad.fired:
            self.tally.faults += 1
            self.tally.count("errors injected")
            self.tally.count(f"errors: {what}")
            if name in {"inside of a job", "opening", "closing"}:
                self.tally.count(f"errors: {name}")
            elif name.startswith("runner"):
                self.tally.count("errors: in a call of a client")

    @contextmanager
    def _armed(self, what: str, nth: int, times: int) -> Iterator[None]:
        self._db.parent.mkdir()
        self._plan = what, nth, times
        try:
            yield
        finally:
            self._bad.heal()
            shutil.rmtree(self._db.parent)

    def _fail(self) -> None:
        what, nth, times = self._plan
        self._bad.fail(what, nth, times=times)

    def _broken(self, breach: Breach, text: str) -> None:
        self.tally.broken(breach, f"{self._case}: {text}")

    def _state(self) -> str:
        sound, state = self._judge.look(self._db)
        if sound != "ok":
            self._broken("corrupt", state)
        return state

    async def _outcome(self, call: Awaitable[object]) -> str:
        try:
            with anyio.fail_after(WITHIN):
                await call
        except StoreUnknown:
            return "unknown"
        except StoreBusy:
            return "busy"
        except StoreError:
            return "error"
        except BaseExceptionGroup as group:
            self._broken("wrong", f"it has raised a group: {'; '.join(map(repr, group.exceptions))}")
            return "unknown"
        except TimeoutError:
            self._broken("stuck", f"it has not ended within {WITHIN} s")
            return "unknown"
        return "done"

    async def _know(self, scene: Scene) -> None:
        """Find what the file holds before this call, and after it."""
        if scene.name in self._states:
            return
        self._db.parent.mkdir()
        shutil.copy(self._template, self._db)
        async with scene.open(self._db, 2) as it:
            before = self._state()
            await scene.call(it, self._world)
            self._states[scene.name] = before, self._state()
        shutil.rmtree(self._db.parent)

    async def _calling(self, scene: Scene) -> None:
        shutil.copy(self._template, self._db)
        async with scene.open(self._db, 2) as it:
            self._fail()
            reported = await self._outcome(scene.call(it, self._world))
            self._bad.heal()
            self._compare(scene, reported)
            later = await self._outcome(scene.later(it))
            if later != "done" and reported != "unknown":
                self._broken("wrong", f"{reported}, and the next call has met {later}")
        kept = self._state()
        async with scene.open(self._db, 3) as it:  # and a new opening always works
            if (again := await self._outcome(scene.later(it))) != "done":
                self._broken("wrong", f"{reported}, and after a new opening a call has met {again}")
            if later == "done" and self._state() == kept:
                self._broken("lost", f"{reported}, and a call after a new opening has changed nothing")
        self._state()

    def _compare(self, scene: Scene, reported: str) -> None:
        before, after = self._states[scene.name]
        state = self._state()
        if self._bad.fired:
            self.tally.ended(ENDED[reported])
            may = MAY.get(self._plan[0])
            if may and reported not in may:
                self._broken("wrong", f"it was told {reported}")
        if state not in {before, after}:
            self._broken("wrong", f"{reported}, and it is half applied")
        elif reported == "done" and state != after:
            self._broken("lost", "it returned, and nothing is there")
        elif reported in {"busy", "error"} and state != before:
            self._broken("wrong", f"{reported}, and it is there")

    async def _opening(self) -> None:
        shutil.copy(self._template, self._db)
        before = self._state()

        async def use() -> None:
            async with opened(self._db, 2) as runner:
                await runner.tasks.list()

        self._fail()
        reported = await self._outcome(use())
        self._bad.heal()
        if (again := await self._outcome(use())) != "done":
            self._broken("wrong", f"{reported}, and the next opening has met {again}")
        if self._state() != before:
            self._broken("wrong", f"{reported}, and the store has changed")

    async def _closing(self) -> None:
        shutil.copy(self._template, self._db)
        async with opened(self._db, 2) as runner:
            await _later_in_runner(runner)
            state = self._state()
            self._fail()
        self._bad.heal()
        if self._state() != state:
            self._broken("lost", "what was acknowledged is not there")

    async def _working(self) -> None:
        job = Job(self._db)
        task_id = await job.begin()
        self._fail()
        first = await self._outcome(job.runner.drain())
        self._bad.heal()
        task = await _look(job, task_id)
        for _ in range(5):
            if task.status in {"pending", "running"}:
                await self._outcome(job.runner.drain())
                task = await _look(job, task_id)
                await anyio.sleep(0.1)
        self._state()
        if task.status == "failed" and task.error_type == "taskrunner.StoreError" and self._plan[0] not in MAY:
            self.tally.count("jobs that were failed by what the disk did to them")  # it may retry: this one may not
        elif task.status != "completed":
            self._broken(
                "stuck",
                f"the first drain: {first}; the job is {task.status}: {task.error_type}: {task.error_message}",
            )
        if job.again:
            self._broken("doubled", f"steps {job.again} were run again after they had returned")
        async with job.runner:
            messages = await (await job.runner.sessions.get(job.session_id)).recent(99)
        if task.status == "completed" and [it.content for it in messages] != [f"step {it}" for it in range(STEPS)]:
            self._broken("wrong", f"the messages are {[it.content for it in messages]}")

    async def _locked(self, scene: Scene) -> None:
        await self._know(scene)
        self._case = f"seed {self._order.seed}: {scene.name}, while another program holds the write lock"
        with self._armed("a write fails", NEVER, 1):
            shutil.copy(self._template, self._db)
            before, after = self._states[scene.name]
            async with scene.open(self._db, 2) as it:
                with holding(self._db):
                    reported = await self._outcome(scene.call(it, self._world))
                self._compare(scene, reported)
                if reported != "busy" and before != after:
                    self._broken("wrong", f"it was told {reported}")
                if (later := await self._outcome(scene.later(it))) != "done":
                    self._broken("wrong", f"{reported}, and the next call has met {later}")
        self.tally.faults += 1
        self.tally.count("calls that met a lock")
