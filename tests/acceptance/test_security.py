"""SECURITY.md: each threat names tests, and these exist; what it says of limits and of functions is so."""

from __future__ import annotations

import re
from functools import cache

from taskrunner.core.redaction import HIDDEN, SHORTEST
from tests.acceptance.pages import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


@cache
def names() -> frozenset[str]:
    """The names of all tests."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE))


def rows() -> list[list[str]]:
    """The rows of the table of threats."""
    table = [line for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[1:]]


def test_each_threat_has_a_test() -> None:
    """A row without proof is a wish."""
    assert len(rows()) > 10
    for row in rows():
        threat, measure, proof = row
        assert threat, measure
        named = re.findall(r"`(test_\w+)`", proof)
        assert named, threat
        assert set(named) <= names(), (threat, set(named) - names())


def test_what_it_says_of_redaction_is_so() -> None:
    """The mark, and the least length."""
    assert f"`{HIDDEN}`" in PAGE
    assert len(re.findall(rf"\b{SHORTEST} characters", PAGE)) == 2
