"""A whole run: each kind of fault in a process of its own, one more at a time than there are processors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from taskrunner.chaos.kinds import WHOLE, Kind
from taskrunner.chaos.report import Line, Order, Report, Tally, share

AT_LEAST: Final = 120.0
"""Seconds that a kind has in any case: a short run spends most of its time on starts."""

SHOWN: Final = 2_000
"""Characters of what a process has said that did not come to its end."""


def run(
    kinds: Sequence[Kind], seed: int, minutes: float, tell: Callable[[str], None], *, at_least: float = AT_LEAST
) -> Report:
    """Run these kinds, and judge whether everything was reached; `tell` hears of each kind that has ended.

    A kind that has not come to its end after twice the minutes, and `at_least` seconds, counts as stuck. One that lacks
    something is left out, and told of.
    """
    began = time.monotonic()
    left_out = [sentence for kind in kinds if (sentence := kind.lacks())]
    for sentence in left_out:
        tell(f"left out: {sentence}")
    kinds = [kind for kind in kinds if not kind.lacks()]
    within = max(at_least, 2 * 60 * minutes)
    with tempfile.TemporaryDirectory(prefix="taskrunner-chaos-") as folder:
        orders = [
            Order(kind.name, kind.module, seed, minutes / WHOLE, str(Path(folder) / kind.name))
            for kind in sorted(kinds, key=lambda kind: -kind.seconds)
        ]
        with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:  # some of them mostly wait
            running = [pool.submit(one, order, within) for order in orders]
            tallies = []
            for done in as_completed(running):
                tallies.append(done.result())
                tell(_told(tallies[-1]))
    places = {kind.name: place for place, kind in enumerate(kinds)}
    tallies.sort(key=lambda tally: places[tally.kind])
    lines = [
        Line(kind.name, what, tally.reached.get(what, 0), share(floor, minutes / WHOLE), tally.seconds)
        for kind, tally in zip(kinds, tallies, strict=True)
        for what, floor in kind.floors.items()
    ]
    return Report(seed, minutes, lines, tallies, round(time.monotonic() - began, 1), left_out)


def one(order: Order, within: float) -> Tally:
    """Have one kind run in a process of its own, and end that process, with all that it has started."""
    Path(order.folder).mkdir()
    began = time.monotonic()
    command = [sys.executable, "-m", "taskrunner.chaos.one"]
    pipe = subprocess.PIPE
    with (
        (Path(order.folder).parent / f"{order.kind}.log").open("w+b") as log,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True) as process,
    ):
        answer, late = b"", ""
        try:
            answer, _ = process.communicate(msgspec.json.encode(order), timeout=within)
        except subprocess.TimeoutExpired:
            late = f"it has not come to its end within {within:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.returncode == 0 and not late:
            return msgspec.json.decode(answer, type=Tally)
        log.seek(0)
        said = log.read().decode(errors="replace")[-SHOWN:]
    tally = Tally(order.kind, seconds=round(time.monotonic() - began, 1), has_died=True)
    tally.broken("stuck" if late else "wrong", f"{late or f'it ended with exit code {process.returncode}'}: {said}")
    return tally


def _told(tally: Tally) -> str:
    reached = ", ".join(f"{number:,} {what}" for what, number in tally.reached.items())
    return f"{tally.kind}: {reached or 'nothing'}; {len(tally.problems) or 'no'} problems, {tally.seconds:.0f} s"
