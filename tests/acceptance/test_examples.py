"""Every example runs, prints what it says at its top, and does so again on the same store."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.acceptance.pages import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PRINTS = "It prints:\n\n"


def run(example: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one example in a folder, with warnings as errors."""
    program = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if example.name.startswith("test_") else []
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TASKRUNNER_")}
    env = {**ours, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "80"}
    command = [sys.executable, "-W", "error", *program, str(example)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def told(example: Path) -> str:
    """What an example says that it prints, at the end of its docstring."""
    text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or ""
    assert PRINTS in text, f"{example.name} does not say what it prints"
    return textwrap.dedent(text.partition(PRINTS)[2])


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.stem for example in EXAMPLES])
def test_an_example_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    """Once and again on the same store; what is left is the store, in one file, or nothing."""
    for _time in range(2):
        done = run(example, tmp_path)
        printed = done.stdout.rstrip()
        if example.name.startswith("test_"):
            printed = re.sub(r"^[.]+.*\n(\d+ passed).*$", r"\1", printed)
        assert (printed, done.stderr, done.returncode) == (told(example), "", 0)
        assert {path.name for path in tmp_path.iterdir()} <= {f"{example.stem}.db"}


def test_there_are_examples() -> None:
    """An empty folder would pass all of the above."""
    assert len(EXAMPLES) >= 5
