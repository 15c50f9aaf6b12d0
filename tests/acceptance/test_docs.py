"""What the pages of `docs/` show is so: programs and commands come out as they stand there, errors have these words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.acceptance.pages import ROOT, blocks
from tests.acceptance.shell import Shell

DOCS = ROOT / "docs"
PAGES = (DOCS / "deploying.md", DOCS / "embedding.md", DOCS / "testing.md", DOCS / "troubleshooting.md")
TROUBLESHOOTING = DOCS / "troubleshooting.md"
WEBAPP = ROOT / "examples" / "webapp.py"

_SENTENCE = re.compile(r"^### (.+)$", re.MULTILINE)
_PART = re.compile(r"…|; ")


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
    parts = [words(part).strip(" :,()") for part in _PART.split(sentence)]
    found = [part for part in parts if part]
    assert found
    for part in found:
        assert part in whole, part


STORE_ERRORS = {"StoreError", "StoreBusy", "StoreUnknown"}
OF_THE_STORE = (
    *("guard", "hold", "readers", "group_commit", "sqlite", "sqlite_connection", "sqlite_writer", "rows", "tasks"),
    *("questions", "surroundings"),
)
WITH_YIELD = {"guard", "surroundings"}
LEAST = 12
"""Characters of a sentence that are no sentence yet: what is put into another one."""


def told_by_the_store() -> Iterator[str]:
    """Every sentence of a StoreError, and of what `doctor` says of the file, with … for the values."""
    modules = [ROOT / "taskrunner" / "storage" / f"{name}.py" for name in OF_THE_STORE]
    for path in (*modules, ROOT / "taskrunner" / "runtime" / "liveness.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = getattr(node, "body", [])
            for before, after in pairwise(body if isinstance(body, list) else []):
                match before, after:
                    case (
                        ast.Assign(targets=[ast.Name(id="message")], value=text),
                        ast.Raise(exc=ast.Call(func=ast.Name(id=name))),
                    ) if name in STORE_ERRORS:
                        yield literal(text)
            match node:
                case ast.Call(func=ast.Name(id=name), args=[text, *_]) if name in STORE_ERRORS:
                    yield literal(text)
                case ast.Yield(value=ast.JoinedStr() | ast.Constant() as text) if path.stem in WITH_YIELD:
                    yield literal(text)


def literal(node: ast.expr) -> str:
    """A text as it stands in the code, with … for what is put in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(literal(part) for part in parts)
    return "…"


def test_every_error_of_the_store_is_explained() -> None:
    """A sentence that a StoreError or `doctor` may say of the file has a heading on the page."""
    page = words(" ".join(sentences()))
    told = {max(_PART.split(sentence), key=len) for sentence in told_by_the_store()}
    assert len(told) > 30
    unexplained = {part for part in told if len(part) >= LEAST and words(part).strip(" :,()") not in page}
    assert not unexplained
