"""The pages tell of this code: what they say to type exists, where they lead is something, their tables are so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from docs import make_reliability
from docs.make_settings import PAGE, page
from taskrunner.cli import main
from taskrunner.core import events
from taskrunner.core.states import MOVES, TERMINAL
from tests.acceptance.pages import PAGES, README, ROOT, anchors, blocks, links, prose, typed_commands

HOW_IT_WORKS = ROOT / "docs" / "how-it-works.md"
CODE = ROOT / "taskrunner"

COMMANDS = sorted({typed for each in PAGES for typed in typed_commands(each) if typed.startswith("taskrunner ")})
OF_THIS_MACHINE = re.compile(r"/(?:tmp|work|root|home|usr|opt|srv|mnt)/")


def names(path: Path) -> str:
    """How a test is called that looks at one page."""
    return str(path.relative_to(ROOT))


def command_of(typed: str) -> tuple[str, list[str]]:
    """The command in a typed line, and the options that it is given."""
    words = shlex.split(typed)[1:]
    if words[0] == "--db":
        words = words[2:]
    return words[0], [word.partition("=")[0] for word in words if word.startswith("--")]


@pytest.mark.parametrize("typed", COMMANDS)
def test_a_command_that_is_shown_exists(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`taskrunner …` as a page shows it: the command has a help, and knows the options."""
    command, options = command_of(typed)
    assert main([command, "--help"]) == 0
    known = re.findall(r"--[\w-]+", capsys.readouterr().out)
    assert set(options) <= set(known)


@pytest.mark.parametrize("shown", PAGES, ids=names)
def test_links_lead_somewhere(shown: Path) -> None:
    """Each link to a file of the project, and to a heading, finds it."""
    for link in links(shown):
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        found = (shown.parent / target).resolve() if target else shown
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), link


@pytest.mark.parametrize("shown", PAGES, ids=names)
def test_files_that_are_named_are_there(shown: Path) -> None:
    """`runtime/attempt.py` between backquotes is a file of the package, `examples/` a folder of the checkout."""
    ours = [str(path.relative_to(ROOT)) for path in ROOT.glob("*/**/*") if ".venv" not in path.parts]
    own = {block.file for block in blocks(README) if block.kind == "python"}
    for name in re.findall(r"`([\w/-]+\.(?:py|sql|md))`", prose(shown)):
        assert name in own or any(f"/{path}".endswith(f"/{name}") for path in ours), name


@pytest.mark.parametrize("shown", PAGES, ids=names)
def test_nothing_of_a_machine_is_in_a_page(shown: Path) -> None:
    """No path of whoever wrote it."""
    assert not OF_THIS_MACHINE.findall(shown.read_text(encoding="utf-8"))


def test_the_layout_is_that_of_the_package() -> None:
    """The README's table of contents names what `ls` shows, all of the package and nothing else."""
    layout = next(block.text for block in blocks(README) if block.text.startswith("taskrunner/\n"))
    inside = {
        name
        for line in layout.splitlines()
        if line.startswith("  ")
        for name in re.findall(r"[\w/]+(?:\.py|/(?=\s))", line[:62])
    }
    listed = {f"{path.name}/" if path.is_dir() else path.name for path in CODE.iterdir() if path.name[0] not in "_."}
    assert inside == listed - {"py.typed"}


def test_the_page_of_settings_is_what_the_code_says() -> None:
    """docs/settings.md is written by `python docs/make_settings.py`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_tables_of_reliability_are_what_the_code_says() -> None:
    """docs/reliability.md names every kind of fault and every planted bug, and the figures of a whole run."""
    assert make_reliability.PAGE.read_text(encoding="utf-8") == make_reliability.page()


def test_the_table_of_moves_is_that_of_the_code() -> None:
    """How a task may move, as the page shows it and as `core/states.py` has it."""
    table = prose(HOW_IT_WORKS).partition("| from | to | when |\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \| (\w+) \| ", table, re.MULTILINE)) == set(MOVES)


def test_the_indexes_are_those_of_the_schema() -> None:
    """The page names indexes with their columns, as the first migration makes them."""
    schema = (CODE / "storage" / "sql" / "sqlite" / "0001_initial.sql").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(tasks_\w+)` \((.+?)\)", prose(HOW_IT_WORKS), re.MULTILINE)
    assert len(shown) == 5
    for name, columns in shown:
        assert f"CREATE INDEX {name} ON tasks({columns})" in schema


def test_the_events_are_those_that_are_emitted() -> None:
    """The page, the list in `core/events.py` and the code name the same events."""
    name = r"(?:child|children|task|supervisor|lease|loop|store)\.[a-z]+"
    code = "".join(path.read_text(encoding="utf-8") for path in (CODE / "runtime").glob("*.py"))
    code += (CODE / "core" / "events.py").read_text(encoding="utf-8").partition("class Events")[2]
    emitted = set(re.findall(rf'"({name})"', code)) | {f"task.{status}" for status in TERMINAL}
    table = prose(HOW_IT_WORKS).partition("| event | when |\n")[2].partition("\n\n")[0]
    assert set(re.findall(rf"`({name})`", table)) == emitted
    assert set(events.EVENTS) == emitted
