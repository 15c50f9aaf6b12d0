"""The table that people read, and the JSON that programs read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.measure import Result

HEADS = ("", "sync", "taskrunner", "beside it", "ratio", "target", "CPU µs (beside)")
RULE = "─"


def table(results: Sequence[Result]) -> str:
    """One line for each result, under a head."""
    lines = [HEADS, *(_cells(result) for result in results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    rule = RULE * (sum(widths) + 2 * (len(widths) - 1))
    head, *body = [_line(line, widths) for line in lines]
    return "\n".join([head, rule, *body])


def facts_line(facts: dict[str, str]) -> str:
    """The machine in one line."""
    return " · ".join(f"{name} {value}" for name, value in facts.items())


def as_json(facts: dict[str, str], results: Sequence[Result]) -> str:
    """The same for programs."""
    rows = [{**asdict(result), "is_met": result.is_met} for result in results]
    return json.dumps({"machine": facts, "results": rows}, indent=1, ensure_ascii=False)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, sync, *figures = cells
    right = (figure.rjust(width) for figure, width in zip(figures, widths[2:], strict=True))
    return "  ".join([name.ljust(widths[0]), sync.ljust(widths[1]), *right]).rstrip()


def _cells(result: Result) -> tuple[str, ...]:
    sign = "≥" if result.at_least else "≤"
    verdict = "" if result.is_met else " missed"
    return (
        result.name,
        (result.durability or "").upper(),
        _figure(result.ours, result.unit),
        "" if result.beside is None else f"{_figure(result.beside, result.unit)} {result.beside_what}",
        "" if result.ratio is None else f"{result.ratio:.2f}",
        "" if result.target is None else f"{sign} {result.target:.1f}{verdict}",
        "" if result.cpu is None else f"{result.cpu[0]:.0f} ({result.cpu[1]:.0f})",
    )


def _figure(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"  # noqa: PLR2004 - three digits say enough
    return f"{number} {unit}" if unit[0].isalpha() or unit[0] in "µ%" else f"{number}{unit}"
