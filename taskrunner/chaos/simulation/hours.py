"""Hours on a simulated machine: at least one fault in every minute, then calm, and a judgement of what is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from taskrunner.chaos.simulation.jobs import ask, supervise
from taskrunner.chaos.simulation.loop import StuckError
from taskrunner.chaos.simulation.machine import Process
from taskrunner.chaos.simulation.verdict import Result, verdict
from taskrunner.chaos.simulation.world import LEASE, World

PATIENCE: Final = 4 * 3600.0
"""Virtual seconds in which everything has to come to its end when the faults are over."""

TURNS: Final = 500_000
"""Turns of the loop in an hour that are too many: five times those of an ordinary one."""

PACE: Final = 10.0
"""Virtual seconds between two wishes of the client."""


def hours(seed: str, folder: Path, length: float) -> Result:
    """Simulate so many hours. It leaves a litter of the dead: for a process that ends after it."""
    began = time.process_time()
    world = World(seed, folder)
    fate = Fate(world, world.random.choice((2, 2, 3)))
    loop = world.machine.loop
    loop.most_turns = int(TURNS * (1 + length))
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(fate.run(length * 3600))
    except StuckError as error:
        world.broken("stuck", str(error))
    except Exception as error:  # noqa: BLE001 - a result has to come of it
        world.broken("wrong", f"the simulation itself failed: {error!r}")
    return verdict(world, fate.faults, began)


class Fate:
    """What is done to the processes."""

    def __init__(self, world: World, supervisors: int) -> None:
        self._world = world
        self._machine = world.machine
        self._random = world.random
        self._places: list[Process | None] = [None] * (supervisors + 1)
        """Who is at work: the client, then the supervisors; None: somebody is about to be started."""
        self._stranger: apsw.Connection | None = None
        self._over = False
        self.faults: dict[str, int] = {}

    async def run(self, length: float) -> None:
        """Let them work and be struck for so many seconds, then come to their end."""
        for place in range(len(self._places)):
            self._start(place)
        loop = self._machine.loop
        minute = 0
        while (left := length - loop.now) > 0:
            moments = sorted(self._random.uniform(0, 60) for _ in range(self._random.choice((1, 1, 1, 2, 3))))
            for moment in moments:
                await asyncio.sleep(max(0.0, minute * 60 + moment - loop.now))
                self._strike()
            minute += 1
            self._world.look_for_orphans()
            await asyncio.sleep(min(max(0.0, minute * 60 - loop.now), max(left, 0.0)))
        await self._calm()

    def _strike(self) -> None:
        place = self._random.choices(range(len(self._places)), [1] + [3] * (len(self._places) - 1))[0]
        victim = self._places[place]
        kinds: dict[str, tuple[float, Callable[[], object]]] = {
            "jumps of the clock": (1, self._jump),
            "reboots": (0.05, self._reboot),
            "locks of a stranger": (0.7, self._lock),
        }
        if victim is not None:
            kinds |= {
                "kills": (3, partial(self._kill, victim, place)),
                "kills before a commit": (1, partial(self._doom, victim, place, "before")),
                "kills after a commit": (1.5, partial(self._doom, victim, place, "after")),
                "orderly stops": (0.3, victim.ask_to_end),
            }
            if victim.state == "runs":
                kinds["stops of a process"] = (3, partial(self._stop, victim))
        names = list(kinds)
        name = self._random.choices(names, [kinds[name][0] for name in names])[0]
        self._world.witness("fault", name, 0 if victim is None else victim.pid)
        if not name.endswith("a commit"):  # that is counted when it happens
            self._count(name)
        kinds[name][1]()

    def _count(self, name: str) -> None:
        self.faults[name] = self.faults.get(name, 0) + 1

    def _start(self, place: int) -> None:
        if self._places[place] is None and not (self._over or (self._world.calm and place == 0)):
            world = self._world
            main: Callable[[Process], Coroutine[Any, Any, None]] = partial(supervise, world)
            if place == 0:
                main = partial(_ask, world)
            process = self._places[place] = self._machine.start("supervisor" if place else "client", main)
            process.gone = partial(self._gone, place, process)
            world.witness("start", process.pid, process.name)

    def _gone(self, place: int, process: Process) -> None:
        """Somebody's process has ended: another one takes its place after a while."""
        self._world.witness("gone", process.pid)
        self._places[place] = None
        self._machine.loop.call_later(self._random.choice((0.05, self._random.uniform(0, 5))), self._start, place)

    def _kill(self, victim: Process, _place: int) -> None:
        victim.kill()

    def _doom(self, victim: Process, _place: int, side: str) -> None:
        victim.fate = side  # type: ignore[assignment]
        victim.struck = partial(self._count, f"kills {side} a commit")

    def _stop(self, victim: Process) -> None:
        victim.stop()
        self._machine.loop.call_later(self._random.uniform(0.2, 3) * LEASE, self._go_on, victim)

    def _go_on(self, victim: Process) -> None:
        self._world.witness("goes on", victim.pid)
        victim.go_on()

    def _jump(self) -> None:
        size = self._random.choice((1, 60, 3600, 86_400, 400 * 86_400))
        by = timedelta(seconds=self._random.uniform(-size, size))
        self._machine.jump(by)

    def _lock(self) -> None:
        """Another program takes the write lock, and keeps it for a while."""
        if self._stranger is None:
            self._stranger = apsw.Connection(str(self._world.db), flags=apsw.SQLITE_OPEN_READWRITE)
        if not self._stranger.in_transaction:
            self._stranger.execute("BEGIN IMMEDIATE")
            self._machine.loop.call_later(self._random.choice((0.1, 3, 20, 2 * LEASE)), self._unlock)

    def _unlock(self) -> None:
        if self._stranger is not None and self._stranger.in_transaction:
            self._stranger.execute("ROLLBACK")

    def _reboot(self) -> None:
        self._machine.reboot()

    async def _calm(self) -> None:
        """No more faults: everything that was asked for comes to its end."""
        world, machine = self._world, self._machine
        world.witness("calm")
        world.calm = True
        self._unlock()
        machine.skew = machine.latest_skew
        for process in list(machine.living.values()):
            process.fate = ""
            process.go_on()
        until = machine.loop.now + PATIENCE
        while machine.loop.now < until:
            await asyncio.sleep(10)
            if not world.ask("SELECT 1 FROM tasks WHERE status IN ('pending', 'running') LIMIT 1"):
                break
        else:
            left = world.ask(
                "SELECT id, type, status, attempt, hold, waiting_for, run_at, lease_owner, losses FROM tasks "
                "WHERE status IN ('pending', 'running')"
            )
            world.broken("stuck", f"{len(left)} tasks do not come to their end, the first is {left[0]}")
        world.witness("drained")
        self._over = True
        for process in list(machine.living.values()):
            process.ask_to_end()
        for _ in range(600):
            if not machine.living:
                break
            await asyncio.sleep(1)
        if supervisors := [process.pid for process in machine.living.values()]:
            world.broken("stuck", f"processes {supervisors} do not end when they are asked to")


async def _ask(world: World, process: Process) -> None:
    await ask(world, process, PACE)
