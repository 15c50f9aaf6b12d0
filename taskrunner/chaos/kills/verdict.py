"""The verdict on a store that was under fire: what the witness has seen against what the store says.

The store is read by another process with another SQLite library, when everybody is dead. Each check names the promise
that it is about: an invariant of ours, or of every scenario.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from taskrunner.chaos.kills.evidence import Evidence, gather, unaware_of_its_loss, with_overtaken
from taskrunner.chaos.kills.figures import figures
from taskrunner.chaos.kills.jobs import STEPS
from taskrunner.chaos.kills.look import look, seconds_to_write_lock
from taskrunner.chaos.kills.world import World
from taskrunner.storage.engine import load_queries
from taskrunner.storage.health import invariants

SHOWN: Final = 5
"""Of each kind of problem, so many are spelled out."""

MAX_WAL: Final = 64 * 1024 * 1024


@dataclass
class Verdict:
    """What was found."""

    problems: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> set[str]:
        """Which promises were broken."""
        return {problem.partition(":")[0] for problem in self.problems}

    def __str__(self) -> str:
        figures = "\n".join(f"  {name}: {value}" for name, value in self.figures.items())
        kinds = Counter(problem.partition(":")[0] for problem in self.problems)
        shown: Counter[str] = Counter()
        lines = []
        for problem in self.problems:
            kind = problem.partition(":")[0]
            shown[kind] += 1
            if shown[kind] <= SHOWN:
                lines.append(f"  {problem}")
        return f"{figures}\nproblems: {dict(kinds) or 'none'}\n" + "\n".join(lines)


def judge(world: World, *, fate: list[str]) -> Verdict:
    """Judge a store when everybody is dead. `fate`: what went wrong on the way."""
    left = sorted(path.name for path in world.folder.iterdir() if path.name.startswith("agent.db"))
    evidence = gather(world)
    verdict = Verdict([f"stuck: {problem}" for problem in fate])
    for check in CHECKS:
        verdict.problems += [f"{check.__name__.replace('_', ' ')}: {problem}" for problem in check(evidence)]
    verdict.problems += [f"complaint: {line[:500]}" for line in world.complaints() if not excused(line, evidence)]
    if left != ["agent.db"]:
        verdict.problems.append(f"not tidy: a stopped store is one file, and there are {left}")
    verdict.problems += [f"damaged: {problem}" for problem in damage(world.db)]
    verdict.problems += [f"invariant: {problem}" for problem in broken(world.db)]
    verdict.figures = figures(evidence)
    return verdict


def damage(db: Path) -> Iterator[str]:
    """V5, V9, I30: the file is whole, and its write lock is free."""
    integrity, keys = look(db, "PRAGMA integrity_check", "PRAGMA foreign_key_check")
    if integrity != [["ok"]]:
        yield f"integrity_check says {integrity}"
    if keys:
        yield f"foreign_key_check says {keys}"
    if (waited := seconds_to_write_lock(db)) > 0.25:
        yield f"another program waited {waited:.3f} s for the write lock"
    wal = Path(f"{db}-wal")
    if wal.exists() and wal.stat().st_size > MAX_WAL:
        yield f"the WAL has {wal.stat().st_size:,} bytes"


def broken(db: Path) -> Iterator[str]:
    """The invariants that `taskrunner doctor --invariants` looks at, by another SQLite library."""
    queries, names = load_queries("sqlite"), invariants()
    for title, rows in zip(names.values(), look(db, *(queries[name].sql for name in names)), strict=True):
        yield from (f"{title}: {task}: {says}" for task, says in rows)


def excused(complaint: str, evidence: Evidence) -> bool:
    """Whether there was a reason: one that is stopped amid a commit keeps the store locked; children are killed."""
    if '"event": "children.degraded"' in complaint and "SIGKILL" in complaint:
        return bool(evidence.families)
    return '"event": "store.trouble"' in complaint and bool(evidence.of("pause"))


# ── the checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def lost_enqueue(evidence: Evidence) -> Iterator[str]:
    """G1, I1: what was acknowledged is there, under its id and its key."""
    for line in evidence.of("enqueued"):
        row = evidence.tasks.get(line.task)
        if row is None or row["idempotency_key"] != line.step:
            yield f"{line.step} was acknowledged as {line.task}, and the store has {row}"


def stray_job(evidence: Evidence) -> Iterator[str]:
    """I2, I3: what was asked for is there at most once, and nothing else is."""
    asked = {line.step for line in evidence.of("asked")}
    counts = Counter(row["idempotency_key"] for row in evidence.rows["tasks"])
    yield from (f"{key} is there {count} times" for key, count in counts.items() if count > 1)
    yield from (f"nobody asked for {key}" for key in counts if key not in asked)


def lost_step(evidence: Evidence) -> Iterator[str]:
    """G2, I7: a step that returned is recorded, by nobody else, and its value never changes."""
    for line in evidence.of("ack"):
        step = evidence.steps.get((line.task, line.step))
        if step is None:
            yield f"{line.step} of {line.task} returned in attempt {line.attempt}, and is not recorded"
        elif step["value"] != json.dumps(line.text):
            yield f"{line.step} of {line.task} returned {line.text} in attempt {line.attempt}, recorded is {step}"
        elif step["attempt"] > line.attempt:
            yield f"{line.step} of {line.task} returned in attempt {line.attempt}, a later one has recorded it: {step}"


def step_run_again(evidence: Evidence) -> Iterator[str]:
    """G2, I6, V8: a recorded step's function never starts again, whoever knew of the record.

    Only a process that was stopped may go on with what it knew before, until its next write: by an attempt that was
    overtaken meanwhile.
    """
    acknowledged: set[tuple[str, str]] = set()
    for line, overtaken in with_overtaken(evidence):
        key = (line.task, line.step)
        if line.kind == "ack":
            acknowledged.add(key)
        elif line.kind == "effect" and not overtaken:
            step = evidence.steps.get(key)
            if key in acknowledged:
                yield f"{line.step} of {line.task} was run by attempt {line.attempt} after it had returned"
            elif step is not None and step["attempt"] < line.attempt:
                yield f"{line.step} of {line.task} was run by attempt {line.attempt}, recorded by {step['attempt']}"


def not_completed(evidence: Evidence) -> Iterator[str]:
    """I4, V1: at the end every job is completed; none is stuck, failed, retried or quarantined."""
    for row in evidence.rows["tasks"]:
        if row["status"] != "completed" or row["retry_count"] or row["progress"] != 1:
            yield f"{row}"


def completed_twice(evidence: Evidence) -> Iterator[str]:
    """I4: a task is completed once, by the attempt that is its last."""
    outcomes = Counter(row["task_id"] for row in evidence.rows["attempts"] if row["outcome"] == "completed")
    told = Counter(line.task for line in evidence.of("completed"))
    yield from (f"{task} has {count} completed attempts" for task, count in outcomes.items() if count != 1)
    yield from (f"the completion of {task} was told {count} times" for task, count in told.items() if count != 1)
    for line in evidence.of("completed"):
        row = evidence.tasks.get(line.task)
        if row is None or row["status"] != "completed" or row["attempt"] != line.attempt:
            yield f"attempt {line.attempt} of {line.task} was told to be completed, and the store has {row}"


def wrong_result(evidence: Evidence) -> Iterator[str]:
    """I8: a completed job has all its steps, and its result is made of what they recorded."""
    for task, row in evidence.tasks.items():
        steps = [evidence.steps.get((task, label)) for label in STEPS]
        values = [step and json.loads(step["value"]) for step in steps]
        if row["status"] == "completed" and json.loads(row["output"]) != values:
            yield f"{task} returned {row['output']}, its steps recorded {values}"


def wrong_message(evidence: Evidence) -> Iterator[str]:
    """G5, I20: however often a job is run again, its message is written once."""
    written = Counter(row["history_id"] for row in evidence.rows["messages"])
    for task, row in evidence.tasks.items():
        if row["status"] == "completed" and written[task] != 1:
            yield f"{task} has written {written[task]} messages"


def wrong_attempts(evidence: Evidence) -> Iterator[str]:
    """I11, V3: attempts count from 1, one row for each that ended, and every body that was entered is one of them."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for row in evidence.rows["attempts"]:
        numbers[row["task_id"]].append(row["attempt"])
    for task, row in evidence.tasks.items():
        ended = row["attempt"] - (row["status"] == "running")
        if sorted(numbers[task]) != list(range(1, ended + 1)):
            yield f"{task} is at attempt {row['attempt']}, its ended ones are {sorted(numbers[task])}"
    entered = Counter((line.task, line.attempt) for line in evidence.of("enter"))
    yield from (f"attempt {key} was entered {count} times" for key, count in entered.items() if count > 1)
    known = {(row["task_id"], row["attempt"]) for row in evidence.rows["attempts"]}
    yield from (f"attempt {key} was entered and is not recorded" for key in entered if key not in known)
    for row in evidence.rows["attempts"]:
        if row["outcome"] == "completed" and (row["task_id"], row["attempt"]) not in entered:
            yield f"nobody has entered {row}"
        if row["outcome"] not in {"completed", "lost", "released"} or row["ended_at"] < row["started_at"]:
            yield f"nothing could end an attempt like this: {row}"


