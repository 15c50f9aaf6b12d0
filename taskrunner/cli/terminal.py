"""What reaches the terminal: text made harmless, tables, one JSON document, one sentence of error.

Nothing stored is trusted here: a task's name or an error's text may hold control characters, terminal codes or marks
that turn the direction of writing. They are shown as escapes.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

JSON: TypeAlias = Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # they hold the parts of one sign together, as in many emoji
_GAP = "  "
_LEAST_CELL = 8
_WIDEST_CELL = 60
_LAST_COLUMN = 24


def prepare() -> None:
    """Let standard output and error take any text, whatever the locale: what they cannot show becomes an escape.

    A closed one takes all and keeps nothing; a closed standard input is empty.
    """
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - until the process ends
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def harmless(value: object) -> str:
    """The value's text on one line, with control characters, terminal codes and direction marks as escapes."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(sign) for sign in text)


def harmless_lines(text: str) -> str:
    """The text with its lines kept, and all else as `harmless` does."""
    return "".join(f"{harmless(line)}\n" for line in text.splitlines())


def say(text: str = "") -> None:
    """Write one line to standard output. The caller has made it harmless."""
    with _named_output():
        sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """Write one line to standard error, as `taskrunner: …`."""
    sys.stderr.write(f"taskrunner: {harmless(text)}\n")


def print_json(document: JSON) -> None:
    """Write one strict JSON document: no NaN, and only ASCII, so that no locale and no terminal can spoil it."""
    say(json.dumps(_strict(document), allow_nan=False, indent=2))


def print_json_line(document: JSON) -> None:
    """Write a JSON document on one line, as strict as `print_json` does."""
    say(json.dumps(_strict(document), allow_nan=False))


def compact(document: JSON) -> str:
    """JSON on one line, for people."""
    return json.dumps(document, ensure_ascii=False)


def flush() -> None:
    """Let the reader see what was written so far."""
    with _named_output():
        sys.stdout.flush()


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, spare: Collection[str] = ()) -> None:
    """Write a table: aligned under a header for people, one line per row with tabs between for programs.

    `spare` names the columns that are left out on a terminal that is too narrow for all.
    """
    cells = [[harmless(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for row in cells:
            say("\t".join(row))
    elif cells:
        room = shutil.get_terminal_size().columns
        kept = _columns_that_fit(header, cells, spare, room)
        _print_aligned([[row[number] for number in kept] for row in [header, *cells]], room)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Write one `name  value` per line, the values aligned."""
    pairs = [(harmless(name), harmless(value)) for name, value in fields]
    width = max((len(name) for name, _value in pairs), default=0)
    for name, value in pairs:
        say(f"{name:<{width}}  {value}")


def print_section(title: str, lines: Iterable[str]) -> None:
    """Write a title and lines below it, if there are any."""
    for number, line in enumerate(lines):
        if number == 0:
            say(f"\n{title}")
        say(f"  {harmless(line)}")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says how far long work has come, each time anew; on a terminal only."""
    shown = is_terminal(sys.stderr)

    def show(text: str) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[K{harmless(text)}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


def is_terminal(stream: IO[str]) -> bool:
    """Whether a person reads this stream, on something that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def abandon_output() -> None:
    """Let nothing more be written to standard output: its reader has gone, and Python would complain at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


@contextmanager
def _named_output() -> Iterator[None]:
    """Let an error say that it was standard output that could not be written; a reader that has gone stays one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def _escape(sign: str) -> str:
    if sign in _SHORT:
        return _SHORT[sign]
    if unicodedata.category(sign) not in _HARMFUL or sign in _JOINERS:
        return sign
    return ascii(sign)[1:-1]


def _strict(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _columns_that_fit(
    header: Sequence[str], cells: Sequence[Sequence[str]], spare: Collection[str], room: int
) -> list[int]:
    every = list(range(len(header)))
    if sum(_widths([header, *cells])[:-1]) + len(_GAP) * (len(every) - 1) + _LAST_COLUMN <= room:
        return every
    return [number for number in every if header[number] not in spare]


def _print_aligned(rows: Sequence[Sequence[str]], room: int) -> None:
    """Print rows of which the first is the header. Only the last column is cut to what room there is.

    Where the others leave none for it, the first column has a line of its own above the rest of its row.
    """
    widths = _widths(rows)
    least = min(widths[-1], _LEAST_CELL)
    stacked = sum(widths[:-1]) + len(_GAP) * (len(widths) - 1) + least > room
    taken = sum(widths[stacked:-1]) + len(_GAP) * (len(widths) - 1)
    widths[-1] = max(least, room - taken)
    for number, row in enumerate(rows):
        cells = [_fill(_cut(cell, width), width) for cell, width in zip(row, widths, strict=True)]
        lines = [cells[0], _GAP + _GAP.join(cells[1:])] if stacked else [_GAP.join(cells)]
        for line in lines:
            say(_bold(line.rstrip()) if number == 0 else line.rstrip())


def _bold(text: str) -> str:
    plain = not is_terminal(sys.stdout) or os.environ.get("NO_COLOR")
    return text if plain else f"\x1b[1m{text}\x1b[0m"


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [min(_WIDEST_CELL, max(map(_width, column))) for column in zip(*rows, strict=True)]


def _width(text: str) -> int:
    """How many places a terminal gives a text."""
    return len(text) if text.isascii() else sum(map(_places, text))


def _places(sign: str) -> int:
    if unicodedata.combining(sign) or sign in _JOINERS:
        return 0
    return 2 if unicodedata.east_asian_width(sign) in {"W", "F"} else 1


def _fill(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _cut(text: str, width: int) -> str:
    if len(text) <= width and _width(text) <= width:
        return text
    kept, room = "", width - 1
    for sign in text:
        room -= _places(sign)
        if room < 0:
            break
        kept += sign
    return f"{kept}…"
