"""One play: a store and its world, the calls that are made on both, and what is compared after each."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from taskrunner.chaos.model import views
from taskrunner.chaos.model.calls import Claim, Op
from taskrunner.chaos.model.claiming import Brought
from taskrunner.chaos.model.meddling import Lose, Remove, RemovePart, Retry
from taskrunner.chaos.model.rows import ModelClock, Record, Row, World
from taskrunner.chaos.model.stage import MAKERS, Answer
from taskrunner.core.errors import LeaseLost
from taskrunner.storage.changes import WORK
from taskrunner.storage.health import Health

COLUMNS: Final = tuple(field.name for field in fields(Row))
RECORD: Final = tuple(field.name for field in fields(Record))
_values = attrgetter(*COLUMNS)
_recorded = attrgetter(*RECORD)

LOOKS: Final[dict[str, str]] = {
    "tasks": f"SELECT {', '.join(COLUMNS)} FROM tasks ORDER BY seq",  # noqa: S608 - names of fields
    "attempts": "SELECT task_id, attempt, series, owner, started_at, ended_at, outcome, error_type, error_message, "
    "traceback FROM attempts ORDER BY task_id, attempt",
    "steps": f"SELECT task_id, {', '.join(RECORD)} FROM steps ORDER BY task_id, scope, name, occurrence",  # noqa: S608
    "logs": "SELECT task_id, attempt, event FROM logs ORDER BY task_id, seq",
    "retries": "SELECT task_id, series, from_status, error_message, retried_at FROM retries ORDER BY task_id, series",
    "supervisors": "SELECT id, expires_at, ended_at, ended_how FROM supervisors ORDER BY id",
    "queues": "SELECT name, paused_at, concurrency, updated_at FROM queues ORDER BY name",
    "messages": "SELECT id, seq, session_id, content, parent_msg_id FROM messages ORDER BY seq",
    "sessions": "SELECT id, token_usage FROM sessions ORDER BY id",
    "removals": "SELECT task_id FROM removals ORDER BY task_id",
}


def expected(world: World) -> dict[str, list[tuple[object, ...]]]:
    """What each look has to show."""
    pasts = sorted(world.pasts.items())
    said = [message for chat in world.chats.values() for message in chat.messages]
    return {
        "tasks": [_values(row) for row in world.tasks.values()],
        "attempts": [(task_id, *attempt) for task_id, past in pasts for attempt in past.attempts],
        "steps": [(task_id, *_recorded(past.steps[step])) for task_id, past in pasts for step in sorted(past.steps)],
        "logs": [(task_id, *line) for task_id, past in pasts for line in past.log],
        "retries": [(task_id, *retry) for task_id, past in pasts for retry in past.retries],
        "supervisors": [
            (name, owner.expires_at, owner.ended_at, owner.ended_how) for name, owner in sorted(world.owners.items())
        ],
        "queues": [
            (name, line.paused_at, line.concurrency, line.updated_at) for name, line in sorted(world.queues.items())
        ],
        "messages": [
            (message.id, message.seq, message.session_id, message.content, message.parent_msg_id)
            for message in sorted(said, key=attrgetter("seq"))
        ],
        "sessions": [
            (name, sum(message.token_count for message in chat.messages)) for name, chat in sorted(world.chats.items())
        ],
        "removals": [(task_id,) for task_id in sorted(world.removals)],
    }


class Play:
    """A store of its own in a folder of its own, and the world that it has to be like."""

    def __init__(self, folder: Path, engine: str = "sqlite") -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self.clock = ModelClock()
        self.stage = MAKERS[engine](self._folder, self.clock)
        self.clock.issued.clear()
        self.world = World(self.clock, default_retries=3, default_losses=5)
        self.seen: Counter[str] = Counter()

    def do(self, *ops: Op) -> None:
        """Make these calls at the same time, in this order, and compare."""
        calls = [op.bind(self.world) for op in ops]
        runnable, knowing = self.world.runnable(), self._knows_limits()
        answers = self.stage.play([call.ask for call in calls])
        for op, call, answer in zip(ops, calls, answers, strict=True):
            wanted = _answer(call.expect, self.world)
            assert _alike(answer, wanted), f"{op} answers {_told(answer)}, and not {_told(wanted)}"
            self._count(op, wanted)
        self.seen["groups"] += len(ops) > 1
        assert not self.clock.issued, f"nobody has used the ids {list(self.clock.issued)}"
        self.compare()
        claims = any(isinstance(op, Claim) for op in ops)  # who claims is told of the rest by the answer
        if knowing and not claims and (more := self.world.runnable() - runnable):
            assert WORK in self.stage.topics, f"{sorted(more)} can be started now, and nobody was told"

    def _count(self, op: Op, wanted: Answer) -> None:
        """Note what has happened."""
        value, error = wanted
        self.seen["steps"] += 1
        if error is not None:
            self.seen["refused"] += 1
            self.seen["stale"] += isinstance(error, LeaseLost)
        elif isinstance(op, Claim | Lose):
            lost = value.recovered if isinstance(value, Brought) else value
            assert isinstance(lost, set)
            self.seen["losses"] += len(lost)
            self.seen["quarantines"] += sum(status == "failed" for _id, _type, _queue, status, _losses in lost)
            if isinstance(value, Brought) and isinstance(op, Claim):
                self.seen["claimed"] += len(value.tasks)
                self.seen["suspects"] += len(value.tasks) * op.suspect
        elif isinstance(op, Retry):
            self.seen["retries"] += 1
        elif isinstance(op, Remove | RemovePart):
            self.seen["removed"] += value if isinstance(value, int) else 0  # None: it begins

    def _knows_limits(self) -> bool:
        """Whether who ends a task here knows that this makes room for another: by the last claim."""
        return self.world.knows_limits or all(line.concurrency is None for line in self.world.queues.values())

    def reopen(self) -> None:
        """Close the store, open it again, and compare."""
        self.stage.reopen()
        self.clock.issued.clear()
        self.world.knows_limits = False
        self.compare()

    def compare(self) -> None:
        """Look at all rows."""
        for table, wanted in expected(self.world).items():
            found = self.stage.rows(LOOKS[table])
            if found != wanted:
                raise AssertionError(difference(table, found, wanted))

    def invariants(self) -> None:
        """Ask what holds in every store."""
        [(breaches, error)] = self.stage.play([lambda store: Health(store.engine).invariants()])
        if error is not None:
            raise error
        assert not breaches, f"{breaches}"

    def look(self) -> None:
        """Ask what the store tells people of it."""
        owners = list(self.world.owners)
        [(told, error)] = self.stage.play([lambda store: views.asked(store, owners)])
        if error is not None:
            raise error
        wanted = views.expected(self.world)
        assert told == wanted, f"the store says {told}, and not {wanted}"

    def close(self) -> None:
        """Close the store, and remove it."""
        self.stage.close()
        shutil.rmtree(self._folder)


def _answer(expect: Callable[[World], object], world: World) -> Answer:
    try:
        return expect(world), None
    except (Exception, LeaseLost) as error:  # noqa: BLE001 - what has to be raised is an answer
        return None, error


def _alike(answer: Answer, wanted: Answer) -> bool:
    return answer[0] == wanted[0] and type(answer[1]) is type(wanted[1])


def _told(answer: Answer) -> str:
    value, error = answer
    return repr(value) if error is None else f"{type(error).__name__}: {error}"


def difference(table: str, found: Sequence[tuple[Any, ...]], wanted: Sequence[tuple[Any, ...]]) -> str:
    """Which rows differ, and of tasks in what."""
    lines = [f"{table}: the store has not what it has to have"]
    if table == "tasks":
        there, should = {row[1]: row for row in found}, {row[1]: row for row in wanted}
        for task_id in sorted(there.keys() | should.keys()):
            if task_id not in there or task_id not in should:
                lines.append(f"  {task_id} is {'there' if task_id in there else 'not there'}")
                continue
            pairs = zip(COLUMNS, there[task_id], should[task_id], strict=True)
            lines += [
                f"  {task_id}: {name} is {one!r}, and not {other!r}" for name, one, other in pairs if one != other
            ]
    else:
        lines += [f"  there is {row}" for row in found if row not in wanted]
        lines += [f"  there is no {row}" for row in wanted if row not in found]
    return "\n".join(lines)
