"""The evidence: what the witness has seen, and what stands in the store, side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from taskrunner.chaos.kills.look import look
from taskrunner.chaos.kills.witness import Line
from taskrunner.chaos.kills.world import World

TABLES: Final = {
    "tasks": "id, type, status, attempt, retry_count, losses, idempotency_key, output, error_type, error_message, "
    "progress",
    "steps": "task_id, scope, name, occurrence, value, error, attempt",
    "attempts": "task_id, attempt, owner, outcome, error_message, started_at, ended_at",
    "supervisors": "id, pid, ended_how",
    "messages": "session_id, seq, content, history_id",
}


@dataclass
class Evidence:
    """The witness's lines and the store's rows, by table."""

    lines: list[Line]
    rows: dict[str, list[dict[str, Any]]]

    def of(self, *kinds: str) -> list[Line]:
        """The lines of these kinds, in order."""
        return [line for line in self.lines if line.kind in kinds]

    @cached_property
    def tasks(self) -> dict[str, dict[str, Any]]:
        """The tasks by id."""
        return {row["id"]: row for row in self.rows["tasks"]}

    @cached_property
    def families(self) -> defaultdict[int, set[int]]:
        """The children of each supervisor, by pid: they die with it."""
        children = self.of("child")
        pids = {line.pid: {int(each.text) for each in children if each.pid == line.pid} for line in children}
        return defaultdict(set, pids)

    @cached_property
    def steps(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The recorded steps by task and label."""
        return {(row["task_id"], _label(row)): row for row in self.rows["steps"]}


def gather(world: World) -> Evidence:
    """Read the witness and the store."""
    world.tail.read()
    answers = look(world.db, *(f"SELECT {columns} FROM {table}" for table, columns in TABLES.items()))  # noqa: S608
    rows = {
        table: [dict(zip(columns.split(", "), row, strict=True)) for row in answer]
        for (table, columns), answer in zip(TABLES.items(), answers, strict=True)
    }
    return Evidence(list(world.tail.lines), rows)


def with_overtaken(evidence: Evidence) -> Iterator[tuple[Line, bool]]:
    """The lines, each with whether it is of a process that was once stopped, and of an attempt overtaken meanwhile."""
    newest: dict[str, int] = {}
    stopped: set[int] = set()
    for line in evidence.lines:
        if line.kind == "pause":
            stopped.add(line.pid)
        elif line.kind == "enter":
            newest[line.task] = max(newest.get(line.task, 0), line.attempt)
        yield line, line.pid in stopped and line.attempt < newest.get(line.task, 0)


def unaware_of_its_loss(evidence: Evidence) -> set[Line]:
    """The lines that tell of a process which goes on, and only then hears that it has lost its lease."""
    found: set[Line] = set()
    hears: set[int] = set()
    for line in reversed(evidence.lines):
        if line.kind == "lost":
            hears.add(line.pid)
        elif line.kind == "pause":
            hears.discard(line.pid)
        elif line.kind == "resume" and line.pid in hears:
            found.add(line)
    return found


def _label(row: dict[str, Any]) -> str:
    scope = f"[{row['scope']}]" if row["scope"] else ""
    return f"{row['name']}{scope}" + (f"#{row['occurrence']}" if row["occurrence"] else "")
