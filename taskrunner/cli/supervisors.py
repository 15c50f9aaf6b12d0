"""Who works on a store: supervisors by the rows they left, and whether they are alive."""

from __future__ import annotations

from dataclasses import dataclass

from taskrunner.cli.reading import time_of
from taskrunner.core.clock import Clock
from taskrunner.core.durations import stamp
from taskrunner.core.model import JSON, SupervisorRow
from taskrunner.runtime.liveness import Identity, judge
from taskrunner.storage.bells import folder_of
from taskrunner.storage.owners import NANOSECONDS
from taskrunner.storage.store import Store


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """A supervisor whose row has not ended, and what became of it."""

    row: SupervisorRow
    dead: str | None
    """Why it is certainly dead; None: it lives, as far as can be told from here."""

    @property
    def place(self) -> str:
        """Where it is, or was."""
        return f"process {self.row.pid} on {self.row.host}"

    @property
    def state(self) -> str:
        """Whether it is alive, as people want to see it."""
        return "alive" if self.dead is None else f"dead: {self.dead}"

    def line(self, running: int) -> str:
        """All of it in a line, with the number of tasks that it runs."""
        tasks = f"{running:,} {'task' if running == 1 else 'tasks'}"
        return f"{self.row.id}, {self.place}, {tasks}, last seen {time_of(self.row.beat_at)}, {self.state}"

    def document(self, running: int) -> JSON:
        """All of it as a JSON object, with the number of tasks that it runs."""
        return {
            "id": self.row.id,
            "pid": self.row.pid,
            "host": self.row.host,
            "started_at": stamp(self.row.started_at),
            "beat_at": stamp(self.row.beat_at),
            "alive": self.dead is None,
            "dead": self.dead,
            "running": running,
        }


async def find_supervisors(store: Store) -> list[Supervisor]:
    """The supervisors of a store whose rows have not ended."""
    clock = Clock()
    here, folder = Identity.of_this_process(clock), folder_of(store.path)

    def why_dead(row: SupervisorRow) -> str | None:
        if (reason := judge(row, here, folder)) is not None:
            return reason
        ran_out = row.boot_id == here.boot_id and row.expires_at <= clock.monotonic() * NANOSECONDS
        return "its lease has run out" if ran_out else None

    return [Supervisor(row=row, dead=why_dead(row)) for row in await store.owners.living()]
