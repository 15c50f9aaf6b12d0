"""What the pages of `docs/` show is so: programs and commands come out as they stand there, errors have these words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.acceptance.pages import ROOT, blocks
from tests.acceptance.shell import Shell

DOCS = ROOT / "docs"
PAGES = (DOCS / "deploying.md", DOCS / "embedding.md", DOCS / "troubleshooting.md")
TROUBLESHOOTING = DOCS / "troubleshooting.md"
WEBAPP = ROOT / "examples" / "webapp.py"

_SENTENCE = re.compile(r"^### (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_what_comes_out(page: Path, tmp_path: Path) -> None:
    """Each program of a page is run by a command of it, and each command prints what stands below it."""
    shown = blocks(page)
    programs = [block for block in shown if block.kind == "python"]
    for block in programs:
        (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    shell = Shell(tmp_path)
    typed = [command for block in shown if block.kind == "console" for command in block.commands()]
    for command, expected in typed:
        shell.check(command, expected)
    assert not [program.file for program in programs if not any(program.file in command for command, _ in typed)]


def test_the_lifespan_is_that_of_the_example() -> None:
    """docs/embedding.md quotes examples/webapp.py."""
    [block] = [block for block in blocks(DOCS / "embedding.md") if block.kind == "py"]
    assert block.text in WEBAPP.read_text(encoding="utf-8")


def sentences() -> list[str]:
    """The errors that the page explains, as their headings quote them."""
    return _SENTENCE.findall(TROUBLESHOOTING.read_text(encoding="utf-8"))


def words(text: str) -> str:
    """The text's words alone, so that it does not matter how the code cuts a sentence into lines and pieces."""
    return re.sub(r"[\s\"'`]+", " ", text)


def code() -> str:
    """Every text of the package's code, with what is put in at run time as a mark that no page has."""
    texts = []
    for path in sorted((ROOT / "taskrunner").rglob("*")):
        if path.suffix in {".py", ".sql"}:
            text = path.read_text(encoding="utf-8")
            texts.append(re.sub(r'"\s*\n\s*f?"', "", text))  # one sentence over several lines
    return words("".join(texts))


@pytest.mark.parametrize("sentence", sentences())
def test_an_error_that_is_explained_is_one_of_the_code(sentence: str) -> None:
    """Each part of a heading, between the places where a value stands (…), is in the code as it is here."""
    whole = code()
    parts = [words(part).strip(" :,()") for part in sentence.split("…")]
    found = [part for part in parts if part]
    assert found
    for part in found:
        assert part in whole, part
