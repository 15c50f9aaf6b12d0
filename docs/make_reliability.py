"""Write the tables of docs/reliability.md: `python docs/make_reliability.py`.

Two come from the code; the figures come from docs/chaos.json, which is what `taskrunner chaos --json` has written.
"""
# ruff: noqa: INP001 - a folder of pages, no package

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from taskrunner.chaos.kinds import KINDS
from taskrunner.chaos.plants import PLANTS

PAGE = Path(__file__).with_name("reliability.md")
FIGURES = Path(__file__).with_name("chaos.json")


def page() -> str:
    """The page, with its tables written anew."""
    text = PAGE.read_text(encoding="utf-8")
    for name, made in (("kinds", kinds()), ("bugs", bugs()), ("figures", figures())):
        text, found = re.subn(
            f"(<!-- {name} -->\n).*?(<!-- /{name} -->\n)",
            lambda match, made=made: f"{match[1]}{made}\n{match[2]}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
        assert found == 1, name  # noqa: S101 - a page without the place for its table
    return text


def kinds() -> str:
    """What each kind of fault does, and has to reach in a whole run."""
    rows = ["| `--kind` | what it does | has to reach, in 20 minutes |", "|---|---|---|"]
    for kind in KINDS.values():
        floors = ", ".join(f"{floor:,} {what}" for what, floor in kind.floors.items())
        rows.append(f"| `{kind.name}` | {kind.what} | {floors} |")
    return "\n".join(rows)


def bugs() -> str:
    """The planted bugs, and who has to find them."""
    rows = ["| planted | has to be found by |", "|---|---|"]
    rows += [f"| {plant.what} | `{plant.kind}` |" for plant in PLANTS.values()]
    return "\n".join(rows)


def figures() -> str:
    """What the last whole run has reached."""
    run: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    by = run["breaches"]
    said = f"**{run['faults']:,} faults, {by['lost']} lost, {by['doubled']} doubled, {by['corrupt']} corrupt, "
    said += f"{by['zombie']} writes of zombies accepted** (seed {run['seed']}, {run['seconds'] / 60:.1f} minutes)"
    rows = ["| `--kind` | reached | a minute |", "|---|--:|--:|"]
    for line in run["lines"]:
        rate = f"{60 * line['reached'] / line['seconds']:,.0f}" if line["seconds"] else ""
        rows.append(f"| `{line['kind']}` | {line['reached']:,} {line['what']} | {rate} |")
    notes = [note for tally in run["tallies"] for note in tally["notes"]]
    return "\n".join([said, "", *rows, *(["", *(f"- {note}" for note in notes)] if notes else [])])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
