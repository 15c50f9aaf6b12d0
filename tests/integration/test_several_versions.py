"""Two versions of taskrunner on one file, as in a rolling upgrade: each leaves the other alone, and does its part."""

from __future__ import annotations

import time
from pathlib import Path

import anyio

from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from tests.integration.machine import Heard, quick, script, sql, until
from tests.unit.processes import owner

SUPERVISOR = (
    "INSERT INTO supervisors(id, boot_id, pid, pid_namespace, start_time, host, lock_name, version, expires_at, "
    "started_at, beat_at) VALUES (?, ?, ?, ?, ?, ?, ?, '0.0.1', ?, ?, ?)"
)
TASK = (
    "INSERT INTO tasks(id, history_id, type, input, max_retries, max_losses, run_at, created_at, updated_at) "
    "VALUES (?1, ?1, 'job', ?2, 3, 5, ?3, ?3, ?3)"
)
CLAIM = "UPDATE tasks SET status = 'running', lease_owner = ?, attempt = 1, started_at = ?, updated_at = ? WHERE id = ?"


async def test_an_older_supervisor_beside_ours(db: Path) -> None:
    """It has no bell, and rings none: it is left alone while it lives, and heard of; when it dies it is inherited."""
    runner = quick(db)
    heard = Heard(runner, "supervisor.buried")
    started: list[str] = []

    @runner.task
    async def job(name: str) -> None:
        started.append(name)

    now = stamp(Clock().now())
    with owner(db) as old:
        row = old.row
        async with runner.working():
            lease = time.monotonic_ns() + 600 * 10**9
            here = (row.id, row.boot_id, row.pid, row.pid_namespace, row.start_time, row.host, row.lock_name)
            script(
                db,
                [
                    ("BEGIN IMMEDIATE", ()),
                    (SUPERVISOR, (*here, lease, now, now)),
                    (TASK, ("1", '{"name": "its own"}', now)),
                    (CLAIM, (row.id, now, now, "1")),
                    ("COMMIT", ()),
                ],
            )
            await anyio.sleep(0.5)
            assert (started, heard.events) == ([], [])
            sql(db, TASK, "2", '{"name": "of its client"}', now)
            await until(lambda: started == ["of its client"], within=1)
            old.kill()
            await until(lambda: "its own" in started, within=1)
    assert [event["supervisor_id"] for event in heard.events] == [row.id]
    assert sql(db, "SELECT id, status, attempt, losses FROM tasks ORDER BY id") == [
        ["1", "completed", 2, 0],
        ["2", "completed", 1, 0],
    ]
