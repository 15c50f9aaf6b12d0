"""The program under fire: jobs of seven steps that tell a witness what they do, and a client that enqueues them.

`taskrunner run taskrunner.chaos.kills.jobs:make` runs them. The environment may name a planted bug (`plants`), and a
moment at which the process kills itself (`fate`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from taskrunner import StoreBusy, TaskContext, TaskRunner
from taskrunner.chaos import plants
from taskrunner.chaos.kills import fate, gates
from taskrunner.chaos.kills.bodies import body, refusals, taken
from taskrunner.chaos.kills.witness import write
from taskrunner.cli import main as command

APP: Final = "taskrunner.chaos.kills.jobs:make"
STEPS: Final = ("plan", "search", "search#1", "search#2", "merge[left]", "merge[right]", "report")
"""The steps of every job, as the witness calls them."""

MAX_LOSSES: Final = 1000
"""Kills come faster here than a job may record a step: so many in a row are chance, and no sign of a guilty job."""

runner = TaskRunner()
runner.include(gates.tasks)


def make() -> TaskRunner:
    """The runner with the witness's listeners, and with the bug that was asked for."""
    plants.plant(os.environ.get(plants.VARIABLE, ""))
    fate.decree(os.environ.get(fate.VARIABLE, ""), runner)
    for name in ("task.completed", "task.fenced"):
        runner.on(name, _tell)
    runner.on("lease.lost", lambda _fields: write("lost"))
    runner.on("child.started", lambda fields: write("child", text=str(fields["pid"])))
    runner.on("supervisor.started", lambda _fields: write("supervising"))
    return runner


def _tell(fields: Mapping[str, Any]) -> None:
    write(fields["event"].partition(".")[2], fields["task_id"], attempt=fields.get("attempt", 0))


# ── the jobs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@runner.task(max_losses=MAX_LOSSES)
async def job(ctx: TaskContext, key: str, pace: float) -> list[str]:
    """Seven steps of `pace` seconds each, two of them beside each other, and a message between them."""
    with body(ctx):
        values = [await taken(ctx, "plan", pace)]
        for number in range(3):
            values.append(await taken(ctx, "search", pace, label=_numbered("search", number)))
            await ctx.progress((number + 1) / 4, f"search {number}")
        with refusals(ctx, "message"):
            await ctx.session.add("user", key)
        merges = (taken(ctx, "merge", pace, label=f"merge[{side}]", key=side) for side in ("left", "right"))
        values += await asyncio.gather(*merges)
        values.append(await taken(ctx, "report", pace, ctx.uuid()))
        return values


@runner.task(max_losses=MAX_LOSSES)
def plain_job(ctx: TaskContext, key: str, pace: float) -> list[str]:
    """The same as a plain function in a thread, its merges one after the other."""
    with body(ctx):
        values = [ctx.sync(taken(ctx, "plan", pace))]
        for number in range(3):
            values.append(ctx.sync(taken(ctx, "search", pace, label=_numbered("search", number))))
            ctx.sync(ctx.progress((number + 1) / 4, f"search {number}"))
        with refusals(ctx, "message"):
            ctx.sync(ctx.session.add("user", key))
        values += [ctx.sync(taken(ctx, "merge", pace, label=f"merge[{side}]", key=side)) for side in ("left", "right")]
        values.append(ctx.sync(taken(ctx, "report", pace, ctx.uuid())))
        return values


def _numbered(name: str, number: int) -> str:
    return f"{name}#{number}" if number else name


# ── the client ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _enqueue_all(db: str, pace: float, keys: Sequence[str]) -> None:
    """Enqueue a job for each key, all at the same time."""
    with runner.override(db=db):
        async with runner:
            session = await runner.sessions.create(title=keys[0])
            await asyncio.gather(*(_enqueue(number, key, pace, session.id) for number, key in enumerate(keys)))


async def _enqueue(number: int, key: str, pace: float, session_id: str) -> None:
    """Enqueue one job, and witness what came of it."""
    kind = plain_job if number % 2 else job
    write("asked", step=key)
    try:
        handle = await kind.options(idempotency_key=key, session_id=session_id).enqueue(key=key, pace=pace)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is unknown whether the job is there
        write("unknown", step=key, text=f"{type(error).__name__}: {error}")
    else:
        write("enqueued", handle.id, key)


def main(argv: Sequence[str]) -> int:
    """Be the client (`client DB PACE KEY …`), or the command `taskrunner`."""
    if argv[0] == "client":
        _name, db, pace, *keys = argv
        with suppress(StoreBusy):  # it could not even make the session
            asyncio.run(_enqueue_all(db, float(pace), keys))
        return 0
    return command(argv)
