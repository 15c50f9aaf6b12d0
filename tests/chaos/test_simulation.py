"""The simulation: the same seed is the same story, nothing is lost in it, and it finds what is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskrunner.chaos.kinds import KINDS
from taskrunner.chaos.report import Order, Tally
from taskrunner.chaos.simulation.run import add, part, run

ROOT = Path(__file__).resolve().parents[2]


def order(tmp_path: Path, plant: str = "") -> Order:
    """An order of a small part of a whole run."""
    return Order("simulation", KINDS["simulation"].module, 1, 0.002, str(tmp_path), plant)


def story(hash_seed: str, *words: str) -> dict[str, Any]:
    """What a run of these words has found, in a process whose sets and dicts of texts are in an order of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "taskrunner.chaos.simulation", *words],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_same_seed_is_the_same_story() -> None:
    """Two runs of a seed see the same at the same moment, whatever the process is given; another seed does not."""
    one, same, other = story("1", "7", "0.5"), story("2", "7", "0.5"), story("1", "8", "0.5")
    assert one["hash"] == same["hash"] != other["hash"]
    assert one["faults"] == same["faults"]
    assert one["turns"] == same["turns"]


def test_an_hour_of_faults_loses_nothing(tmp_path: Path) -> None:
    """Killed, stopped and with a clock that jumps, two supervisors lose nothing, and all comes to its end."""
    tally = Tally("simulation")
    add(tally, part(order(tmp_path), "5", "1"))
    assert not tally.problems
    assert tally.faults >= 60
    for what in ("kills", "stops of a process", "jumps of the clock", "task.recovered", "task.completed"):
        assert tally.reached[what] > 0, what


def test_a_kill_at_any_turn_of_the_loop_loses_nothing(tmp_path: Path) -> None:
    """Each thirtieth turn of a small scenario is the last one of whoever ran in it; what it did is done once."""
    found = part(order(tmp_path), "1", "turns", "1", "900", "30")
    assert not found.problems
    assert found.faults["kills at a turn"] == 30


@pytest.mark.parametrize(
    ("plant", "length"), [("memo", "0.1"), ("thief", "0.05"), ("early", "0.1"), ("fence", "0.1"), ("orphans", "0.1")]
)
def test_what_is_planted_is_found(tmp_path: Path, plant: str, length: str) -> None:
    """A replay without the records, murder of the living, a lie about a commit, writes of zombies, a lost orphan."""
    assert part(order(tmp_path, plant), "f4", length).problems


def test_a_failure_says_how_to_see_it_again(tmp_path: Path) -> None:
    """Each problem names the command that tells the same story."""
    problem = part(order(tmp_path, "memo"), "3", "0.1").problems[0]
    assert "`python -m taskrunner.chaos.simulation 3 0.1 memo`" in problem.text


def test_a_part_of_a_run_is_tallied(tmp_path: Path) -> None:
    """The command's kind counts hours, faults and what became of them."""
    tally = run(order(tmp_path))
    assert not tally.problems
    assert tally.reached["kills at a turn"] >= 1
    assert tally.faults > 10
