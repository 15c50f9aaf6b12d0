"""What tasks log, on a terminal and elsewhere: nothing of it is obeyed, and no task fails for it (G10)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from taskrunner import observability

EVIL = "\x1b]0;owned\x07\x1b[2J\u202e"


class Terminal(io.StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class Evil:
    """A value whose text a terminal would obey."""

    def __repr__(self) -> str:
        return EVIL


class Mute:
    """A value that cannot be told of."""

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.fixture(params=[Terminal, io.StringIO], ids=["terminal", "file"])
def stream(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """Where the log goes; afterwards nothing is set up."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    out: io.StringIO = request.param()
    observability.configure(out)
    yield out
    structlog.reset_defaults()
    root.handlers[:] = before
    root.setLevel(level)


def test_a_terminal_obeys_nothing_of_a_log(stream: io.StringIO) -> None:
    """Names, values, errors with their tracebacks, other libraries' lines: control characters are shown as escapes."""
    log = structlog.get_logger("test")
    log.info(EVIL, **{EVIL: 1, "value": EVIL, "object": Evil(), "inner": {EVIL: [EVIL]}, "mute": Mute()})
    try:
        int(EVIL)
    except ValueError:
        log.exception("failed")
        logging.getLogger("other").exception("failed %s", EVIL)
    text = stream.getvalue()
    for colour in range(1, 100):
        text = text.replace(f"\x1b[{colour}m", "")
    text = text.replace("\x1b[0m", "")
    assert text.count("ValueError") >= 2
    assert {"\x1b", "\x07", "\u202e"}.isdisjoint(text)
    assert "<Mute>" in text
    if not stream.isatty():
        assert [json.loads(line)["event"] for line in text.splitlines()][1:] == ["failed", f"failed {EVIL}"]


def test_no_line_of_a_log_is_forged() -> None:
    """T23: what a task says of itself stays one line, whatever ends of lines stand in its names, values and errors."""
    out = io.StringIO()
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    forged = '\n{"event": "task.completed", "level": "info"}\r\n\x85\u2028\u2029\x0b\x0c'
    try:
        observability.configure(out)
        log = structlog.get_logger("test")
        log.info(forged, **{forged: forged, "list": [forged]})
        try:
            int(forged)
        except ValueError:
            log.exception(forged)
            logging.getLogger("other").exception("failed %s", forged)
    finally:
        structlog.reset_defaults()
        root.handlers[:] = before
        root.setLevel(level)
    lines = out.getvalue().splitlines()
    assert [json.loads(line)["event"] for line in lines] == [forged, forged, f"failed {forged}"]
