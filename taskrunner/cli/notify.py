"""systemd's notify protocol, as `taskrunner run` speaks it: what a service manager hears of a supervisor.

`READY=1` when its first claim has gone through: from then on it takes tasks. `STOPPING=1` when it stops. `STATUS=` is a
line for `systemctl status`. `WATCHDOG=1` comes at half of the time that the manager asks for, and proves two things:
that the event loop answers, for it is sent from there; and that the supervisor's lease holds, as it is read back from
the file, so its writer still commits. A lease that has run out makes its tasks anybody's, and a supervisor that cannot
renew it in all that time is better started again.

Nothing is sent where no `NOTIFY_SOCKET` is in the environment. (Of the packages for this, one has not moved since 2017
and drops its errors, and the others are bindings to a C library.)
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from taskrunner.app import TaskRunner
from taskrunner.cli import terminal
from taskrunner.core.clock import Clock
from taskrunner.core.errors import InvalidInput, NotOpen, StoreError
from taskrunner.storage.health import Health
from taskrunner.storage.owners import NANOSECONDS

PULSE: Final = 10.0
"""Seconds between two lines of status where the manager asks for no watchdog."""

LOOK_AGAIN: Final = 1.0
"""Seconds until the next look, at most, after one that found no lease."""

_log = logging.getLogger("taskrunner")


class ServiceManager:
    """Who started this process and wants to hear of it."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self.watchdog = watchdog
        """Seconds without `WATCHDOG=1` after which the manager takes this process for hung; None: it does not ask."""
        abstract = address.startswith("@")
        self._address = f"\0{address[1:]}" if abstract else address
        self._deaf = False

    @classmethod
    def take_from(cls, env: MutableMapping[str, str]) -> ServiceManager | None:
        """The manager that these variables name, if any. They are taken out: no child of ours shall answer for us.

        Raises:
            InvalidInput: the socket or the watchdog's time is none.
        """
        address, usec, pid = (env.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"))
        if not address:
            return None
        if address[0] not in "/@" or len(address) == 1:
            message = (
                f"NOTIFY_SOCKET={address!r}: a path that begins with / or an abstract name that begins with @ is wanted"
            )
            raise InvalidInput(message, path="NOTIFY_SOCKET")
        if not usec or pid not in {"", str(os.getpid())}:
            return cls(address)
        if not usec.isascii() or not usec.isdecimal() or int(usec) == 0:
            message = f"WATCHDOG_USEC={usec!r}: a whole number of microseconds above 0 is wanted"
            raise InvalidInput(message, path="WATCHDOG_USEC")
        return cls(address, int(usec) / 1_000_000)

    def tell(self, **said: object) -> bool:
        """Send assignments, such as `READY=1`, in one message, and say whether it was taken. It waits for nobody."""
        text = "\n".join(f"{name}={terminal.harmless(value)}" for name, value in said.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
                door.settimeout(0)
                door.sendto(text.encode(), self._address)
        except OSError as error:
            if not self._deaf:
                _log.warning("the service manager does not hear us: %s", error)
            self._deaf = True
            return False
        return True


@asynccontextmanager
async def reported(runner: TaskRunner, env: MutableMapping[str, str]) -> AsyncIterator[None]:
    """Tell the service manager that the environment names, if any, of the supervisor that runs inside the block.

    Raises:
        InvalidInput: the environment's variables are wrong.
    """
    manager = ServiceManager.take_from(env)
    if manager is None:
        yield
        return
    report = _Report(runner, manager)
    async with anyio.create_task_group() as group:
        group.start_soon(report.pulse)
        yield
        group.cancel_scope.cancel()


class _Report:
    """What is told of a runner's supervisor, in all its incarnations."""

    def __init__(self, runner: TaskRunner, manager: ServiceManager) -> None:
        self._runner = runner
        self._manager = manager
        self._clock = Clock()
        self._owner = ""
        """The present incarnation; empty: there is none."""
        self._doing = "working"
        self._is_ready = anyio.Event()
        runner.on("supervisor.ready", self._ready)
        runner.on("lease.lost", self._lost)
        runner.on("supervisor.stopping", self._stopping)

    def _ready(self, event: Mapping[str, Any]) -> None:
        self._owner = event["supervisor_id"]
        self._is_ready.set()

    def _lost(self, _event: Mapping[str, Any]) -> None:
        self._owner = ""
        self._manager.tell(STATUS="its lease was lost: it begins again")

    def _stopping(self, event: Mapping[str, Any]) -> None:
        if self._owner:  # else only this incarnation ends, and another one follows
            self._doing = "stopping"
            self._manager.tell(STOPPING=1, STATUS=f"stopping: {event['running']} tasks may end")

    async def pulse(self) -> None:
        """Say that it is ready, until that is taken; then again and again that all is well, for as long as it is."""
        await self._is_ready.wait()
        while not self._manager.tell(READY=1, MAINPID=os.getpid(), STATUS=f"working on {self._runner.store.path}"):  # noqa: ASYNC110 - it asks another process
            await anyio.sleep(LOOK_AGAIN)
        asked = self._manager.watchdog
        rhythm = PULSE if asked is None else asked / 2
        while True:
            well, status = await self._look()
            if well and asked is not None:
                self._manager.tell(WATCHDOG=1, STATUS=status)
            else:
                self._manager.tell(STATUS=status)
            await anyio.sleep(rhythm if well else min(rhythm, LOOK_AGAIN))

    async def _look(self) -> tuple[bool, str]:
        """Whether the lease holds, as the file has it, and a line about it."""
        try:
            store = self._runner.store
            rows = await store.owners.living()
            running = await Health(store.engine).running()
        except (StoreError, NotOpen) as error:
            return False, str(error)
        now = self._clock.monotonic() * NANOSECONDS
        if not any(row.id == self._owner and row.expires_at > now for row in rows):
            return False, f"its lease does not hold: {store.path} cannot be written, or others have taken over"
        return True, f"{self._doing} on {store.path}, tasks running: {running.get(self._owner, 0)}"
