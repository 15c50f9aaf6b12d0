"""A simulated world: a machine with a store, who works on it, and a witness of all that they say."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import apsw
import structlog

from taskrunner.chaos.report import Breach, Problem
from taskrunner.chaos.simulation.loop import in_order, process_here
from taskrunner.chaos.simulation.machine import Machine, Process, own_connections
from taskrunner.runtime import supervisor, watchdog
from taskrunner.storage import group_commit

LEASE: Final = 30.0
"""Seconds; a beat comes every third of it."""

LOOK: Final = 10.0
"""Seconds between two looks at what runs, and `POLL` at the store: more than usual, for each look costs real time."""

POLL: Final = 0.5

CANCELLED_WITHIN: Final = 15.0
"""Seconds after which a supervisor has seen a cancel: one and a half of its looks."""

RECLAIMED_WITHIN: Final = 400.0
"""Seconds after which a dead supervisor's task is somebody else's, though all the others were stopped for a while."""

SHOWN: Final = 40
"""Lines of the log that are shown with the first problem."""


class World:
    """All that a run knows."""

    def __init__(self, seed: str, folder: Path) -> None:
        own_connections()
        in_order()
        supervisor.SHOW_PROGRESS = watchdog.LOOK = LOOK
        group_commit.POLL = POLL  # type: ignore[attr-defined]
        self.machine = Machine(seed)
        self.machine.failed = self._failed
        self.random = Random(f"{seed} world")
        self.db = folder / "simulated.db"
        self.log: list[tuple[Any, ...]] = []
        self.counts: Counter[str] = Counter()
        self.problems: list[Problem] = []
        self.calm = False
        """Whether the faults are over: nothing new is asked for, and all is to come to its end."""
        self.keys: dict[str, str] = {}
        """What was acknowledged: keys, and the ids of their tasks."""
        self.asked: list[str] = []
        """The keys of what was asked for, acknowledged or not."""
        self.latest: dict[str, tuple[int, int]] = {}
        """Of each task: the last attempt that has started, and the newest step's row at that time."""
        self.cancels: dict[str, float] = {}
        """When a cancel of a task was acknowledged that has not been retried since."""
        self.session: str | None = None
        """The conversation that some jobs share."""
        self.messages: dict[str, str] = {}
        """Those that were acknowledged, by id."""
        self._orphans: dict[tuple[str, str], float] = {}
        self._admin: apsw.Connection | None = None
        self._digest = hashlib.blake2b(digest_size=8)
        self._complaints = _Complaints(self)
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
        logging.getLogger("taskrunner").addHandler(self._complaints)
        logging.getLogger("taskrunner").propagate = False

    # ── what is seen ─────────────────────────────────────────────────────────────────────────────────────────────────
    def witness(self, kind: str, *facts: Any) -> None:  # noqa: ANN401 - whatever was seen
        """Write down what has happened, with when and where."""
        process = process_here.get()
        line = (round(self.machine.loop.now, 6), kind, process.pid if isinstance(process, Process) else 0, *facts)
        self.log.append(line)
        self._digest.update(repr(line).encode())

    @property
    def hash(self) -> str:
        """What tells this log from every other one."""
        return self._digest.hexdigest()

    def broken(self, breach: Breach, text: str) -> None:
        """Note a promise that was broken, with what was seen just before it."""
        self.witness("broken", breach, text)
        self.problems.append(Problem(breach, f"at {self.machine.loop.now:.3f} s: {text}"))

    def _failed(self, error: Exception) -> None:
        self.broken("wrong", f"a process ended with an error: {error!r}")

    def ask(self, query: str, *values: apsw.SQLiteValue) -> list[tuple[Any, ...]]:
        """What the store says, to nobody in it."""
        if self._admin is None:
            open_it = partial(apsw.Connection, str(self.db), flags=apsw.SQLITE_OPEN_READWRITE)
            self._admin = Context().run(open_it)  # it is nobody's, whoever has made us look
            self._admin.set_busy_timeout(1_000)
        return self._admin.execute(query, values).fetchall()

    def close(self) -> None:
        """Let go of the store."""
        logging.getLogger("taskrunner").removeHandler(self._complaints)
        if self._admin is not None:
            self._admin.close()

    # ── what bodies and supervisors tell ─────────────────────────────────────────────────────────────────────────────
    def begins(self, task: str, history: str, label: tuple[str, str], attempt: int) -> None:
        """A step's function begins: it must not be recorded yet, unless this attempt was overtaken unawares."""
        self.witness("effect", task, *label, attempt)
        name, key = label
        self._check_cancel(task, name)
        recorded = self.ask(
            "SELECT attempt FROM steps WHERE history_id = ? AND scope = ? AND name = ?", history, key, name
        )
        if not recorded:
            return
        now = self.ask("SELECT attempt, status FROM tasks WHERE id = ?", task)
        if now == [(attempt, "running")]:
            self.broken("doubled", f"{name}[{key}] of {task} begins in attempt {attempt}, recorded in {recorded[0][0]}")
        else:
            self.counts["steps begun by who was overtaken"] += 1

    def _check_cancel(self, task: str, name: str) -> None:
        """Who was cancelled takes no new steps, once its supervisor has looked (I18)."""
        now, process = self.machine.loop.now, process_here.get()
        late = now - self.cancels.get(task, now) > CANCELLED_WITHIN
        if late and isinstance(process, Process) and now - process.went_on_at > CANCELLED_WITHIN:
            self.broken("wrong", f"{name} of {task} begins long after its cancel was acknowledged")

    def cancelled(self, task: str, how: str) -> None:
        """A cancel has returned."""
        self.witness("cancel", task, how)
        if how != "too_late":
            self.cancels.setdefault(task, self.machine.loop.now)

    def again(self, task: str) -> None:
        """A retry by hand is asked for."""
        self.witness("again", task)
        self.cancels.pop(task, None)

    def look_for_orphans(self) -> None:
        """Nobody's tasks stay with the dead for long (I13)."""
        now = self.machine.loop.now
        rows = self.ask("SELECT id, lease_owner FROM tasks WHERE status = 'running'")
        dead = {(task, owner) for task, owner in rows if int(owner[-6:], 16) not in self.machine.living}
        self._orphans = {orphan: self._orphans.get(orphan, now) for orphan in sorted(dead)}
        for (task, owner), since in self._orphans.items():
            if now - since > RECLAIMED_WITHIN:
                self.broken("stuck", f"{task} is still held by {owner}, which has been dead for {now - since:.0f} s")

    def stored(self, task: str, history: str, label: tuple[str, str], attempt: int, value: str) -> None:
        """A step has returned, so it is recorded; by this attempt only if no other one has begun before."""
        self.witness("ack", task, *label, attempt, value)
        name, key = label
        rows = self.ask(
            "SELECT rowid, attempt, value FROM steps WHERE history_id = ? AND scope = ? AND name = ?",
            history,
            key,
            name,
        )
        what = f"{name}[{key}] of {task}, which returned {value} in attempt {attempt},"
        if not rows:
            self.broken("lost", f"{what} is not recorded")
            return
        row, by, recorded = rows[0]
        if recorded != f'"{value}"' or by > attempt:
            self.broken("wrong", f"{what} is recorded as {recorded} by attempt {by}")
        later, newest = self.latest.get(task, (0, 0))
        if later > by == attempt and row > newest:
            self.broken("zombie", f"{what} was recorded after attempt {later} had begun")

    def acknowledged(self, key: str, task: str) -> None:
        """An enqueue has returned."""
        if self.keys.setdefault(key, task) != task:
            self.broken("doubled", f"{key} is {self.keys[key]}, and was acknowledged as {task} later")
        if not self.ask("SELECT 1 FROM tasks WHERE id = ? AND idempotency_key = ?", task, key):
            self.broken("lost", f"{key} was acknowledged as {task}, and is not there")

    def said(self, message: str, text: str) -> None:
        """A message was acknowledged."""
        self.witness("said", message, text)
        self.messages[message] = text

    def hears(self, fields: Mapping[str, Any]) -> None:
        """An event of a runner."""
        event = fields["event"]
        self.witness(event, *(str(value) for name, value in fields.items() if name not in {"event", "store"}))
        self.counts[event] += 1
        if event == "task.started":
            newest = self.ask("SELECT coalesce(max(rowid), 0) FROM steps")[0][0]
            before, _newest = self.latest.get(fields["task_id"], (0, 0))
            if fields["attempt"] > before:
                self.latest[fields["task_id"]] = fields["attempt"], newest
        elif event == "supervisor.buried":
            self._check_burial(fields["supervisor_id"], fields["how"])

    def _check_burial(self, supervisor: str, how: str) -> None:
        """Only the dead are buried, and who was silent for as long as its lease (I14)."""
        other = self.machine.living.get(int(supervisor[-6:], 16))
        if other is None or other.ending:
            self.counts["burials of the dead"] += 1
            return
        now = self.machine.loop.now
        silent = other.state == "stopped" and now - other.stopped_at > LEASE / 3
        if silent or (other.went_on_at - other.stopped_at > LEASE / 3 and now - other.went_on_at < 2 * LEASE):
            self.counts["burials of who was stopped"] += 1
        else:
            self.broken("wrong", f"{supervisor} was alive, and was buried: {how}")


class _Complaints(logging.Handler):
    """Whatever a living process logs that no user should see."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = process_here.get()
        if process is None or (process.state == "runs" and self._world.machine.loop.doomed is None):
            error = record.exc_info[1] if record.exc_info else None
            self._world.broken("wrong", f"an error was logged: {record.getMessage()} {error!r}")
