"""The rows as they have to be. Times are texts, as the store keeps them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from taskrunner.chaos.stores import StillClock
from taskrunner.core.durations import stamp
from taskrunner.core.model import Fence, Message, TaskType
from taskrunner.core.states import TERMINAL, Status

CLAIMABLE, UNTIL_RUN_AT, WAITS_FOR, SUSPECT = 0, 1, 3, 4
"""What may hold a pending task."""

MOST_OF_A_CLAIM: Final = 64


class ModelClock(StillClock):
    """A still clock whose ids are numbers: what was given out, and nobody has asked for yet, is in `issued`."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self.issued: deque[str] = deque()

    def new_id(self, _moment: datetime | None = None) -> str:
        """The next number."""
        self._count += 1
        self.issued.append(f"id{self._count:04d}")
        return self.issued[-1]

    def boot_id(self) -> str:
        """It is never started again."""
        return "this boot"

    @property
    def text(self) -> str:
        """The time as the store keeps it."""
        return stamp(self.moment)


@dataclass(slots=True, kw_only=True)
class Row:
    """One task: the columns of its table, in any order."""

    seq: int
    id: str
    type: str
    input: str
    queue: str
    priority: int
    run_at: str
    hold: int
    created_at: str
    updated_at: str
    max_retries: int
    max_losses: int
    history_id: str
    session_id: str | None = None
    parent_task_id: str | None = None
    timeout: float | None = None
    unique_key: str | None = None
    idempotency_key: str | None = None
    status: Status = "pending"
    waiting_for: str | None = None
    output: str | None = None
    outcome: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    progress: float = 0.0
    progress_message: str = ""
    retry_count: int = 0
    losses: int = 0
    attempt: int = 0
    series: int = 0
    lease_owner: str | None = None
    cancel_requested_at: str | None = None
    cancel_reason: str | None = None
    started_at: str | None = None
    completed_at: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it is completed, failed or cancelled."""
        return self.status in TERMINAL

    def place(self) -> tuple[int, int]:
        """Where it stands in the line of its queue."""
        return self.priority, self.seq


@dataclass(slots=True, kw_only=True)
class Record:
    """One recorded step."""

    scope: str
    name: str
    occurrence: int
    value: str | None
    error_type: str | None
    error: str | None
    attempt: int
    created_at: str


@dataclass(slots=True)
class Past:
    """What a task leaves behind: its ended attempts, its steps by key, its log, and its retries by hand."""

    attempts: list[tuple[object, ...]] = field(default_factory=list)
    steps: dict[tuple[str, str, int], Record] = field(default_factory=dict)
    log: list[tuple[int, str]] = field(default_factory=list)
    retries: list[tuple[object, ...]] = field(default_factory=list)
    last_owner: str = "nobody"


@dataclass(slots=True)
class Owner:
    """One supervisor."""

    expires_at: int
    ended_at: str | None = None
    ended_how: str | None = None


@dataclass(slots=True)
class Line:
    """What was said of a queue."""

    paused_at: str | None = None
    concurrency: int | None = None
    updated_at: str = ""


@dataclass(slots=True)
class Chat:
    """One session: its messages, in order, and those of tasks by their history and key."""

    messages: list[Message] = field(default_factory=list)


@dataclass
class World:
    """All that the store has to hold."""

    clock: ModelClock
    default_retries: int
    default_losses: int
    tasks: dict[str, Row] = field(default_factory=dict)
    pasts: dict[str, Past] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    queues: dict[str, Line] = field(default_factory=dict)
    types: dict[str, TaskType] = field(default_factory=dict)
    chats: dict[str, Chat] = field(default_factory=dict)
    written: dict[tuple[str, str], Message] = field(default_factory=dict)
    """Messages by the history and the key under which a task has written them."""
    removals: set[str] = field(default_factory=set)
    knows_limits: bool = False
    """Whether the last claim has seen a queue with a limit: from then on, whoever makes room says so."""

    @property
    def now(self) -> str:
        """The time as the store keeps it."""
        return self.clock.text

    def new_id(self) -> str:
        """The id that the store has been given, and has to use next."""
        return self.clock.issued.popleft()

    def pick(self, number: int | str) -> str:
        """One of the tasks, by its number or by its id, or an id that none has."""
        if isinstance(number, str):
            return number
        ids = list(self.tasks)
        return ids[-1 - number % len(ids)] if ids else "nobody's"

    def pick_of(self, number: int | str, rows: Iterable[Row]) -> str:
        """One of these tasks; the highest numbers mean any task."""
        ids = [row.id for row in rows]
        return ids[-1 - number] if isinstance(number, int) and number < min(3, len(ids)) else self.pick(number)

    def pick_ended(self, number: int | str) -> str:
        """One of the tasks that have ended."""
        return self.pick_of(number, (row for row in self.tasks.values() if row.has_ended))

    def fence(self, number: int | str, back: int = 0) -> Fence:
        """The right to write for the attempt of a running task, or for one that is `back` attempts older."""
        task_id = self.pick_of(number, (row for row in self.tasks.values() if row.status == "running"))
        if task_id not in self.tasks:
            return Fence(task_id=task_id, owner="nobody", attempt=1, history_id=task_id)
        row = self.tasks[task_id]
        owner = row.lease_owner or self.pasts[task_id].last_owner
        return Fence(task_id=task_id, owner=owner, attempt=row.attempt - back, history_id=row.history_id)

    def held(self, fence: Fence) -> Row | None:
        """The task, if it is this very attempt that runs it."""
        row = self.tasks.get(fence.task_id)
        if row is None or row.status != "running":
            return None
        return row if (row.lease_owner, row.attempt) == (fence.owner, fence.attempt) else None

    def running(self, *, owner: str | None = None, queue: str | None = None) -> int:
        """How many tasks run, of an owner or of a queue."""
        return sum(
            row.status == "running" and owner in {None, row.lease_owner} and queue in {None, row.queue}
            for row in self.tasks.values()
        )

    def room(self, queue: str) -> int:
        """How many more tasks of a queue may be started."""
        line = self.queues.get(queue, Line())
        if line.paused_at is not None:
            return 0
        if line.concurrency is None:
            return MOST_OF_A_CLAIM
        return max(0, line.concurrency - self.running(queue=queue))

    def pending(self, *holds: int) -> Iterator[Row]:
        """The pending tasks that are held by one of these."""
        return (row for row in self.tasks.values() if row.status == "pending" and row.hold in holds)

    def runnable(self) -> set[str]:
        """What somebody could start right now, if he knows the type."""
        return {row.id for row in self.pending(CLAIMABLE, WAITS_FOR, SUSPECT) if self.room(row.queue) > 0}

    def forget(self, ids: Iterable[str]) -> None:
        """Remove tasks with all that belongs to them."""
        for task_id in ids:
            del self.tasks[task_id]
            del self.pasts[task_id]
            self.removals.discard(task_id)
