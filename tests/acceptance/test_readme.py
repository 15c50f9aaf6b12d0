"""What the README shows is so: its programs run, print what it says, and go on after kill -9."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.acceptance.pages import README, ROOT, Block, blocks
from tests.acceptance.shell import Shell

FIRST_SCREEN = 60
"""Lines."""

INSTALL = {"python3 -m venv .venv && .venv/bin/pip install '.[cli]'", ". .venv/bin/activate"}
NOT_RUN = {"./run demo", "./run test", *INSTALL}
"""What the tests cannot type: two of them run the tests or half a minute of work, and the others need an index."""

BLOCKS = blocks(README)
PROGRAMS = [block for block in BLOCKS if block.kind == "python"]
SECTIONS = list(dict.fromkeys(block.section for block in BLOCKS if block.kind in {"python", "console"}))


def write_programs(folder: Path, section: str) -> list[Block]:
    """Write every program that the README has shown up to the end of this section; return those of the section."""
    shown = BLOCKS[: max(number for number, block in enumerate(BLOCKS) if block.section == section) + 1]
    for block in shown:
        if block.kind == "python":
            (folder / block.file).write_text(block.text, encoding="utf-8")
    return [block for block in shown if block.kind == "python" and block.section == section]


@pytest.mark.parametrize("section", SECTIONS)
def test_what_a_section_shows_is_what_comes_out(section: str, tmp_path: Path) -> None:
    """Each command of a section prints what stands below it, in a folder with the programs shown so far."""
    programs = write_programs(tmp_path, section)
    shell = Shell(tmp_path)
    typed: list[str] = []
    for block in BLOCKS:
        if block.kind == "console" and block.section == section:
            for command, expected in block.commands():
                typed.append(command)
                if command not in NOT_RUN:
                    shell.check(command, expected)
    untried = [program.file for program in programs if not any(program.file in command for command in typed)]
    assert not untried, "a program that is shown is run as well"


def test_the_programs_have_names_of_their_own() -> None:
    """No program of the README overwrites another one in the reader's folder."""
    names = [program.file for program in PROGRAMS]
    assert len(set(names)) == len(names)


@pytest.mark.timeout(180)  # a first run of the type checker reads every dependency
def test_the_programs_type_check(tmp_path: Path) -> None:
    """What the README teaches passes under `mypy --strict`."""
    write_programs(tmp_path, SECTIONS[-1])
    files = sorted(tmp_path.glob("*.py"))
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_screen_is_the_product() -> None:
    """In this order: the name, one sentence, three promises, two commands, a program, kill it, see it go on."""
    lines = README.read_text(encoding="utf-8").splitlines()[:FIRST_SCREEN]
    assert lines[0] == "# taskrunner"
    assert lines[2].endswith(".")
    assert sum(line.startswith("- **") for line in lines) == 3
    order = ["./run demo", "./run test", "```python", "kill -9", "Killed", "5 answers"]
    places = [next(number for number, line in enumerate(lines) if line.find(text) > -1) for text in order[:3]]
    after = "\n".join(lines[places[-1] :])
    places += [places[-1] + after[: after.index(text)].count("\n") for text in order[3:]]
    assert all(before < behind for before, behind in pairwise(places)), places


def test_the_two_commands_are_there() -> None:
    """`./run` knows the commands that the README begins with."""
    done = subprocess.run([ROOT / "run", "help"], capture_output=True, text=True, check=True)
    for command in ("./run demo", "./run test"):
        assert command in done.stdout
        assert any(command == typed for block in BLOCKS if block.kind == "console" for typed, _ in block.commands())
