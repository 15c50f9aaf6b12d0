"""`taskrunner demo`: a long job over real files, killed half-way, and what came of it."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import anyio
import click

from taskrunner import TaskRunner
from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options
from taskrunner.cli.demo_figures import Figures, figures_of, unwitnessed
from taskrunner.cli.demo_supervisor import Supervisor
from taskrunner.cli.demo_survey import ENDED, Look, Survey, make_folder
from taskrunner.cli.demo_view import View, make_view
from taskrunner.cli.endings import DONE, FAILED, INTERRUPTED
from taskrunner.workers.effects import read
from taskrunner.workers.survey import Report, tasks

KILL_AFTER: Final = 0.4
"""The part of the packages after which the supervisor is killed."""

PAUSE: Final = 0.05
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for."""

    db: Path
    out: Path
    kill: bool
    concurrency: int
    limit: int | None
    tests: bool
    pace: float


@click.command("demo")
@click.option("--no-kill", is_flag=True, help="Do not kill the supervisor.")
@click.option(
    "--out", metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="The folder for the report."
)
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, metavar="N", help="Packages at a time."
)
@click.option("--packages", type=click.IntRange(1), metavar="N", help="Only so many packages, the largest.")
@click.option("--no-tests", is_flag=True, help="Leave the standard library's own test suites out.")
@click.option(
    "--pace", type=click.FloatRange(0, 60), default=0.0, metavar="SECONDS", help="Wait so long in every step."
)
@door_options
@click.pass_obj
def demo_command(
    door: Door,
    /,
    *,
    no_kill: bool,
    out: Path | None,
    concurrency: int,
    packages: int | None,
    no_tests: bool,
    pace: float,
) -> int:
    """Survey the Python standard library of this machine, kill the supervisor half-way, and prove what came of it.

    It needs no network. Every step notes in a log outside the database what it does, and the demo which steps were
    recorded before it starts another supervisor; what is proved is derived from that log. The same command with the
    same --db goes on with a survey that was interrupted, whoever killed what.
    Without --db it makes a fresh folder; it never touches the store that TASKRUNNER_DB names.
    """
    db, out = _places(door.db, out)
    asked = Plan(
        db=db, out=out, kill=not no_kill, concurrency=concurrency, limit=packages, tests=not no_tests, pace=pace
    )
    try:
        return anyio.run(_demo, asked)
    except KeyboardInterrupt:
        kept = " --no-kill" if no_kill else ""
        terminal.say(f"Stopped, and nothing is lost. To go on: {_command()} --db {shlex.quote(str(db))}{kept}")
        return INTERRUPTED


async def _demo(asked: Plan) -> int:
    runner = TaskRunner(asked.db)
    runner.include(tasks)
    async with runner:
        survey = await Survey.begin(
            runner, witness=asked.out / "effects.log", limit=asked.limit, tests=asked.tests, pace=asked.pace
        )
        terminal.say(f"{'Going on with the' if survey.continued else 'A'} survey of the Python standard library")
        terminal.say(f"  store   {asked.db}\n  folder  {survey.witness.parent}")
        await survey.note_recorded()
        with Supervisor(asked.db, survey.witness, asked.concurrency) as supervisor, make_view() as view:
            await _watch(survey, supervisor, view, kill=asked.kill)
            report = await _report(survey, supervisor)
        return await _prove(survey, report, kill=asked.kill)


async def _watch(survey: Survey, supervisor: Supervisor, view: View, *, kill: bool) -> None:
    """Keep the survey going until all packages have ended, and kill its supervisor once on the way."""
    to_kill = kill and not any(effect.event == "kill" for effect in read(survey.witness))
    while not (look := await survey.look()).done:
        view.show(look)
        if to_kill and await _is_half_way(survey, look):
            to_kill = False
            supervisor.kill()
            view.say(f"kill -9: the supervisor is gone, with {len(look.running)} packages under way")
        if supervisor.died:
            await survey.note_recorded()
            view.say("The supervisor has died; another one goes on")
        supervisor.ensure()
        await anyio.sleep(PAUSE)
    view.show(look)


async def _is_half_way(survey: Survey, look: Look) -> bool:
    if look.total is None or look.ended < KILL_AFTER * look.total:
        return False
    return await survey.has_steps(look.running)


async def _report(survey: Survey, supervisor: Supervisor) -> Report:
    handle = await survey.report(survey.witness.parent)
    while await handle.status() not in ENDED:
        supervisor.ensure()
        await anyio.sleep(PAUSE)
    return await handle.result()


async def _prove(survey: Survey, report: Report, *, kill: bool) -> int:
    effects = read(survey.witness)
    figures = figures_of(effects)
    missing, notes = await survey.missing(), await survey.notes()
    strange = unwitnessed(await survey.recorded(), effects)
    terminal.say(f"\nWhat happened, by {survey.witness}, which was written outside the database:")
    terminal.print_fields(_lines(figures, report, missing, notes))
    terminal.say(f"\nThe report:\n  {report.markdown}\n  {report.csv}")
    wrong = [
        *(f"recorded, and run again: {each}" for each in figures.repeated),
        *(f"on disk, and not measured: {each}" for each in missing),
        *(f"recorded, and never run: {each}" for each in strange),
    ]
    if notes != report.packages:
        wrong.append(f"{report.packages} packages have left {notes} notes in the session, and not one each")
    if kill and not figures.restarts:
        wrong.append("the survey ended before its supervisor could be killed: try --pace 0.1, or more --packages")
    for each in wrong:
        terminal.complain(each)
    return FAILED if wrong else DONE


def _lines(figures: Figures, report: Report, missing: list[str], notes: int) -> list[tuple[str, str]]:
    lines = [
        ("  packages measured", f"{report.packages:,} ({report.totals.files:,} files, {report.totals.lines:,} lines)"),
        ("  packages lost", f"{len(missing)}"),
        ("  notes in the session, one per package", f"{notes}"),
        ("  steps run to their end", f"{figures.steps:,}"),
    ]
    for number, restart in enumerate(figures.restarts, start=1):
        which = "" if len(figures.restarts) == 1 else f", {number}"
        lines.append((f"  steps recorded before the restart{which}", f"{restart.recorded:,}"))
        if restart.recovery is not None:
            lines.append((f"  from restart to the next step{which}", f"{restart.recovery:.2f} s"))
    lines.append(("  recorded steps run again", f"{len(figures.repeated)}"))
    lines.append(("  steps under way at a restart and run again", f"{figures.cut_short}"))
    return lines


def _command() -> str:
    """The command that began this demo, as its user has typed it."""
    if typed := os.environ.get("DEMO_COMMAND"):
        return typed
    return "taskrunner demo" if Path(sys.argv[0]).name == "taskrunner" else "python -m taskrunner demo"


def _places(db: str | None, out: Path | None) -> tuple[Path, Path]:
    """The store, and the folder for the report: what was asked for, or a fresh folder below the current one."""
    if db is not None:
        store = Path(db).absolute()
        return store, (out or store.with_name(f"{store.stem}-report")).absolute()
    folder = out or _fresh_folder()
    make_folder(folder)
    return folder.absolute() / "demo.db", folder.absolute()


def _fresh_folder() -> Path:
    folder = next(path for number in count(1) if not (path := Path(f"taskrunner-demo-{number}")).exists())
    make_folder(folder)
    return folder
