"""The kind: simulated hours, and a kill at every turn of a small scenario, each part in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import msgspec

from taskrunner.chaos.report import Order, Problem, Tally
from taskrunner.chaos.simulation.verdict import Result

HOURS: Final = 200
"""Of a whole run."""

PART: Final = 4.0
"""Hours of one process: it keeps all that its dead have left."""

POINTS: Final = 100
"""Turns at which one process has the small scenario killed."""

WITHIN: Final = 900.0
"""Seconds in which a part has to come to its end."""


def run(order: Order) -> Tally:
    """Simulate this order's part of the hours, and of the turns."""
    tally = Tally(order.kind)
    left, number = float(order.share(HOURS)), 0
    while left > 0 and not (order.plant and tally.problems):
        number += 1
        length = min(PART, left)
        left -= length
        add(tally, part(order, f"{order.seed}.{number}", f"{length:g}"))
    if order.plant and tally.problems:  # it is found
        return tally
    turns = part(order, str(order.seed), "turns", "0", "0", "1").turns
    step = max(1, round(1 / order.part))
    for first in range(order.seed % step, turns, POINTS * step):
        last = min(turns, first + POINTS * step)
        add(tally, part(order, str(order.seed), "turns", str(first), str(last), str(step)))
    return tally


def part(order: Order, *words: str) -> Result:
    """Have a process of its own simulate something (see `__main__`)."""
    command = [sys.executable, "-m", "taskrunner.chaos.simulation", *words, *filter(None, [order.plant])]
    again = " ".join(["python", *command[1:]])
    try:
        done = subprocess.run(command, capture_output=True, timeout=WITHIN, check=False)
    except subprocess.TimeoutExpired:
        text = f"`{again}` has not come to its end within {WITHIN:.0f} s"
        return Result(seed=words[0], problems=[Problem("stuck", text)])
    if done.returncode:
        text = f"`{again}` ended with exit code {done.returncode}: {done.stderr.decode(errors='replace')[-2_000:]}"
        return Result(seed=words[0], problems=[Problem("wrong", text)])
    result = msgspec.json.decode(done.stdout, type=Result)
    result.problems = [Problem(problem.breach, f"{problem.text} (`{again}`)") for problem in result.problems]
    return result


def add(tally: Tally, result: Result) -> None:
    """Add what a part has found."""
    tally.faults += sum(result.faults.values())
    tally.problems += result.problems
    for what, number in {**result.reached, **result.faults}.items():
        tally.count(what, number)
    minutes = tally.reached.get("simulated minutes", 0) + round(60 * result.hours)
    tally.reached["simulated minutes"] = minutes
    tally.reached["simulated hours"] = minutes // 60
