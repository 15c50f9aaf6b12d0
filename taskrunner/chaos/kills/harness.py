"""Kill the supervisor again and again, at seeded moments, and judge what became of the jobs.

A lane is a store with one or two supervisors and a client that keeps it full of jobs. In each round fate strikes one of
the supervisors, and a new one takes its place. At the end everything is drained, and the witness and the store are
judged (`verdict`). All that is random comes from the seed and the lane's number; time is real, so that a seed repeats
the plan of a run and not its every instruction.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from taskrunner.chaos.kills import fate
from taskrunner.chaos.kills.look import is_locked
from taskrunner.chaos.kills.verdict import Verdict, judge
from taskrunner.chaos.kills.witness import Line
from taskrunner.chaos.kills.world import Process, World

PATIENCE: Final = 15.0
"""Seconds in which a supervisor has to do what it is there for: else something is stuck."""


SHORT: Final = 10.0
"""Seconds of a lease that is there to run out."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What fate does to one lane. Times are in seconds."""

    rounds: int
    """How often it strikes."""
    moments: dict[str, float] = field(default_factory=lambda: {"effect": 1.0})
    """When it strikes, by weight (see `Lane`)."""
    supervisors: int = 1
    spread: float = 0.06
    """At most so long after the first effect a random moment is taken."""
    fresh_every: int = 0
    """Each such round has a supervisor with an interpreter of its own; 0: none."""
    pace: float = 0.002
    """How long a step takes."""
    lease: float = 600.0
    processes: int = 0
    """How many child processes each supervisor has (`Family`); 0: none, the jobs run in its own."""
    plant: str = ""
    """What is planted in every supervisor (`plants`)."""
    patience: float = PATIENCE
    drain: bool = True
    """Whether the jobs are run to their end before the verdict; without, some of them are not completed."""


MIXED: Final = {"effect": 0.85, "start": 0.05, "claim": 0.05, "stop": 0.05}


