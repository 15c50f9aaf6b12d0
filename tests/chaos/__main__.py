"""`python -m tests.chaos [--kills N] [--seed S]`: the kill harness for longer than the tests run it.

It prints the figures and the verdict; the seed that it prints repeats the plan. With `--plant memo` (or another of
`tests/chaos/plants.py`) it shows that it finds a bug. `--keep FOLDER` keeps the stores and the witnesses' logs.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos import harness
from tests.chaos.plants import PLANTS


def main() -> int:
    """Run it, and end with 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=300, help="SIGKILLs in all (default 300)")
    parser.add_argument("--pauses", type=int, default=0, help="SIGSTOPs past the lease (default none)")
    parser.add_argument("--children", action="store_true", help="supervisors with child processes")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--plant", default="", choices=["", *PLANTS], help="a bug to be planted")
    parser.add_argument("--keep", type=Path, help="a new folder for what the lanes leave")
    given = parser.parse_args()
    sys.stdout.write(f"seed {given.seed}\n")
    plans = harness.plans(given.kills, pauses=given.pauses, plant=given.plant)
    if given.children:
        plans = harness.families(given.kills, plant=given.plant)
    with tempfile.TemporaryDirectory() as folder:
        if given.keep is not None:
            given.keep.mkdir(parents=True)
        verdicts = harness.run(plans, given.keep or Path(folder), given.seed)
    for plan, verdict in zip(plans, verdicts, strict=True):
        sys.stdout.write(f"\n{plan.supervisors} supervisor(s), lease {plan.lease:g} s\n{verdict}\n")
    return int(any(verdict.problems for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
