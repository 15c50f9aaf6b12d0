"""`python -m benchmarks [--quick] [--only NAME] [--json FILE]`: everything in one run, side by side."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from benchmarks import claim, drain, enqueue, latency, memory, processes, recovery, steps
from benchmarks.measure import Race, Result, machine, run_races
from benchmarks.report import as_json, facts_line, table
from benchmarks.sizes import FULL, QUICK, Sizes

Races: TypeAlias = Callable[[Sizes], list[Race]]
Single: TypeAlias = Callable[[Sizes, Path], Awaitable[list[Result]]]

RACES: dict[str, Races] = {"enqueue": enqueue.races, "drain": drain.races, "steps": steps.races}
SINGLES: dict[str, Single] = {
    "claim": claim.measure,
    "start": latency.measure_starts,
    "idle": latency.measure_idle,
    "processes": processes.measure,
    "recovery": recovery.measure,
    "memory": memory.measure,
}


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: to see that everything runs")
    parser.add_argument("--only", choices=[*RACES, *SINGLES], action="append", help="only these; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    arguments = parser.parse_args()
    only = arguments.only or [*RACES, *SINGLES]
    with tempfile.TemporaryDirectory(prefix="taskrunner-benchmarks-") as folder:
        facts = machine(Path(folder))
        print(facts_line(facts), flush=True)
        results = asyncio.run(measure_all(only, QUICK if arguments.quick else FULL, Path(folder)))
    print(f"\n{table(results)}")
    if arguments.json is not None:
        arguments.json.write_text(as_json(facts, results), encoding="utf-8")


async def measure_all(only: list[str], sizes: Sizes, folder: Path) -> list[Result]:
    """The races of all kinds round by round, then the rest one after another."""
    races = [race for name, make in RACES.items() if name in only for race in make(sizes)]
    results = await run_races(races, sizes.rounds, folder) if races else []
    for name, measure in SINGLES.items():
        if name in only:
            place = folder / name
            place.mkdir()
            results += await measure(sizes, place)
    return results


if __name__ == "__main__":
    main()
