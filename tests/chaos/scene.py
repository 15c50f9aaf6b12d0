"""Directions for a scene with real processes: wait for a line of the witness, or until a supervisor is at work."""

from __future__ import annotations

import time
from typing import Any

import anyio

from taskrunner.chaos.kills.witness import Line
from taskrunner.chaos.kills.world import Process, World


async def line(world: World, kind: str, *, after: int = 0, within: float = 10, **wanted: Any) -> Line:  # noqa: ANN401 - fields
    """Wait for a line of the witness with these fields, written later than `after` (nanoseconds)."""

    def fits(line: Line) -> bool:
        return line.kind == kind and line.ns > after and all(getattr(line, name) == wanted[name] for name in wanted)

    found = await anyio.to_thread.run_sync(lambda: world.tail.wait(fits, timeout=within))
    assert found is not None, f"nobody has witnessed {kind} with {wanted} within {within:g} s"
    return found


async def supervisor(world: World, *options: str, command: tuple[str, ...] = ()) -> Process:
    """Start a supervisor, and wait until it has its lease."""
    since = time.monotonic_ns()
    process = world.supervisor(*options, command=command)
    await line(world, "supervising", after=since)
    return process
