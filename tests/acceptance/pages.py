"""The project's pages as tests read them: their headings, blocks of code, links, and what they say to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_NAME = re.compile(r"# (?P<name>[\w.]+\.py)\n")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    text: str
    section: str
    """The heading that it stands under."""
    line: int

    @property
    def file(self) -> str:
        """The name of the file that a block of Python says that it is."""
        match = _NAME.match(self.text)
        assert match, f"line {self.line}: a block of Python begins with the name of its file"
        return match["name"]

    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands of a console block, each with the output that it is followed by."""
        assert self.text.startswith("$ "), f"line {self.line}: a console block begins with a command"
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command.partition("   #")[0].strip(), output


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = _FENCE.sub("", text[: match.start()])
        section = _HEADING.findall(before)[-1]
        found.append(Block(match["kind"], match["text"], section, text[: match.start()].count("\n") + 1))
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Where a page's links lead."""
    return [match["target"] for match in _LINK.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as they are made from their words."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page))}


def typed_commands(page: Path) -> set[str]:
    """All that a page says to type: the commands of its console blocks, and what stands between backquotes."""
    typed = set(_SPAN.findall(prose(page)))
    for block in blocks(page):
        if block.kind == "console":
            typed.update(command for command, _output in block.commands())
    return typed
