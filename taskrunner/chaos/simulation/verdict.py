"""What is left of a simulated world, against what was acknowledged in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from taskrunner.chaos.report import Problem
from taskrunner.chaos.simulation.world import SHOWN
from taskrunner.storage.engine import load_queries
from taskrunner.storage.health import invariants

if TYPE_CHECKING:
    from taskrunner.chaos.simulation.world import World


class Result(msgspec.Struct):
    """What a run has found."""

    seed: str
    hours: float = 0.0
    """Simulated, the calm at the end included."""
    faults: dict[str, int] = {}
    reached: dict[str, int] = {}
    problems: list[Problem] = []
    hash: str = ""
    """Of the log of all that was seen: the same for the same seed."""
    turns: int = 0
    seconds: float = 0.0
    """Of processor time."""
    tail: list[str] = []
    """The end of the log before the first problem."""


def verdict(world: World, faults: Mapping[str, int], began: float) -> Result:
    """Judge a world in which nothing moves any more. `began`: the processor time then, in seconds."""
    world.problems += judge(world)
    result = Result(
        seed=world.machine.seed,
        hours=round(world.machine.loop.now / 3600, 3),
        faults=dict(sorted(faults.items())),
        reached=dict(sorted(world.counts.items())),
        problems=world.problems,
        hash=world.hash,
        turns=world.machine.loop.turns,
        seconds=round(time.process_time() - began, 2),
    )
    if world.problems:
        first = next((place for place, line in enumerate(world.log) if line[1] == "broken"), len(world.log))
        result.tail = [repr(line) for line in world.log[max(0, first - SHOWN) : first + 1]]
    world.close()
    return result


def judge(world: World) -> Iterator[Problem]:
    """Compare the store with what was acknowledged, when nobody works on it any more."""
    tasks = {row[0]: row[1:] for row in world.ask("SELECT id, idempotency_key, status, attempt, output FROM tasks")}
    for key, task in world.keys.items():
        if task not in tasks or tasks[task][0] != key:
            yield Problem("lost", f"{key} was acknowledged as {task}, and the store has {tasks.get(task)}")
    asked = set(world.asked)
    for task, (key, *_rest) in tasks.items():
        if key not in asked:
            yield Problem("wrong", f"nobody asked for {task} with the key {key}")
    recorded = {
        (task, name, scope): (value, attempt)
        for task, name, scope, value, attempt in world.ask(
            "SELECT task_id, name, scope, value, attempt FROM steps WHERE value IS NOT NULL"
        )
    }
    for line in world.log:
        if line[1] == "ack":
            _at, _kind, _pid, task, name, key, _attempt, value = line
            if recorded.get((task, name, key), ("",))[0] != f'"{value}"':
                yield Problem("lost", f"{name}[{key}] of {task} returned {value}: {recorded.get((task, name, key))}")
    messages = dict(world.ask("SELECT id, content FROM messages"))
    for message, text in world.messages.items():
        if messages.get(message) != text:
            yield Problem("lost", f"message {message} with {text} was acknowledged: {messages.get(message)}")
    yield from damage(world)


def damage(world: World) -> Iterator[Problem]:
    """What SQLite and the invariants say of the file."""
    if (integrity := world.ask("PRAGMA integrity_check")) != [("ok",)]:
        yield Problem("corrupt", f"integrity_check says {integrity}")
    if keys := world.ask("PRAGMA foreign_key_check"):
        yield Problem("corrupt", f"foreign_key_check says {keys}")
    queries = load_queries("sqlite")
    for name, title in invariants().items():
        for row in world.ask(queries[name].sql):
            yield Problem("wrong", f"invariant {title}: {row[0]}: {row[1]}")
