"""Poison: pills of every kind beside innocent tasks, in supervisors with children and in those without."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from taskrunner import TaskRunner
from taskrunner.chaos.kills import verdict, witness
from taskrunner.chaos.kills.evidence import Evidence, gather
from taskrunner.chaos.kills.rounds import BREACHES
from taskrunner.chaos.kills.world import Process, World
from taskrunner.chaos.poison.pills import APP, MAX_LOSSES, PILLS, TIMEOUT
from taskrunner.chaos.report import Order, Tally

PILLS_OF_A_RUN: Final = 170
"""Of a whole run, and some to spare."""

PILLS_OF_A_LANE: Final = 17
INNOCENTS: Final = 12
"""Innocent tasks that are there at any time while pills are."""

DEADLY: Final = 6
"""Pills of a lane of which a process dies: children that die early come back slowly."""

PACE: Final = 0.02
"""Seconds that a step of an innocent takes."""

PATIENCE: Final = 10.0
"""Seconds that a lane has in any case, and for each of its pills."""

OPTIONS: Final = ("--concurrency", "4", "--grace", "0.5", "--sweep", "0.1", "--lease", "6", "--durability", "normal")
CHILDREN: Final = ("--processes", "2", "--max-memory", str(400 << 20))

WORKER_LOST: Final = "taskrunner.WorkerLost"
NO_MEMORY: Final = "MemoryError"
LARGE: Final = frozenset({"a large result", "a large step"})
"""Where somebody else has taken most of a child's memory, there may be none for these."""

UNFINISHED: Final = "SELECT id FROM tasks WHERE status IN ('pending', 'running')"

CHECKS: Final = (
    verdict.lost_enqueue,
    verdict.lost_step,
    verdict.step_run_again,
    verdict.not_completed,
    verdict.completed_twice,
    verdict.wrong_message,
)
"""What has to hold of the innocent."""


