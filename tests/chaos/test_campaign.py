"""`taskrunner chaos`: each kind in a process of its own, floors, and one sentence that says it all."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from taskrunner.chaos.campaign import run
from taskrunner.chaos.kinds import KINDS, Kind, Need
from taskrunner.chaos.report import Report


def kind(name: str, floor: int = 100) -> Kind:
    """One of the kinds that are there for these tests."""
    return Kind(name=name, what=name, module="tests.chaos.kinds", floors={"strokes": floor}, seconds=1)


def campaign(*kinds: Kind, minutes: float = 2.0) -> tuple[Report, list[str]]:
    """Run them, a tenth of a whole run."""
    told: list[str] = []
    return run(kinds, 7, minutes, told.append, at_least=0.0), told


def test_what_was_reached_is_told_in_one_sentence() -> None:
    """Faults are added up, each kind is told of as it ends, and the order of the report is that of the kinds."""
    report, told = campaign(kind("works"), kind("works too"))
    assert report.is_good
    assert report.sentence().startswith(
        "20 faults survived, 0 lost, 0 doubled, 0 corrupt, 0 writes of zombies accepted (seed 7, "
    )
    assert sorted(line.partition(";")[0] for line in told) == ["works too: 10 strokes", "works: 10 strokes"]
    assert [tally.kind for tally in report.tallies] == ["works", "works too"]
    assert report.complaints() == []


def test_what_was_broken_is_told_with_the_command_that_does_it_again() -> None:
    """One broken promise is enough for the run to be no good."""
    report, _told = campaign(kind("works"), kind("breaks"))
    assert not report.is_good
    assert "20 faults met, 1 lost, 0 doubled" in report.sentence()
    assert report.complaints() == [
        "breaks: lost: something is gone",
        "breaks: to do it again: taskrunner chaos --kind breaks --seed 7 --minutes 2",
    ]


def test_what_was_not_reached_proves_nothing() -> None:
    """A floor that was missed makes the run no good, although nothing was broken."""
    report, _told = campaign(kind("works", floor=200))
    assert not report.is_good
    assert "1 of 1 floors not reached" in report.sentence()


def test_a_kind_that_dies_and_one_that_hangs_are_found() -> None:
    """Each is told of as a problem, the first with its last words; the others are not harmed."""
    report, _told = campaign(kind("dies"), kind("works"), kind("hangs"), minutes=0.05)
    assert not report.is_good
    said = "\n".join(report.complaints())
    assert "dies: wrong: it ended with exit code -9: its last words" in said
    assert "hangs: stuck: it has not come to its end within 6 s" in said
    assert "works" not in said
    assert [tally.has_died for tally in report.tallies] == [True, False, True]


def test_a_kind_that_lacks_something_is_left_out_and_told_of() -> None:
    """What is not there is named with how to get it; the other kinds run, and decide how the run ends."""
    needs = (Need("a plough", lambda: False, "buy one"), Need("a horse", lambda: True, "buy one"))
    report, told = campaign(kind("works"), replace(kind("ploughs"), needs=needs))
    assert told[0] == "left out: ploughs needs a plough, which is not there (buy one)"
    assert report.left_out == ["ploughs needs a plough, which is not there (buy one)"]
    assert [line.kind for line in report.lines] == ["works"]
    assert report.is_good
    assert "; left out: ploughs (seed 7" in report.sentence()


@pytest.mark.timeout(60)
def test_the_command_speaks_json() -> None:
    """`chaos --json` writes one document, and ends with 0 when all is well."""
    words = ["chaos", "--minutes", "0.1", "--seed", "3", "--kind", "kills", "--json"]
    done = subprocess.run([sys.executable, "-m", "taskrunner", *words], capture_output=True, check=True, text=True)
    document = json.loads(done.stdout)
    assert document["good"]
    assert document["seed"] == 3
    assert document["faults"] >= 15
    assert [line["kind"] for line in document["lines"]] == ["kills"] * len(KINDS["kills"].floors)
    assert done.stderr == ""


def test_a_wrong_kind_is_refused() -> None:
    """A kind that there is not is refused in one sentence that names those that there are."""
    words = ["chaos", "--kind", "plague"]
    done = subprocess.run([sys.executable, "-m", "taskrunner", *words], capture_output=True, check=False, text=True)
    assert done.returncode == 2
    assert "'plague'" in done.stderr
    assert "kills" in done.stderr
