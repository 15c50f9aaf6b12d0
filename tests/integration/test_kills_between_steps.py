"""SIGKILL at places that matter to a step: before it, between its tries, between its function and its record."""

from __future__ import annotations

from pathlib import Path

import anyio

from tests.integration.machine import EffectLog, program, quick

POLLING = """
count = 0

async def poll():
    effect("poll")
    return len(open(log).readlines())

@runner.task
async def polling(ctx: TaskContext) -> list[int]:
    got = []
    for number in range(5):
        if number == 3 and ctx.attempt == 1:
            print("three are recorded")
            await anyio.sleep(60)
        got.append(await ctx.step("poll", poll))
    return got

anyio.run(runner.run)
"""


async def test_a_killed_loop_of_steps_goes_on_where_it_was(db: Path, tmp_path: Path) -> None:
    """B12: five calls of one step with equal arguments, killed before the fourth: only the last two run then."""
    log = EffectLog(tmp_path / "effects")
    client = quick(db)
    async with client:
        handle = await client.enqueue("polling")
        with program(db, log, POLLING) as first:
            assert await anyio.to_thread.run_sync(first.hear) == "three are recorded"
            first.kill(9)
        assert len(log.lines()) == 3
        with program(db, log, POLLING) as second:
            assert await handle.result(timeout=10) == [1, 2, 3, 4, 5]
            second.kill(15)
            assert second.wait()[0] == 0
        task = await handle.task()
        assert (task.attempt, task.losses, task.retry_count) == (2, 0, 0)
    assert len(log.lines()) == 5


TRYING = """
async def flaky():
    effect("try")
    tries = len(open(log).readlines())
    if tries == 2:
        print("second try")
        await anyio.sleep(0.01)
    if tries < 5:
        raise ConnectionError(f"try {tries}")
    return tries

@runner.task
async def trying(ctx: TaskContext) -> int:
    await ctx.step("before", effect, "before")
    return await ctx.options(max_retries=3, wait=0.5).step("flaky", flaky)

anyio.run(runner.run)
"""


async def test_a_kill_between_two_tries_of_a_step(db: Path, tmp_path: Path) -> None:
    """B12: killed between its second and third try, a step goes on with fresh tries, and what was recorded stays so."""
    log = EffectLog(tmp_path / "effects")
    client = quick(db)
    code = TRYING.replace("len(open(log).readlines())", 'open(log).read().count("try")')
    async with client:
        handle = await client.enqueue("trying")
        with program(db, log, code) as first:
            assert await anyio.to_thread.run_sync(first.hear) == "second try"
            await anyio.sleep(0.1)
            first.kill(9)
        assert log.lines() == ["before", "try", "try"]
        with program(db, log, code) as second:
            assert await handle.result(timeout=10) == 5
            second.kill(15)
            assert second.wait()[0] == 0
    assert log.lines() == ["before", "try", "try", "try", "try", "try"]


SAGA = """
async def charge():
    effect("charge")
    if open(log).read().count("charge") == 1:
        raise ConnectionError("no route")

@runner.task
async def saga(ctx: TaskContext) -> str:
    try:
        await ctx.step("charge", charge)
        ended = "charged"
    except StepFailed as failure:
        await ctx.step("release", effect, "release", failure.error_type)
        ended = "released"
    if ctx.attempt == 1:
        print("decided")
        await anyio.sleep(60)
    return ended

anyio.run(runner.run)
"""


async def test_a_killed_saga_takes_the_same_branch(db: Path, tmp_path: Path) -> None:
    """The failure is on record with its compensation: the charge, which would work now, is not tried again."""
    log = EffectLog(tmp_path / "effects")
    client = quick(db)
    async with client:
        handle = await client.enqueue("saga")
        with program(db, log, SAGA) as first:
            assert await anyio.to_thread.run_sync(first.hear) == "decided"
            first.kill(9)
        with program(db, log, SAGA) as second:
            assert await handle.result(timeout=10) == "released"
            second.kill(15)
            assert second.wait()[0] == 0
    assert log.lines() == ["charge", "release ConnectionError"]


UNRECORDED = """
async def work(key):
    effect("work", TaskContext.current().idempotency_key)
    print("worked")
    await anyio.sleep(60 if len(open(log).readlines()) == 1 else 0)
    return "done"

@runner.task
async def one(ctx: TaskContext) -> str:
    await ctx.progress(0.5, "half")
    return await ctx.step("work", work, ctx.uuid())

anyio.run(runner.run)
"""


async def test_a_kill_before_the_record(db: Path, tmp_path: Path) -> None:
    """At least once: a step that was not recorded runs again, with the same idempotency key; progress does not fall."""
    log = EffectLog(tmp_path / "effects")
    client = quick(db)
    async with client:
        handle = await client.enqueue("one")
        with program(db, log, UNRECORDED) as first:
            assert await anyio.to_thread.run_sync(first.hear) == "worked"
            await anyio.sleep(0.5)
            first.kill(9)
        assert await handle.progress() == 0.5
        with program(db, log, UNRECORDED) as second:
            assert await handle.result(timeout=10) == "done"
            second.kill(15)
            assert second.wait()[0] == 0
    first_line, second_line = log.lines()
    assert first_line == second_line