def robbed(evidence: Evidence) -> Iterator[str]:
    """I14: a task is taken from the dead only, or from one that was stopped for longer than its lease."""
    fallen = {line.pid for line in evidence.of("kill", "pause")}
    pids = {row["id"]: row["pid"] for row in evidence.rows["supervisors"]}
    for row in evidence.rows["attempts"]:
        child = re.search(r"child process (\d+) of", row["error_message"] or "")
        pid = int(child[1]) if child else pids.get(row["owner"])
        if row["outcome"] == "lost" and pid not in fallen:
            yield f"{row} was taken from process {pid}"


def overlap(evidence: Evidence) -> Iterator[str]:
    """G3, V4: a body is not entered beside another one of its task, unless that one's process was killed or stopped.

    A process that was stopped, and goes on, may enter what it had claimed, until it hears that it was taken for dead.
    """
    inside: defaultdict[str, dict[int, int]] = defaultdict(dict)
    struck: set[int] = set()
    unaware = unaware_of_its_loss(evidence)
    for line, overtaken in with_overtaken(evidence):
        if line.kind in {"kill", "pause"}:
            fallen = evidence.families[line.pid] | {line.pid} if line.kind == "kill" else {line.pid}
            struck |= fallen  # they may still write a line or two: the witness writes before it strikes
            for bodies in inside.values():
                for pid in fallen:
                    bodies.pop(pid, None)
        elif line.kind == "lost" or (line.kind == "resume" and line not in unaware):
            struck.discard(line.pid)
        elif line.kind == "leave":
            inside[line.task].pop(line.pid, None)
        elif line.kind == "enter" and line.pid not in struck and not overtaken:
            others = inside[line.task]
            if others:
                yield f"attempt {line.attempt} of {line.task} was entered beside {others} (process: attempt)"
            others[line.pid] = line.attempt


CHECKS: Final[tuple[Callable[[Evidence], Iterator[str]], ...]] = (
    lost_enqueue,
    stray_job,
    lost_step,
    step_run_again,
    not_completed,
    completed_twice,
    wrong_result,
    wrong_message,
    wrong_attempts,
    robbed,
    overlap,
)
