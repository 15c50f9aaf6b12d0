"""The kind `model`: a small part of it finds nothing, and each bug that is planted is found within seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskrunner.chaos.model.kind import place, play, run
from taskrunner.chaos.plants import PLANTS
from taskrunner.chaos.report import Order, Tally
from taskrunner.storage import sqlite
from taskrunner.storage.sqlite_writer import Writer


def test_the_store_does_what_the_model_says(tmp_path: Path) -> None:
    """Some thousand calls of every kind, alone and several in one transaction: each answers as it has to."""
    tally = run(Order("model", "taskrunner.chaos.model.kind", 1, 0.01, str(tmp_path)))
    assert not tally.problems
    assert tally.reached["steps"] >= 1_200
    assert all(tally.reached.values()), tally.reached


@pytest.mark.parametrize("name", ["fence", "half", "attempt", "claims", "expired", "losses", "delay", "due", "slots"])
def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What would break a promise of the store is found by the model, with a sequence that shows it."""
    monkeypatch.setattr(sqlite, "load_queries", vars(sqlite)["load_queries"])  # it is put back
    monkeypatch.setattr(Writer, "_apply", Writer._apply)
    PLANTS[name].put()
    tally = Tally("model")
    with place(tmp_path) as folder:
        play(folder, 1, 5_000, tally, shrink=False)
    assert [problem.breach for problem in tally.problems] == ["wrong"]
    assert "state.teardown()" in tally.problems[0].text