def plans(kills: int, *, pauses: int = 0, plant: str = "") -> list[Plan]:
    """The lanes of a whole run: one supervisor alone, two on one file, and two of which one is stopped for a while."""
    alone = Plan(rounds=kills - kills // 2, moments=MIXED, fresh_every=20, plant=plant)
    pair = Plan(rounds=kills // 2, moments=MIXED, fresh_every=20, supervisors=2, plant=plant)
    deaf = ",".join(filter(None, ("deaf", plant)))  # else a zombie mostly knows before it writes
    stopped = Plan(rounds=pauses, moments={"pause": 1.0}, supervisors=2, pace=0.2, lease=2.0, plant=deaf)
    return [plan for plan in (alone, pair, stopped) if plan.rounds]


FAMILY: Final = {"child": 0.5, "group": 0.15, "effect": 0.15, "both": 0.15, "stop": 0.05}


def families(kills: int, *, plant: str = "") -> list[Plan]:
    """The lanes of a run with children: one supervisor alone, and two on one file. `both` is two kills."""
    rounds = round(kills / (1 + FAMILY["both"]))
    alone = Plan(rounds=rounds - rounds // 2, moments=FAMILY, processes=2, plant=plant)
    pair = Plan(rounds=rounds // 2, moments=FAMILY, processes=2, supervisors=2, plant=plant)
    return [alone, pair]


class Lane:
    """One store under fire.

    The moments: `effect`, a random while after an effect of the victim; `start`, a random while after it was started;
    `claim`, right after its first claim was committed; `stop`, a random while after a SIGTERM; `pause`, which is no
    kill: it is stopped until its tasks were taken over, and then goes on as a zombie.
    """

    concurrency = 4

    def __init__(self, plan: Plan, folder: Path, seed: str) -> None:
        self._plan = plan
        self._random = random.Random(seed)
        self._world = World(folder)
        self._world.plant = plan.plant
        self._alive: list[Process] = []
        self._clients: list[Process] = []
        self._keys = 0
        self._calm = 0.0
        self.problems: list[str] = []

    def run(self) -> Verdict:
        """Go through the rounds, drain, and judge."""
        began = time.monotonic()
        with self._world:
            for number in range(self._plan.rounds):
                self._round(number)
                if self.problems:
                    break
            struck = time.monotonic()
            if self._plan.drain:
                self._drain()
            for process in self._world.processes:
                process.kill()
            self._world.tail.read()
            verdict = judge(self._world, fate=self.problems)
        verdict.figures["seconds"] = round(struck - began, 1)
        verdict.figures["seconds to drain and judge"] = round(time.monotonic() - struck, 1)
        return verdict

    def _round(self, number: int) -> None:
        self._top_up()
        moments = self._plan.moments
        [moment] = self._random.choices(list(moments), list(moments.values()))
        chance = self._random.random()
        self._alive = [process for process in self._alive if process.lives]
        fresh = bool(self._plan.fresh_every) and number % self._plan.fresh_every == self._plan.fresh_every - 1
        started: Process | None = None
        while len(self._alive) < self._plan.supervisors:
            started = self._start(fresh=fresh, env={fate.VARIABLE: "claim"} if moment == "claim" else {})
        victim = started or self._random.choice(self._alive)
        getattr(self, f"_at_{moment}")(victim, chance)

    def _start(self, *, fresh: bool, env: dict[str, str]) -> Process:
        process = self._world.supervisor(*self._options(), fresh=fresh, env=env)
        self._alive.append(process)
        return process

    def _options(self) -> list[str]:
        lease = self._plan.lease
        options = ["--concurrency", str(self.concurrency), "--lease", str(lease), "--sweep", "0.2"]
        if lease < SHORT:  # a short lease leaves little patience with the others' write lock, unless it beats often
            options += ["--heartbeat", str(lease / 8)]
        return options

    def _pids_of(self, victim: Process) -> set[int]:
        """The processes in which this supervisor's jobs run."""
        return {victim.pid}

    # ── the moments ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _at_effect(self, victim: Process, chance: float) -> None:
        if self._effect_of(victim):
            time.sleep(self._calm + chance * self._plan.spread)
            self._calm = 0.0
            self._world.strike(victim, "effect")

    def _at_start(self, victim: Process, chance: float) -> None:
        time.sleep(chance * 0.12)
        self._world.strike(victim, "start")

    def _at_claim(self, victim: Process, _chance: float) -> None:
        if victim.wait(self._plan.patience):
            self._calm = self._plan.spread  # the next one has time to record something
        else:
            self.problems.append(f"supervisor {victim.pid} claimed nothing in {self._plan.patience:g} s")

    def _at_stop(self, victim: Process, chance: float) -> None:
        if self._effect_of(victim):
            self._world.note("term", victim)
            victim.send(signal.SIGTERM)
            time.sleep(chance * 0.04)
            self._world.strike(victim, "stop")

    def _at_pause(self, victim: Process, chance: float) -> None:
        if not self._effect_of(victim):
            return
        time.sleep(chance * self._plan.spread)
        tail = self._world.tail
        self._stop(victim, anywhere=chance < 1 / 8)
        since = len(tail.lines)
        tail.read()
        bodies = bodies_of(tail.lines, victim.pid)

        def takes_over(line: Line) -> bool:
            return line.kind == "enter" and line.pid != victim.pid and line.task in bodies

        taken = tail.wait(takes_over, since=since, timeout=3 * self._plan.lease)
        time.sleep(chance * self._plan.pace)
        since = len(tail.lines)
        self._world.note("resume", victim, "taken over" if taken else "not taken over")
        victim.send(signal.SIGCONT)
        if taken is None:  # it was stopped within a transaction, so that nobody could write at all
            return
        if tail.wait(lambda line: line.kind == "lost" and line.pid == victim.pid, since=since) is None:
            self.problems.append(f"zombie {victim.pid} did not notice that it had lost its lease")

    def _stop(self, victim: Process, *, anywhere: bool) -> None:
        """Stop a supervisor, mostly not within a transaction: else nobody can write, and nothing is taken over."""
        self._world.note("pause", victim)
        victim.send(signal.SIGSTOP)
        for _ in range(10):
            if anywhere or not is_locked(self._world.db):
                return
            victim.send(signal.SIGCONT)
            time.sleep(0.003)
            victim.send(signal.SIGSTOP)

    def _effect_of(self, victim: Process) -> bool:
        """Wait until a step of this supervisor does something, under the lease that it has now."""
        tail = self._world.tail
        tail.read()
        lost = [place for place, line in enumerate(tail.lines) if line.kind == "lost" and line.pid == victim.pid]
        since = lost[-1] if lost else 0
        if self._plan.supervisors == 1:
            since = max(since, len(tail.lines) - 100)  # it has just been started
        deadline = time.monotonic() + self._plan.patience
        while time.monotonic() < deadline:
            if tail.wait(
                lambda line: line.kind == "effect" and line.pid in self._pids_of(victim), since=since, timeout=1.0
            ):
                return True
            self._top_up()  # the last client may have been killed before it had enqueued anything
        self.problems.append(f"supervisor {victim.pid} took no step in {self._plan.patience:g} s")
        return False

    # ── the jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def _top_up(self) -> None:
        """Let a client enqueue when there is little left; one in eight is killed, some within their commit."""
        tail = self._world.tail
        tail.read()
        there = {line.task for line in tail.lines if line.kind == "enqueued"}
        there -= {line.task for line in tail.lines if line.kind == "leave" and line.text == "returned"}
        room = 6 * self.concurrency * self._plan.supervisors - len(there)
        if room < 8 or any(client.lives for client in self._clients[-1:]):
            return
        keys = [f"k{number}" for number in range(self._keys, self._keys + room)]
        self._keys += room
        client = self._world.client(keys, self._plan.pace)
        self._clients.append(client)
        if self._random.random() < 1 / 8:
            time.sleep(self._random.random() * 0.1)
            self._world.note("kill", client, "client")
            client.kill()

    def _drain(self) -> None:
        """Let the living go on until they stop on SIGTERM, and a last one until nothing is left."""
        for process in self._clients:
            if not process.wait(self._plan.patience):
                self.problems.append(f"client {process.pid} hangs")
        for process in self._alive:
            self._world.note("term", process)
            process.send(signal.SIGTERM)
        for process in self._alive:
            if not process.wait(self._plan.patience):
                self.problems.append(f"supervisor {process.pid} does not stop")
                self._world.strike(process, "drain")
        last = self._world.supervisor("--until-idle", "--concurrency", "50", fresh=True)
        if not last.wait(2 * self._plan.patience):
            self.problems.append(f"supervisor {last.pid} does not come to the end of the jobs")
        elif last.code != 0:
            self.problems.append(f"the last supervisor ended with exit code {last.code}")


class Family(Lane):
    """A lane whose supervisors run their jobs in child processes.

    The moments `effect`, `start` and `stop` strike the supervisor, as in every lane, and its children fall with it;
    `child` strikes a child that has just taken a step, `group` its whole process group, and `both` that child and its
    supervisor, one right after the other.
    """

    def __init__(self, plan: Plan, folder: Path, seed: str) -> None:
        super().__init__(plan, folder, seed)
        self._families: dict[int, set[int]] = {}
        self._seen = 0

    def _options(self) -> list[str]:
        return [*super()._options(), "--processes", str(self._plan.processes)]

    def _pids_of(self, victim: Process) -> set[int]:
        lines = self._world.tail.lines
        for line in lines[self._seen :]:
            if line.kind == "child":
                self._families.setdefault(line.pid, set()).add(int(line.text))
        self._seen = len(lines)
        return self._families.get(victim.pid, set())

    def _at_child(self, victim: Process, chance: float) -> None:
        self._fell(victim, chance, "child")

    def _at_group(self, victim: Process, chance: float) -> None:
        self._fell(victim, chance, "group")

    def _at_both(self, victim: Process, chance: float) -> None:
        self._fell(victim, chance, "both")

    def _fell(self, victim: Process, chance: float, moment: str) -> None:
        """Strike a child of whose step the witness has just heard; with `both` the supervisor before or after it."""
        child = self._acting(victim)
        if child is None:
            return
        time.sleep(chance * self._plan.spread)
        self._world.note("kill", child, moment)
        if moment == "both" and chance < 1 / 2:
            self._world.strike(victim, moment)
        if moment == "group":
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.send(signal.SIGKILL)
        if moment == "both" and chance >= 1 / 2:
            self._world.strike(victim, moment)
        if not child.wait(self._plan.patience):
            self.problems.append(f"child {child.pid} does not die")

    def _acting(self, victim: Process) -> Process | None:
        """The child that takes the next step of this supervisor's jobs."""
        tail = self._world.tail
        tail.read()
        since = len(tail.lines)
        deadline = time.monotonic() + self._plan.patience
        while time.monotonic() < deadline:
            line = tail.wait(
                lambda line: line.kind == "effect" and line.pid in self._pids_of(victim), since=since, timeout=1.0
            )
            if line is not None:
                return Process(line.pid)
            self._top_up()
        self.problems.append(f"the children of supervisor {victim.pid} took no step in {self._plan.patience:g} s")
        return None


def bodies_of(lines: Sequence[Line], pid: int) -> set[str]:
    """The tasks whose bodies this process has entered, and neither left nor lost."""
    bodies: set[str] = set()
    for line in lines:
        if line.pid != pid:
            continue
        if line.kind == "enter":
            bodies.add(line.task)
        elif line.kind == "leave":
            bodies.discard(line.task)
        elif line.kind == "lost":
            bodies.clear()
    return bodies


def run(plans: Sequence[Plan], folder: Path, seed: int) -> list[Verdict]:
    """Run each plan on a store of its own, all at the same time."""
    lanes = [
        (Family if plan.processes else Lane)(plan, folder / f"lane{number}", f"{seed}/{number}")
        for number, plan in enumerate(plans)
    ]
    with ThreadPoolExecutor(len(lanes)) as pool:
        return list(pool.map(Lane.run, lanes))
