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
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

JSON: TypeAlias = Any

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_JOINERS = frozenset("\u200c\u200d")  # they hold the parts of one sign together, as in many emoji
_GAP = "  "
_LEAST_CELL = 8
_LAST_COLUMN = 24


def prepare() -> None:
    """Let standard output and error take any text, whatever the locale: what they cannot show becomes an escape.

    A closed one takes all and keeps nothing.
    """
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
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """Write one line to standard error, as `taskrunner: …`."""
    sys.stderr.write(f"taskrunner: {harmless(text)}\n")


def print_json(document: JSON) -> None:
    """Write one strict JSON document: no NaN, and only ASCII, so that no locale and no terminal can spoil it."""
    say(json.dumps(_strict(document), allow_nan=False, indent=2))


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
        _print_aligned([header[number] for number in kept], [[row[number] for number in kept] for row in cells], room)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Write one `name  value` per line, the values aligned."""
    pairs = [(name, harmless(value)) for name, value in fields]
    width = max((len(name) for name, _value in pairs), default=0)
    for name, value in pairs:
        say(f"{name:<{width}}  {value}")


def is_terminal(stream: IO[str]) -> bool:
    """Whether a person reads this stream, on something that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def abandon_output() -> None:
    """Let nothing more be written to standard output: its reader has gone, and Python would complain at the exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


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
    widths = [max(len(row[number]) for row in [header, *cells]) + len(_GAP) for number in every]
    if sum(widths[:-1]) + _LAST_COLUMN <= room:
        return every
    return [number for number in every if header[number] not in spare]


def _print_aligned(header: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _print_plain(header, cells, room)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(header):
        table.add_column(name, no_wrap=True, min_width=len(cells[0][0]) if number == 0 else None)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))  # as Text: a stored `[red]` is no markup
    Console(highlight=False).print(table)


def _print_plain(header: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> None:
    rows = [header, *cells]
    widths = [max(len(row[number]) for row in rows) for number in range(len(header))]
    widths[-1] = max(_LEAST_CELL, room - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1))
    for row in rows:
        say(_GAP.join(f"{_cut(cell, width):<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
