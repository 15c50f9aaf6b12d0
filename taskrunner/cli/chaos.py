"""`taskrunner chaos`: faults of every kind against the real thing, on this machine, and what came of them."""

from __future__ import annotations

import sys

import click

from taskrunner.chaos.campaign import run
from taskrunner.chaos.kinds import KINDS, WHOLE
from taskrunner.chaos.report import Report
from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.endings import DONE, FAILED
from taskrunner.core.clock import Clock


@click.command("chaos")
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 1_440),
    default=1.0,
    show_default=True,
    metavar="N",
    help=f"How much: {WHOLE:g} is a whole run, which takes about as many minutes on two cores.",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), metavar="S", help="What repeats a run [default: by chance].")
@click.option("--kind", "names", type=click.Choice(list(KINDS)), multiple=True, help="Only this; may be repeated.")
@json_option
@door_options
@click.pass_obj
def chaos_command(_door: Door, /, *, minutes: float, seed: int | None, names: tuple[str, ...], in_json: bool) -> int:
    """Try to break taskrunner on this machine: kill it, stop it, cut its power, let its disk fail.

    It works on stores of its own in a temporary folder, and touches no other. What has to be reached grows with the
    minutes; it ends with 1 when a promise was broken, or when something was not reached often enough to prove anything.
    """
    seed = Clock().bits(31) if seed is None else seed
    kinds = [kind for name, kind in KINDS.items() if not names or name in names]
    if names and (lacking := [sentence for kind in kinds if (sentence := kind.lacks())]):
        raise click.UsageError("; ".join(lacking))
    if not in_json:
        terminal.say(f"seed {seed}, {minutes:g} minutes: {', '.join(kind.name for kind in kinds)}")
        sys.stdout.flush()
    with terminal.progress() as show:
        show(f"{len(kinds)} kinds of faults are at work")

        def tell(line: str) -> None:
            show("")
            if not in_json:
                terminal.say(line)
                sys.stdout.flush()

        report = run(kinds, seed, minutes, tell)
    if in_json:
        terminal.print_json(_document(report))
    else:
        _print(report)
    return DONE if report.is_good else FAILED


def _print(report: Report) -> None:
    terminal.say()
    terminal.print_table(
        ("kind", "reached", "floor", "what", "per minute"),
        [
            (
                line.kind,
                f"{line.reached:,}",
                f"{line.floor:,}{' missed' if line.missed else ''}",
                line.what,
                f"{60 * line.reached / line.seconds:,.0f}" if line.seconds else "-",
            )
            for line in report.lines
        ],
    )
    ended = {how: sum(tally.outcomes.get(how, 0) for tally in report.tallies) for how in ("ok", "failed", "unknown")}
    if any(ended.values()):
        terminal.say("\nCalls that met a fault: " + ", ".join(f"{number:,} {how}" for how, number in ended.items()))
    for tally in report.tallies:
        terminal.print_section(tally.kind, tally.notes)
    terminal.print_section("problems", report.complaints())
    terminal.say(f"\n{report.sentence()}")


def _document(report: Report) -> dict[str, object]:
    import msgspec

    built: dict[str, object] = msgspec.to_builtins(report)
    return built | {"faults": report.faults, "breaches": report.breaches, "good": report.is_good}
