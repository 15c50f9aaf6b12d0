"""`python -m taskrunner.chaos.simulation SEED HOURS [PLANT]`: one run, and what came of it as JSON.

`SEED turns FIRST LAST STEP [PLANT]` kills at these turns of the small scenario instead; `LAST` 0: only counts them.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import tempfile
from pathlib import Path

import msgspec

from taskrunner.chaos import plants
from taskrunner.chaos.simulation.every_turn import every_turn, turns
from taskrunner.chaos.simulation.hours import hours
from taskrunner.chaos.simulation.verdict import Result


def main(seed: str, length: str, *given: str) -> None:
    """Run it in a folder in memory, where there is one."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    numbers = [int(number) for number in given[:3]] if length == "turns" else []
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # the dead are kept, and to look through them again and again is in vain
    plants.plant(",".join(given[len(numbers) :]))
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own in there
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        os.chdir(folder)  # where there are nobody's settings
        if not numbers:
            result = hours(seed, Path(folder), float(length))
        elif numbers[1]:
            result = every_turn(seed, Path(folder), *numbers)
        else:
            result = Result(seed=seed, turns=turns(seed, Path(folder)))
        os.chdir("/")
    sys.stdout.buffer.write(msgspec.json.encode(result))
    sys.stdout.flush()
    os._exit(0)  # the dead are not to be cleared away in an orderly manner


if __name__ == "__main__":
    main(*sys.argv[1:])
