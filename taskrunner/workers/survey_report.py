"""The pages of a survey: what its tasks found, as Markdown for people and as CSV for programs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from taskrunner.workers.source import Measures

LONGEST_SHOWN = 10
UNREADABLE_SHOWN = 20

_COLUMNS = (
    "package",
    "files",
    "lines",
    "code_lines",
    "comment_lines",
    "functions",
    "classes",
    "docstring_share",
    "longest_function",
    "longest_function_lines",
    "longest_function_place",
    "unreadable",
)


@dataclass(slots=True, kw_only=True)
class PackageReport(Measures):
    """What was found in one package."""

    package: str


@dataclass(slots=True, kw_only=True)
class Collected:
    """What the tasks of a survey found: a report per package, and the packages without one, each with the reason."""

    root: str
    reports: list[PackageReport] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def totals(self) -> Measures:
        """The counts of all packages together."""
        total = Measures()
        for each in self.reports:
            total.add(each)
        return total


def note(report: PackageReport) -> str:
    """One sentence about a package."""
    text = (
        f"{report.package}: {report.lines:,} lines in {report.files} files, {report.functions:,} functions and"
        f" {report.classes:,} classes, {report.docstring_share:.0%} with a docstring"
    )
    if report.longest is not None:
        text += f"; the longest function is {report.longest.name} with {report.longest.lines} lines"
    if report.unreadable:
        text += f"; {len(report.unreadable)} files cannot be parsed"
    return f"{text}."


def as_markdown(found: Collected, written: datetime) -> str:
    """The whole survey as one page of Markdown."""
    return "\n".join([*_head(found, written), *_table(found), *_longest(found), *_troubles(found)]) + "\n"


def as_csv(found: Collected) -> str:
    """One line for each package, with a header."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for each in found.reports:
        longest = each.longest
        table.writerow(
            [
                each.package,
                each.files,
                each.lines,
                each.code_lines,
                each.comment_lines,
                each.functions,
                each.classes,
                f"{each.docstring_share:.4f}",
                longest.name if longest else "",
                longest.lines if longest else "",
                f"{longest.file}:{longest.line}" if longest else "",
                len(each.unreadable),
            ]
        )
    return text.getvalue()


def write_file(path: Path, text: str) -> Path:
    """Write a file whole or not at all: a reader sees the old one or the new one, also after a crash.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return path


def _head(found: Collected, written: datetime) -> Iterator[str]:
    total = found.totals()
    yield "# Survey of Python sources"
    yield ""
    yield f"`{found.root}`, {written:%Y-%m-%d %H:%M} UTC."
    yield ""
    yield f"- {len(found.reports)} packages, {total.files:,} files, {total.lines:,} lines"
    yield f"- {total.code_lines:,} lines of code, {total.comment_lines:,} of comments"
    yield f"- {total.functions:,} functions, {total.classes:,} classes"
    yield f"- {total.docstring_share:.1%} of modules, classes and functions have a docstring"
    yield ""


def _table(found: Collected) -> Iterator[str]:
    yield "| package | files | lines | code | functions | classes | docstrings | longest function |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    for each in found.reports:
        longest = f"`{each.longest.name}` ({each.longest.lines})" if each.longest else ""
        yield (
            f"| {each.package} | {each.files} | {each.lines:,} | {each.code_lines:,} | {each.functions:,} |"
            f" {each.classes:,} | {each.docstring_share:.0%} | {longest} |"
        )
    yield ""


def _longest(found: Collected) -> Iterator[str]:
    functions = sorted((each.longest for each in found.reports if each.longest), key=lambda each: -each.lines)
    yield "## The longest functions, one per package"
    yield ""
    for each in functions[:LONGEST_SHOWN]:
        yield f"- `{each.name}`, {each.lines} lines, {each.file}:{each.line}"
    yield ""


def _troubles(found: Collected) -> Iterator[str]:
    if found.missing:
        yield "## Packages without a report"
        yield ""
        yield from (f"- {name}: {reason}" for name, reason in found.missing.items())
        yield ""
    unreadable = found.totals().unreadable
    if unreadable:
        yield "## Files that Python cannot parse"
        yield ""
        yield from (f"- {each}" for each in unreadable[:UNREADABLE_SHOWN])
        if len(unreadable) > UNREADABLE_SHOWN:
            yield f"- and {len(unreadable) - UNREADABLE_SHOWN} more"
        yield ""
