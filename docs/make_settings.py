"""Write docs/settings.md from the table of settings in the code: `python docs/make_settings.py`."""
# ruff: noqa: INP001 - a folder of pages, no package

from __future__ import annotations

import inspect
from pathlib import Path

from taskrunner import TaskRunner
from taskrunner.cli.run import run_command
from taskrunner.core.settings import KNOBS, Knob

PAGE = Path(__file__).with_name("settings.md")

HEAD = """\
# Settings

Written by `python docs/make_settings.py` from the code's own table; a test sees that it is up to date.

A setting has the same name everywhere. It may be given in five ways, of which the first one that is there counts:

1. as a flag of `taskrunner run` (`--db` is a flag of every command);
2. by `runner.override(…)`, for tests and for programs that start yours, and as a keyword of `run` and `working`;
3. in code, as a keyword of `TaskRunner(…)`, whose first argument is the store;
4. in the environment, where an empty variable counts as not given;
5. in the table `[tool.taskrunner]` of the `pyproject.toml` in the current folder.

Code comes before the environment, so that a stray variable cannot send a test to another store: leave a setting out
of the code to give it from outside. So `TASKRUNNER_DB` does not move a runner whose path is in code; `--db` and
`runner.override(db=…)` do. `taskrunner config` shows every value, and where it comes from. A setting that
does not exist, is out of its bounds or contradicts another one is refused in one sentence when the runner is opened.

Durations are seconds, or a number with a unit: `250ms`, `90s`, `15m`, `2h`, `30d`. Sizes are bytes, or such as `500kB`
and `2MiB`.

"""


def page() -> str:
    """The whole page."""
    rows = ["| setting | default | in code | environment | flag |", "|---|---|---|---|---|"]
    rows += [
        f"| `{knob.name}` | {_default(knob)} | {_in_code(knob)} | `{knob.variable}` | {_flag(knob)} |" for knob in KNOBS
    ]
    parts = [f"**`{knob.name}`**: {knob.doc}" for knob in KNOBS]
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join(parts) + "\n"


def _default(knob: Knob) -> str:
    if knob.name == "db":
        return "none"
    if knob.default is None:
        return knob.none
    if isinstance(knob.default, float):
        return f"{knob.default:g} s"
    if isinstance(knob.default, int) and not isinstance(knob.default, bool):
        return f"{knob.default:,}"
    return str(knob.default).lower()


def _in_code(knob: Knob) -> str:
    if knob.name == "db":
        return "`TaskRunner(path)`"
    if knob.name in inspect.signature(TaskRunner).parameters:
        return "`TaskRunner`"
    both = [name for name in ("run", "working") if knob.name in inspect.signature(getattr(TaskRunner, name)).parameters]
    return ", ".join(f"`{name}`" for name in both)


def _flag(knob: Knob) -> str:
    return next(f"`{option.opts[0]}`" for option in run_command.params if option.name == knob.name)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
