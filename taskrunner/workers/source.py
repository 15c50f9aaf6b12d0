"""What can be said of Python source files without running them: lines, functions, docstrings, the longest function."""

from __future__ import annotations

import ast
import io
import os
import threading
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NOT_OURS = frozenset({"site-packages", "dist-packages", "__pycache__"})
"""Folders that are no part of the standard library, though they lie in its folder."""

TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})

SURVEYED = "<surveyed>"
"""The file name under which the compiler sees every source."""

# What the compiler has to say about a surveyed file is no warning about this program.
warnings.filterwarnings("ignore", module=SURVEYED)

_parsing = threading.Lock()
"""CPython 3.11 counts the depth of its parser once for all threads: two at once end in a SystemError."""

_NO_CODE = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
)

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """Where a function stands, and how long it is."""

    name: str
    file: str
    line: int
    lines: int


@dataclass(slots=True, kw_only=True)
class Measures:
    """Counts over some files; they add up."""

    files: int = 0
    lines: int = 0
    code_lines: int = 0
    """Lines with code: no blank lines, no comments, no docstrings."""
    comment_lines: int = 0
    functions: int = 0
    classes: int = 0
    documentable: int = 0
    """Modules, classes and functions."""
    documented: int = 0
    """Those of them that have a docstring."""
    longest: Function | None = None
    unreadable: list[str] = field(default_factory=list)
    """Files that Python cannot parse, each with the reason."""

    def add(self, other: Measures) -> None:
        """Add another part's counts to these."""
        self.files += other.files
        self.lines += other.lines
        self.code_lines += other.code_lines
        self.comment_lines += other.comment_lines
        self.functions += other.functions
        self.classes += other.classes
        self.documentable += other.documentable
        self.documented += other.documented
        self.unreadable += other.unreadable
        if other.longest is not None and (self.longest is None or other.longest.lines > self.longest.lines):
            self.longest = other.longest

    @property
    def docstring_share(self) -> float:
        """Of the modules, classes and functions, how many have a docstring: 0.0 to 1.0."""
        return self.documented / self.documentable if self.documentable else 0.0


@dataclass(frozen=True, slots=True)
class Package:
    """A package, or the modules of one initial, with its source files below the root."""

    name: str
    files: list[str]


def find_packages(root: str, *, tests: bool = True, limit: int | None = None) -> list[Package]:
    """The packages below a folder, sorted by name; single modules are grouped by their initial as `modules-a`.

    `tests` says whether test suites count (default: they do); `limit` keeps that many packages, the largest.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    if not Path(root).is_dir():
        message = f"root={root!r}: not a folder"
        raise NotADirectoryError(message)
    found: dict[str, list[str]] = {}
    for file in _sources(root, skipped=NOT_OURS if tests else NOT_OURS | TEST_FOLDERS):
        head, *rest = Path(file).parts
        name = head if rest else f"modules-{head.lstrip('_')[:1].lower()}"
        found.setdefault(name, []).append(file)
    largest = sorted(found, key=lambda name: (-len(found[name]), name))[:limit]
    return [Package(name, sorted(found[name])) for name in sorted(largest)]


def measure_files(root: str, files: Iterable[str]) -> Measures:
    """Measure source files, named relative to `root`. A file that cannot be read or parsed is counted and named."""
    total = Measures()
    for file in files:
        try:
            total.add(measure(Path(root, file).read_bytes(), file))
        except (OSError, SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError) as error:
            total.files += 1
            total.unreadable.append(_reason(file, error))
    return total


def measure(source: bytes, file: str) -> Measures:
    """Measure one source; `file` is its name in the answer.

    Raises:
        SyntaxError: Python cannot parse it.
        ValueError: it holds bytes that no source may hold.
    """
    with _parsing:
        tree = ast.parse(source, filename=SURVEYED)
    result = Measures(files=1, lines=len(source.splitlines()))
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _Definition):
            _measure_definition(node, file, result, docstrings)
    code, comments = _token_lines(source)
    result.code_lines = len(code - docstrings)
    result.comment_lines = len(comments - code)
    return result


def _reason(file: str, error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{file}:{error.lineno or 1}: {error.msg}"
    return f"{file}: {type(error).__name__}: {error}"


def _sources(root: str, *, skipped: frozenset[str]) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in skipped)
        for name in files:
            if name.endswith(".py"):
                yield os.path.relpath(Path(folder, name), root)


def _measure_definition(node: _Definition, file: str, result: Measures, docstrings: set[int]) -> None:
    result.documentable += 1
    if ast.get_docstring(node, clean=False) is not None:
        result.documented += 1
        text = node.body[0]
        docstrings.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    if isinstance(node, ast.ClassDef):
        result.classes += 1
    elif not isinstance(node, ast.Module):
        result.functions += 1
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if result.longest is None or lines > result.longest.lines:
            result.longest = Function(name=node.name, file=file, line=node.lineno, lines=lines)


def _token_lines(source: bytes) -> tuple[set[int], set[int]]:
    """The numbers of the lines that hold code, and of those that hold a comment."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return code, comments
