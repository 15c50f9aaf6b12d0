"""What has happened under fire, and how often: what never happened was not tested."""

from __future__ import annotations

from collections import Counter
from typing import Any

from taskrunner.chaos.kills.evidence import Evidence, with_overtaken
from taskrunner.chaos.kills.jobs import STEPS


def figures(evidence: Evidence) -> dict[str, Any]:
    """What happened, and how often: what never happened was not tested."""
    kills = [line for line in evidence.of("kill") if line.text != "client"]
    left = {(line.task, line.attempt) for line in evidence.of("leave")}
    entered = [line for line in evidence.of("enter") if (line.task, line.attempt) not in left]
    hit = {line.pid for line in kills if {line.pid for line in entered} & {line.pid, *evidence.families[line.pid]}}
    acks = {(line.task, line.step, line.attempt) for line in evidence.of("ack")}
    steps = {key: row for key, row in evidence.steps.items() if key[1] in STEPS}
    enqueued = {line.step for line in evidence.of("enqueued")}
    outcomes = Counter(row["outcome"] for row in evidence.rows["attempts"])
    return {
        "kills": len(kills),
        "kills by moment": dict(Counter(line.text for line in kills)),
        "kills that hit a running body": len(hit),
        "clients killed": sum(line.text == "client" for line in evidence.of("kill")),
        "jobs": len(evidence.tasks),
        "jobs whose acknowledgement was lost": sum(
            row["idempotency_key"] not in enqueued for row in evidence.tasks.values()
        ),
        "steps recorded": len(steps),
        "steps run again before they were recorded": len(evidence.of("effect")) - len(steps),
        "steps whose process died between the record and the acknowledgement": sum(
            (task, label, row["attempt"]) not in acks for (task, label), row in steps.items()
        ),
        "steps replayed": sum(
            (step := steps.get((line.task, line.step))) is not None and step["attempt"] < line.attempt
            for line in evidence.of("ack")
        ),
        "attempts": dict(outcomes),
        "most attempts of a job": max((row["attempt"] for row in evidence.tasks.values()), default=0),
        "most losses in a row": most_losses(evidence),
        "zombies": sum(line.kind == "resume" and line.text == "taken over" for line in evidence.lines),
        "zombies' writes that were refused": len(evidence.of("refused")),
        "steps begun by overtaken zombies": sum(
            line.kind == "effect" and overtaken for line, overtaken in with_overtaken(evidence)
        ),
        "leases lost": len(evidence.of("lost")),
        "ms to run again after a kill": quantiles(recovery_times(evidence)),
    }


def most_losses(evidence: Evidence) -> int:
    """The longest row of attempts of one job that were lost without a recorded step."""
    recorded = {(row["task_id"], row["attempt"]) for row in evidence.rows["steps"]}
    longest = 0
    current: Counter[str] = Counter()
    for row in sorted(evidence.rows["attempts"], key=lambda row: (row["task_id"], row["attempt"])):
        task = row["task_id"]
        progressed = row["outcome"] != "lost" or (task, row["attempt"]) in recorded
        current[task] = int(row["outcome"] == "lost") if progressed else current[task] + 1
        longest = max(longest, current[task])
    return longest


def recovery_times(evidence: Evidence) -> list[float]:
    """Milliseconds from a kill, or the start of the supervisor that came after it, until a hit job runs again."""
    waiting: dict[str, int] = {}
    inside: dict[str, int] = {}
    times = []
    for line in evidence.lines:
        if line.kind == "enter":
            if (since := waiting.pop(line.task, None)) is not None:
                times.append((line.ns - since) / 1e6)
            inside[line.task] = line.pid
        elif line.kind == "leave":
            inside.pop(line.task, None)
        elif line.kind == "kill":
            waiting.update({task: line.ns for task, pid in inside.items() if pid == line.pid})
        elif line.kind == "spawn":
            waiting = dict.fromkeys(waiting, line.ns)
    return times


def quantiles(values: list[float]) -> dict[str, float]:
    """The middle, the 99th hundredth and the largest."""
    ordered = sorted(values)
    if not ordered:
        return {}
    places = {"p50": len(ordered) // 2, "p99": len(ordered) * 99 // 100, "max": len(ordered) - 1}
    return {name: round(ordered[place], 1) for name, place in places.items()}
