"""`taskrunner list` on terminals of every width: what a row is about stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.commands import Folder
from tests.integration.test_cli_output import lines_of, on_a_terminal

LONG = "no such page: " + "the search engine said so. " * 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A store with a failed task that says much, and a pending one that says nothing."""
    folder = Folder.make(tmp_path_factory.mktemp("table"))
    folder.ok("enqueue", "broken", f"text={LONG}", "--max-retries", "0")
    folder.ok("run", "app:runner", "--until-idle")
    folder.ok("enqueue", "greet", "name=x")
    return folder


@pytest.mark.parametrize("columns", [60, 72, 80, 100, 120])
def test_a_long_text_hides_nothing_else(folder: Folder, columns: int) -> None:
    """B76: however much a task says, its id, status and type stand there whole, and the row fits the terminal."""
    failed, pending = (folder.json("list", "--status", status)[0]["id"] for status in ("failed", "pending"))
    lines = lines_of(on_a_terminal(folder, "list", columns=columns))
    text = "\n".join(lines)
    for word in ("STATUS", "TYPE", failed, pending, "failed", "pending", "broken", "greet", "Value"):
        assert word in text
    assert all(len(line) <= columns for line in lines)


@pytest.mark.parametrize("columns", [20, 30, 40, 50])
def test_a_narrow_terminal(folder: Folder, columns: int) -> None:
    """Where one line has no room for a row, it has two, and still nothing of its id, status and type is cut."""
    [task] = folder.json("list", "--status", "failed")
    lines = lines_of(on_a_terminal(folder, "list", columns=columns))
    place = lines.index(task["id"])
    assert lines[place + 1].split()[:2] == ["failed", "broken"]
    if columns >= 40:
        assert all(len(line) <= columns for line in lines)


def test_wide_signs_keep_the_columns_straight(tmp_path: Path) -> None:
    """A sign that takes two places of a terminal counts as two."""
    folder = Folder.make(tmp_path)
    folder.ok("enqueue", "検索", "--queue", "猫")
    folder.ok("enqueue", "search", "--queue", "cats")
    lines = lines_of(on_a_terminal(folder, "list", columns=120))
    places = [line.index("0%") for line in lines[1:]]
    wide = sum(sign in "検索猫" for sign in lines[2])
    assert (places[0], wide) == (places[1] + wide, 3)
