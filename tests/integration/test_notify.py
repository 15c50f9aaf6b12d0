"""systemd's notify protocol: what a service manager hears of a supervisor, on a real datagram socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from taskrunner import InvalidInput
from taskrunner.cli.notify import ServiceManager, reported
from tests.integration.commands import Folder, wait_until
from tests.integration.machine import quick, until
from tests.rivals import write_lock


class Ear:
    """A service manager's end of the socket, and what came there, each message with the time of its coming."""

    def __init__(self, door: socket.socket, address: str) -> None:
        self._door = door
        self.env = {"NOTIFY_SOCKET": address}
        self.heard: list[tuple[float, dict[str, str]]] = []

    def listen(self) -> list[tuple[float, dict[str, str]]]:
        """All messages so far."""
        while True:
            try:
                text = self._door.recv(65_536).decode()
            except BlockingIOError:
                return self.heard
            said = dict(line.split("=", 1) for line in text.splitlines())
            self.heard.append((time.monotonic(), said))

    def discard(self) -> None:
        """Take what has come, and forget it."""
        with suppress(BlockingIOError):
            while True:
                self._door.recv(65_536)

    def of(self, name: str) -> list[str]:
        """What was said under this name."""
        return [said[name] for _at, said in self.listen() if name in said]

    async def follow(self) -> None:
        """Listen all the time, so that the times are right."""
        while True:
            await anyio.wait_readable(self._door)
            self.listen()

    def pings(self) -> list[float]:
        """When `WATCHDOG=1` came, and now."""
        return [at for at, said in self.listen() if said.get("WATCHDOG") == "1"]


