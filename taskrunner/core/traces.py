"""Where an error happened, told to who wrote the tasks: in their code, and not in ours."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from taskrunner.core.errors import TaskRunnerError, error_type_of, safe_text

_PACKAGE: Final = Path(__file__).parents[1]
_FLOORS: Final = ("core/", "storage/", "resources/", "authoring/", "runtime/", "cli/", "app.py", "testing/")
_OURS: Final = tuple(f"{_PACKAGE}/{floor}" for floor in _FLOORS)  # without workers/: those are task types, too
_MACHINERY: Final = (*_OURS, str(importlib.__file__), "<frozen importlib")
_LIBRARY: Final = f"{sysconfig.get_path('stdlib')}/"
_INSTALLED: Final = "-packages/"

MAX_TRACEBACK_TEXT: Final = 8_192
"""Characters of a traceback that are stored with an ended attempt, counted from its end."""
_MOST_FRAMES: Final = 20
_MOST_ERRORS: Final = 4
_BECAUSE: Final = "\nThis was the cause of the next error:\n\n"


def place_of(error: BaseException) -> str | None:
    """Where in somebody's code an import failed, in brackets; None when no code of theirs had begun to run."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno or 1})"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_MACHINERY)]
    own = [frame for frame in theirs if not frame.filename.startswith(_LIBRARY) or _INSTALLED in frame.filename]
    return f" ({frame.filename}:{frame.lineno})" if (frame := next(reversed(own or theirs), None)) else None


def traceback_text(error: BaseException) -> str:
    """The end of an error's traceback as storable text, without the values of local variables.

    It begins where our code calls theirs, and what caused the error stands before it.
    """
    try:
        texts = ["".join(_lines(each)) for each in _with_causes(error)]
    except BaseException as broken:  # noqa: BLE001 - formatting calls the user's __str__, and itself for each group
        return f"(no traceback: {error_type_of(broken)} while it was formatted)"
    return safe_text(_BECAUSE.join(reversed(texts))[-MAX_TRACEBACK_TEXT:], MAX_TRACEBACK_TEXT)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    for _ in range(_MOST_ERRORS):
        if each is None:
            return
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _lines(error: BaseException) -> list[str]:
    theirs = _from_their_code(error)
    return traceback.format_exception(type(error), error, theirs, limit=-_MOST_FRAMES, chain=False)


def _from_their_code(error: BaseException) -> TracebackType | None:
    """The part of a traceback that begins with their first frame.

    Where each is ours, an error of this package says all in its sentence, and of any other the whole is wanted.
    """
    each = error.__traceback__
    while each is not None and each.tb_frame.f_code.co_filename.startswith(_OURS):
        each = each.tb_next
    return each if each is not None or isinstance(error, TaskRunnerError) else error.__traceback__
