"""The planted bugs fit: each still finds the place that it is to break."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taskrunner.chaos.plants import PLANTS

PLANT = "import sys; from taskrunner.chaos import plants; plants.plant(sys.argv[1])"
LOAD = "; from taskrunner.storage import sqlite; sqlite.load_queries('sqlite')"


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_still_fits(name: str) -> None:
    """A bug whose place in our code has changed says so: else it would be taken for found, or for harmless."""
    done = subprocess.run([sys.executable, "-c", PLANT + LOAD, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