@contextmanager
def manager(address: str) -> Iterator[Ear]:
    """Somebody who listens at a path, or at an abstract name that begins with @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        door.settimeout(0)
        yield Ear(door, address)


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    """A service manager at a path."""
    with manager(str(tmp_path / "notify")) as listening:
        yield listening


@pytest.mark.parametrize(("abstract", "processes"), [(False, 0), (True, 1)])
def test_a_service_from_its_start_to_its_stop(tmp_path: Path, abstract: bool, processes: int) -> None:
    """`taskrunner run` says READY with its process, keeps the watchdog fed, and says STOPPING at SIGTERM.

    Where there are child processes, one is up before it is ready.
    """
    address = f"@taskrunner-{os.getpid()}" if abstract else str(tmp_path / "notify")
    folder = Folder.make(tmp_path)
    task_id = folder.ok("enqueue", "greet", "name=x").strip()
    folder = replace(folder, env={**folder.env, "NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"})
    with manager(address) as ear, folder.started("run", "app:runner", "--processes", str(processes)) as service:
        wait_until(lambda: len(ear.pings()) >= 2)
        ready = next(said for _at, said in ear.heard if said.get("READY") == "1")
        assert ready["MAINPID"] == str(service.pid)
        assert ready["STATUS"] == f"working on {folder.db}"
        assert ear.heard[0][1] == ready, "nothing is said before it is ready"
        assert ear.of("STATUS")[-1] == f"working on {folder.db}, tasks running: 0"
        service.send_signal(signal.SIGTERM)
        assert service.wait(10) == 0
        assert ear.of("STOPPING") == ["1"]
        assert service.stdout is not None
        told = [json.loads(line)["event"] for line in service.stdout if line.startswith("{")]
    assert [name for name in told if name in {"child.started", "supervisor.ready"}][-1] == "supervisor.ready"
    assert told.count("child.started") == processes
    assert folder.json("show", task_id)["task"]["status"] == "completed"


def test_a_service_that_cannot_begin_is_never_ready(tmp_path: Path, ear: Ear) -> None:
    """Nothing is said of a supervisor whose store cannot be opened; its exit code says it."""
    folder = Folder.make(tmp_path)
    done = folder.run("--db", "nowhere/agent.db", "run", "app:runner", env=ear.env)
    assert (done.returncode, ear.listen()) == (3, [])


async def test_a_task_does_not_inherit_the_socket(db: Path, ear: Ear) -> None:
    """What the service manager gave is taken out of the environment: no child can answer for its parent."""
    env = {**ear.env, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    async with reported(quick(db), env):
        assert env == {"HOME": "/"}


async def test_a_blocked_loop_does_not_feed_the_watchdog(db: Path, ear: Ear) -> None:
    """While a body blocks the event loop there is no WATCHDOG=1; afterwards it comes again."""
    runner = quick(db)

    @runner.task
    async def blocks() -> float:
        await anyio.sleep(0.3)
        time.sleep(1.5)
        return time.monotonic()

    told = reported(runner, {**ear.env, "WATCHDOG_USEC": "400000"})
    async with told, runner.working(), anyio.create_task_group() as group:
        group.start_soon(ear.follow)
        await until(ear.pings)
        handle = await blocks.enqueue()
        ended = await handle.result()
        await until(lambda: ear.pings()[-1] > ended)
        group.cancel_scope.cancel()
    pings = ear.pings()
    assert max(later - earlier for earlier, later in pairwise(pings)) > 1.4


async def test_the_watchdog_is_fed_for_as_long_as_the_lease_holds(db: Path, ear: Ear) -> None:
    """Somebody holds the store's lock: no WATCHDOG=1 once the lease has run out, and again when it is renewed.

    It is no stop: STOPPING=1 would have the service ended.
    """
    runner = quick(db, lease=1, heartbeat=0.2)
    async with reported(runner, {**ear.env, "WATCHDOG_USEC": "200000"}), runner.working():
        async with anyio.create_task_group() as group:
            group.start_soon(ear.follow)
            await until(ear.pings)
            with write_lock(db):
                held = time.monotonic()
                await until(lambda: any("its lease does not hold" in status for status in ear.of("STATUS")))
                lapsed = time.monotonic()
                await anyio.sleep(1)
            released = time.monotonic()
            await until(lambda: ear.pings()[-1] > released)
            group.cancel_scope.cancel()
        assert ear.of("STOPPING") == []
    assert lapsed - held > 0.4  # the lease less one heartbeat and what the last ping took
    assert not [at for at in ear.pings() if lapsed < at < released]
    assert ear.of("STOPPING") == ["1"]


async def test_a_lost_lease_is_no_stop(db: Path, ear: Ear) -> None:
    """One that was taken for dead begins again, says so, feeds the watchdog again, and never says STOPPING."""
    runner = quick(db)
    async with reported(runner, {**ear.env, "WATCHDOG_USEC": "100000"}), runner.working():
        await until(ear.pings)
        [row] = await runner.store.owners.living()
        await runner.store.owners.bury([(row.id, "a test")], boot_id="", me="", monotonic=0.0)
        await until(lambda: "its lease was lost: it begins again" in ear.of("STATUS"))
        lost = time.monotonic()
        await until(lambda: ear.pings()[-1] > lost)
        assert (ear.of("STOPPING"), ear.of("READY")) == ([], ["1"])


async def test_the_watchdog_of_another_process_is_not_ours(db: Path, ear: Ear) -> None:
    """WATCHDOG_PID names who is to feed it."""
    runner = quick(db)
    env = {**ear.env, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
    async with reported(runner, env), runner.working():
        await until(lambda: ear.of("READY"))
        await anyio.sleep(0.5)
        assert ear.pings() == []


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            {"NOTIFY_SOCKET": "vsock:2:1"},
            "NOTIFY_SOCKET='vsock:2:1': a path that begins with / or an abstract name that begins with @ is wanted",
        ),
        (
            {"NOTIFY_SOCKET": "@"},
            "NOTIFY_SOCKET='@': a path that begins with / or an abstract name that begins with @ is wanted",
        ),
        (
            {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1.5"},
            "WATCHDOG_USEC='1.5': a whole number of microseconds above 0 is wanted",
        ),
        (
            {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "0"},
            "WATCHDOG_USEC='0': a whole number of microseconds above 0 is wanted",
        ),
    ],
)
def test_what_no_service_manager_says(env: dict[str, str], sentence: str) -> None:
    """One sentence names the variable, its value and the rule."""
    with pytest.raises(InvalidInput) as refused:
        ServiceManager.take_from(env)
    assert str(refused.value) == sentence


def test_without_a_service_manager() -> None:
    """Nobody is told anything, and a watchdog alone is none."""
    assert ServiceManager.take_from({}) is None
    assert ServiceManager.take_from({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "x"}) is None


async def test_a_manager_that_does_not_listen_holds_up_nobody(
    db: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody listens, or no message is taken, the work goes on; one warning says it, and READY comes later."""
    runner = quick(db)

    @runner.task
    async def works() -> int:
        return 7

    address = str(tmp_path / "notify")
    async with reported(runner, {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}), runner.working():
        assert await (await works.enqueue()).result(timeout=5) == 7
        with manager(address) as ear:
            fill(address)
            assert await (await works.enqueue()).result(timeout=5) == 7
            await anyio.sleep(1.2)  # it says READY each second until that is taken
            ear.discard()
            await until(lambda: ear.of("READY") and ear.pings())
    assert ["the service manager does not hear us" in record.message for record in caplog.records] == [True]


def fill(address: str) -> None:
    """Send to a socket until it takes no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.settimeout(0)
        try:
            while True:
                other.sendto(b"x", address)
        except BlockingIOError:
            return
