"""The web application of `examples/` as people deploy it: a real server, under load, stopped by SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import httpx
import pytest

from taskrunner import TaskRunner
from tests.acceptance.pages import ROOT
from tests.integration.machine import until
from tests.stores import beside

REQUESTS = 200
STOPPED_BY_SIGTERM = {0, -signal.SIGTERM}
"""How uvicorn ends: it shuts everything down, and then lets the signal have its way."""


class Site:
    """A server on a socket of its own, with its store."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.db = folder / "webapp.db"
        self.socket = folder / "socket"
        ours = {name: value for name, value in os.environ.items() if not name.startswith("TASKRUNNER_")}
        self.env = {**ours, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}", "TASKRUNNER_DB": str(self.db), **env}
        self.folder = folder

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a Python module in the site's folder; what it writes to stderr is in a file of its name."""
        with (self.folder / command[0]).open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-W", "error", "-m", *command], cwd=self.folder, env=self.env, stderr=log
            )

    def log(self, command: str) -> str:
        """What a module that was started has written to stderr."""
        return (self.folder / command).read_text(encoding="utf-8")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[subprocess.Popen[bytes], httpx.AsyncClient]]:
        """The server, when it answers, and a client; it is killed at the end if it has not ended by itself."""
        server = self.start("uvicorn", "webapp:app", "--uds", str(self.socket), "--log-level", "warning")
        try:
            limits = httpx.Limits(max_connections=REQUESTS)
            transport = httpx.AsyncHTTPTransport(uds=str(self.socket), limits=limits)
            async with httpx.AsyncClient(transport=transport, base_url="http://site", timeout=15) as client:
                await until(lambda: self._answers(client, server), within=15)
                yield server, client
        finally:
            server.kill()
            server.wait()

    async def stop(self, server: subprocess.Popen[bytes]) -> None:
        """Stop the server as a service manager does: it has nothing to complain of."""
        server.send_signal(signal.SIGTERM)
        await until(lambda: server.poll() is not None, within=15)
        assert (server.returncode in STOPPED_BY_SIGTERM, self.log("uvicorn")) == (True, "")

    async def _answers(self, client: httpx.AsyncClient, server: subprocess.Popen[bytes]) -> bool:
        assert server.poll() is None, self.log("uvicorn")
        try:
            return (await client.get("/reports/nothing")).status_code == 404
        except httpx.TransportError:
            return False


async def post_all(client: httpx.AsyncClient) -> list[str]:
    """All requests at the same time; the ids of the accepted jobs."""
    ids: list[str] = []

    async def post(number: int) -> None:
        answer = await client.post("/reports", json={"title": f"title {number}"})
        assert answer.status_code == 202
        ids.append(answer.json()["id"])

    async with anyio.create_task_group() as group:
        for number in range(REQUESTS):
            group.start_soon(post, number)
    return ids


@pytest.mark.timeout(60)
@pytest.mark.parametrize("processes", [0, 2])
async def test_it_works_on_what_it_accepts(tmp_path: Path, processes: int) -> None:
    """200 requests at once are all accepted and all worked on, by it or its children; a stop leaves one sound file."""
    site = Site(tmp_path, PAGE="0", PROCESSES=str(processes))
    async with site.open() as (server, client):
        ids = await post_all(client)
        assert len(set(ids)) == REQUESTS
        for task_id in ids:
            await until(partial(is_completed, client, task_id), within=30)
        assert (await client.get("/reports/nothing")).status_code == 404
        await site.stop(server)
    assert beside(site.db) == ["webapp.db"]


async def is_completed(client: httpx.AsyncClient, task_id: str) -> bool:
    """Whether the site says that a job is completed."""
    found = (await client.get(f"/reports/{task_id}")).json()
    assert found["status"] in {"pending", "running", "completed"}
    return bool(found == {"status": "completed", "pages": 3})


@pytest.mark.timeout(60)
async def test_a_stop_lets_the_running_jobs_end(tmp_path: Path) -> None:
    """B20: SIGTERM in the middle of the work: what runs has the grace and completes, what waits is left unharmed."""
    site = Site(tmp_path, PAGE="0.3")
    async with site.open() as (server, client):
        await post_all(client)
        async with TaskRunner(site.db) as runner:
            await until(lambda: runs(runner))
            await site.stop(server)
            tasks = await runner.tasks.list(limit=REQUESTS)
            assert {(task.retry_count, task.losses) for task in tasks} == {(0, 0)}
            statuses = Counter(task.status for task in tasks)
            assert statuses["completed"] >= 8
            assert statuses["completed"] + statuses["pending"] == REQUESTS
    site.env["PAGE"] = "0"
    async with site.open() as (server, _client), TaskRunner(site.db) as runner:
        await until(lambda: all_completed(runner), within=30)
        await site.stop(server)


async def runs(runner: TaskRunner) -> bool:
    """Whether as many jobs run as may."""
    return len(await runner.tasks.list(status="running")) == 8


async def all_completed(runner: TaskRunner) -> bool:
    """Whether every job has come to its end."""
    return len(await runner.tasks.list(status="completed", limit=REQUESTS)) == REQUESTS


@pytest.mark.timeout(60)
async def test_it_leaves_the_work_to_another_process(tmp_path: Path) -> None:
    """With WORK=elsewhere it only enqueues, and `taskrunner run webapp:runner` works on the same file."""
    site = Site(tmp_path, PAGE="0", WORK="elsewhere")
    async with site.open() as (server, client):
        ids = await post_all(client)
        assert (await client.get(f"/reports/{ids[0]}")).json() == {"status": "pending", "pages": None}
        worker = site.start("taskrunner", "run", "webapp:runner")
        try:
            for task_id in ids:
                await until(partial(is_completed, client, task_id), within=30)
            worker.send_signal(signal.SIGTERM)
            await until(lambda: worker.poll() is not None, within=15)
        finally:
            worker.kill()
            worker.wait()
        assert worker.returncode == 0, site.log("taskrunner")
        await site.stop(server)
