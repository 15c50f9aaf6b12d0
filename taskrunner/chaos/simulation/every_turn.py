"""One small scenario again and again: each time one of its processes is killed at another turn of the loop."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Final

from taskrunner.chaos.simulation.jobs import program, supervise
from taskrunner.chaos.simulation.loop import StuckError
from taskrunner.chaos.simulation.machine import Process
from taskrunner.chaos.simulation.verdict import Result, verdict
from taskrunner.chaos.simulation.world import World

KEYS: Final = ("job 3", "job 8", "fragile 1", "hasty 2")
"""What the client asks for: steps beside each other, a message, a step that fails, a timeout."""

PATIENCE: Final = 3600.0
"""Virtual seconds in which it all has to come to its end."""


def turns(seed: str, folder: Path) -> int:
    """How many turns the loop takes when nobody is killed."""
    return _once(seed, folder, None).turns


def every_turn(seed: str, folder: Path, first: int, last: int, step: int) -> Result:
    """Kill at each of these turns, in a world of its own. It leaves a litter of the dead, as `hours` does."""
    began = time.process_time()
    total = Result(seed=f"{seed} turns {first} to {last} by {step}")
    for turn in range(first, last, step):
        one = _once(seed, folder, turn)
        total.hours += one.hours
        total.turns += one.turns
        total.faults["kills at a turn"] = total.faults.get("kills at a turn", 0) + one.faults.get("kills at a turn", 0)
        for what, number in one.reached.items():
            total.reached[what] = total.reached.get(what, 0) + number
        total.problems += one.problems
        total.tail = total.tail or one.tail
        total.hash += one.hash[:4]
    total.seconds = round(time.process_time() - began, 2)
    return total


def _once(seed: str, folder: Path, turn: int | None) -> Result:
    began = time.process_time()
    place = folder / f"turn {turn}"
    place.mkdir()
    world = World(seed, place)
    scene = _Scene(world, turn)
    asyncio.set_event_loop(world.machine.loop)
    try:
        world.machine.loop.run_until_complete(scene.run())
    except StuckError as error:
        world.broken("stuck", f"after a kill at turn {turn}: {error}")
    return verdict(world, scene.faults, began)


class _Scene:
    """Two supervisors, and a client that asks for some jobs."""

    def __init__(self, world: World, turn: int | None) -> None:
        self._world = world
        self._machine = world.machine
        self._turn = turn
        self._over = False
        self.faults: dict[str, int] = {}
        world.asked = list(KEYS)

    async def run(self) -> None:
        """Let them work until all of it has come to its end."""
        self._machine.loop.after_turn = self._look
        self._start("client", self._ask)
        for _ in range(2):
            self._start("supervisor", partial(supervise, self._world))
        until = self._machine.loop.now + PATIENCE
        while not self._is_done():
            await asyncio.sleep(1)
            if self._machine.loop.now > until:
                self._world.broken("stuck", f"after a kill at turn {self._turn} it does not come to its end")
                break
        self._machine.loop.after_turn = None
        self._over = True
        for process in list(self._machine.living.values()):
            process.ask_to_end()
        for _ in range(60):
            if not self._machine.living:
                break
            await asyncio.sleep(1)
        if self._machine.living:
            self._world.broken("stuck", f"after a kill at turn {self._turn} processes do not end")

    def _is_done(self) -> bool:
        if set(self._world.keys) != set(KEYS):
            return False
        return not self._world.ask("SELECT 1 FROM tasks WHERE status IN ('pending', 'running') LIMIT 1")

    def _look(self) -> None:
        if self._machine.loop.turns == self._turn:
            ran = self._machine.loop.ran
            victim = ran if isinstance(ran, Process) and ran.state == "runs" else None
            victim = victim or min(self._machine.living.values(), key=lambda process: process.pid)
            self.faults["kills at a turn"] = 1
            self._world.witness("fault", "kill", victim.pid)
            victim.kill()

    def _start(self, name: str, main: object) -> None:
        if self._over:
            return
        process = self._machine.start(name, main)  # type: ignore[arg-type]
        process.gone = partial(self._again, process, main)

    def _again(self, process: Process, main: object) -> None:
        if process.name == "supervisor" or set(self._world.keys) != set(KEYS):
            self._machine.loop.call_later(0.5, self._start, process.name, main)

    async def _ask(self, process: Process) -> None:
        runner = program(self._world, process)
        with runner.clocked(process.clock):
            async with runner:
                session = None
                for key in KEYS:
                    definition = runner.definitions[key.partition(" ")[0]]
                    if key == KEYS[1]:
                        session = (await runner.sessions.create(title="talk")).id
                    handle = await definition.options(idempotency_key=key, session_id=session).enqueue(key=key)
                    self._world.witness("enqueued", key, handle.id)
                    self._world.acknowledged(key, handle.id)
                    await asyncio.sleep(0.2)