def run(order: Order) -> Tally:
    """Give so many pills, a lane at a time: two thirds of them to supervisors with children."""
    pills = order.share(PILLS_OF_A_RUN)
    lanes: list[Lane] = []
    number = min(pills, max(3, -(-pills // PILLS_OF_A_LANE)))  # in a small run, too, some have no children
    for place in range(number):
        count = pills // number + (place < pills % number)
        folder = Path(order.folder) / f"lane{place}"
        folder.mkdir(parents=True)
        seed, children = f"{order.seed}/{place}", place % 3 != 2
        lanes.append(Lane(folder, seed, chosen(random.Random(seed), count, children=children), children=children))
    tally = Tally(order.kind)
    with ThreadPoolExecutor(2) as pool:
        for lane in pool.map(Lane.run, lanes):
            lane.add_to(tally)
    return tally


def chosen(chance: random.Random, count: int, *, children: bool) -> list[str]:
    """The pills of a lane: each kind in turn, but for too many deadly ones."""
    names = [name for name, pill in PILLS.items() if children or not pill.children_only]
    names = chance.sample(names, len(names))
    deadly = [name for name in names if _is_deadly(name)]
    harmless = [name for name in names if not _is_deadly(name)]
    most = min(DEADLY, max(1, count // 3))
    picked = (deadly * count)[: min(most, count)]
    picked += (harmless * count)[: count - len(picked)]
    return chance.sample(picked, len(picked))


def _is_deadly(name: str) -> bool:
    return PILLS[name].error is None and not PILLS[name].cancel


def _may_kill(name: str) -> bool:
    return _is_deadly(name) or PILLS[name].may_die


@dataclass
class Lane:
    """One store, its supervisor, which is started again when it has died, and a client that keeps innocents coming."""

    folder: Path
    seed: str
    harms: list[str]
    children: bool
    pills: dict[str, str] = field(default_factory=dict)
    """The harm by the ids of the tasks."""
    problems: list[str] = field(default_factory=list)
    starts: int = 0
    figures: Counter[str] = field(default_factory=Counter)

    def run(self) -> Lane:
        """Give the pills, wait until all have ended, and judge."""
        chance = random.Random(self.seed)
        with World(self.folder) as world:
            client = TaskRunner(world.db, durability="normal")
            pharmacy = TaskRunner(world.db, durability="normal", max_losses=MAX_LOSSES)
            with client.sync as wait, pharmacy.sync as give:
                self._innocents(world, client, wait, INNOCENTS // 2)
                for how in self.harms:
                    self._innocents(world, client, wait, 1)
                    name = chance.choice(["pill", "plain_pill"]) if _may_be_plain(how) else "pill"
                    timeout = TIMEOUT if PILLS[how].error == "TimeoutError" else None
                    ask, runner = (give, pharmacy) if _may_kill(how) else (wait, client)
                    handle = ask(runner.enqueue(name, {"how": how}, max_retries=0, timeout=timeout))
                    self.pills[handle.id] = how
                supervisor = self._start(world)
                self._wait_for_ends(world, client, wait, supervisor)
            self._judge(world)
        return self

    def _innocents(self, world: World, client: TaskRunner, wait: Any, number: int) -> None:  # noqa: ANN401 - the bridge
        session = wait(client.sessions.create(title="innocents"))
        for _ in range(number):
            key = f"innocent {self.figures['innocents']}"
            self.figures["innocents"] += 1
            witness.write("asked", step=key, path=world.witness)
            handle = wait(
                client.enqueue("innocent", {"key": key, "pace": PACE}, idempotency_key=key, session_id=session.id)
            )
            witness.write("enqueued", handle.id, key, path=world.witness)

    def _start(self, world: World) -> Process:
        self.starts += 1
        return world.supervisor(*OPTIONS, *(CHILDREN if self.children else ()), app=APP, fresh=self.children)

    def _wait_for_ends(self, world: World, client: TaskRunner, wait: Any, supervisor: Process) -> None:  # noqa: ANN401 - as above
        deadline = time.monotonic() + PATIENCE * (1 + len(self.harms))
        asked: set[str] = set()
        left: set[str] = set()
        while time.monotonic() < deadline:
            if supervisor.wait(0.1):
                supervisor = self._start(world)
            world.tail.read()
            for line in world.tail.lines:
                how = self.pills.get(line.task)
                if how and PILLS[how].cancel and line.kind == "enter" and line.task not in asked:
                    asked.add(line.task)
                    wait(client.handle(line.task).cancel("it is stubborn"))
            left = {str(task) for (task,) in map(tuple, wait(client.read(UNFINISHED)))}
            if not left:
                break
            if left & self.pills.keys() and len(left - self.pills.keys()) < INNOCENTS // 2:
                self._innocents(world, client, wait, INNOCENTS // 2)
        else:
            self.problems.append(f"stuck: {[self.pills.get(task, 'an innocent') for task in left]} have not ended")
        supervisor.send(signal.SIGTERM)
        if not supervisor.wait(PATIENCE):
            self.problems.append("stuck: the supervisor does not stop")

    # ── the verdict ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _judge(self, world: World) -> None:
        evidence = gather(world)
        self.problems += [f"pill: {said}" for said in self._wrong_ends(evidence)]
        of_innocents = _without(evidence, set(self.pills))
        for check in CHECKS:
            self.problems += [f"{check.__name__.replace('_', ' ')}: {said}" for said in check(of_innocents)]
        self.problems += [f"damaged: {said}" for said in verdict.damage(world.db)]
        self.problems += [f"invariant: {said}" for said in verdict.broken(world.db)]
        self.problems += [f"left behind: {said}" for said in left_behind(world.witness)] if self.children else []
        losses = [row for row in evidence.rows["attempts"] if row["outcome"] == "lost"]
        self.figures["deaths"] += sum(row["task_id"] in self.pills for row in losses)
        self.figures["losses of innocents"] += sum(row["task_id"] not in self.pills for row in losses)

    def _wrong_ends(self, evidence: Evidence) -> Iterator[str]:
        ends: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in evidence.rows["attempts"]:
            ends[row["task_id"]][row["outcome"]] += 1
        for task_id, how in self.pills.items():
            row = evidence.tasks[task_id]
            said = f"{how} ({row['type']}): {row}"
            if PILLS[how].cancel:
                if row["status"] != "cancelled":
                    yield f"it was to be cancelled: {said}"
            elif row["status"] != "failed":
                yield f"it was to fail: {said}"
            elif _is_deadly(how) or (PILLS[how].may_die and row["error_type"] == WORKER_LOST):
                if row["error_type"] != WORKER_LOST or (row["losses"], ends[task_id]["lost"]) != (
                    MAX_LOSSES,
                    MAX_LOSSES,
                ):
                    yield f"it was to be quarantined after {MAX_LOSSES} losses: {said}"
            elif row["error_type"] not in {PILLS[how].error, NO_MEMORY if self.children and how in LARGE else None}:
                yield f"it was to fail with {PILLS[how].error}: {said}"
            if ends[task_id].keys() - {"lost", "released", row["status"]}:
                yield f"its attempts have ended in a way that they cannot: {dict(ends[task_id])}: {said}"

    def add_to(self, tally: Tally) -> None:
        """Add up what this lane has found."""
        tally.faults += len(self.pills)
        tally.count("pills", len(self.pills))
        tally.count("pills in children" if self.children else "pills in supervisors", len(self.pills))
        tally.count("supervisors that were started again", self.starts - 1)
        for what in ("deaths", "innocents", "losses of innocents"):
            tally.count(what, self.figures[what])
        for problem in self.problems:
            breach = BREACHES.get(problem.partition(":")[0], "wrong")
            tally.broken(breach, f"seed {self.seed}: {problem}")


def _may_be_plain(how: str) -> bool:
    """Whether a plain function may do it, too: it has a thread, which hears no signal, and which nobody can stop."""
    return PILLS[how].error not in {"TimeoutError", "GeneratorExit"} and not PILLS[how].cancel and how != "a large step"


def _without(evidence: Evidence, pills: set[str]) -> Evidence:
    rows = {
        table: [row for row in rows if row.get("task_id", row.get("id")) not in pills]
        for table, rows in evidence.rows.items()
    }
    return Evidence([line for line in evidence.lines if line.task not in pills], rows)


def left_behind(log: Path, within: float = 2.0) -> list[str]:
    """The processes that still live of those that were started with this witness."""
    mark = f"{witness.VARIABLE}={log}".encode()
    deadline = time.monotonic() + within
    while (found := list(_marked(mark))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _marked(mark: bytes) -> Iterator[str]:
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    yield f"{process.name}: {(process / 'cmdline').read_bytes()!r}"
