"""A survey of Python source code: one task plans, one measures each package, one writes the report.

`survey.plan` enqueues a `survey.package` for each package that it finds; when they have ended, `survey.report` writes
what they found as Markdown and CSV. Each package is measured in steps of a few files, so a survey that is killed goes
on with the files that come next.

With `witness`, the path of a log file, every step notes there what it does (see `effects`).
"""

from __future__ import annotations

import asyncio
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from taskrunner import TaskCancelled, TaskContext, TaskFailed, TaskRunner, Tasks
from taskrunner.workers.effects import witnessed
from taskrunner.workers.source import Measures, find_packages, measure_files
from taskrunner.workers.survey_report import Collected, PackageReport, as_csv, as_markdown, note, write_file

tasks = Tasks("survey.")
"""The three task types: `survey.plan`, `survey.package` and `survey.report`."""

FILES_PER_STEP = 3
MOST_STEPS = 40
"""A package of many files has that many steps, of more files each."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What `survey.plan` returns: the folder, the task of each package by the package's name, and how many files."""

    root: str
    packages: dict[str, str]
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `survey.report` returns: the files that it wrote, and the totals."""

    markdown: str
    csv: str
    packages: int
    missing: int
    totals: Measures


def app() -> TaskRunner:
    """A runner with these task types; flags, settings or the environment name its store."""
    runner = TaskRunner()
    runner.include(tasks)
    return runner


@tasks.task(name="plan")
async def plan(
    ctx: TaskContext,
    survey: str,
    *,
    root: str | None = None,
    limit: int | None = None,
    tests: bool = True,
    witness: str | None = None,
    pace: float = 0.0,
) -> Planned:
    """Find the packages below `root` (default: the standard library's folder) and enqueue a task for each.

    `survey` names this survey: another plan of that name finds the tasks of the first. `limit` takes that many
    packages, the largest; `tests` says whether test suites count; `pace` is seconds to wait in every step.
    """
    planned = await ctx.step(
        "enqueue", _enqueue_packages, survey, root=root, limit=limit, tests=tests, witness=witness, pace=pace
    )
    await ctx.progress(1.0, f"{len(planned.packages)} packages")
    return planned


@tasks.task(name="package", timeout="15m")
async def package(
    ctx: TaskContext, name: str, root: str, files: list[str], *, witness: str | None = None, pace: float = 0.0
) -> PackageReport:
    """Measure the files of one package, given relative to `root`, a few in each step."""
    found = PackageReport(package=name)
    for number, part in enumerate(_parts(files)):
        found.add(await ctx.step("parse", _parse_files, number, root, part, witness, pace))
        await ctx.progress(found.files / len(files), f"{found.files} of {len(files)} files")
    if ctx.task.session_id is not None:
        await ctx.session.add("assistant", note(found))
    return found


@tasks.task(name="report")
async def report(ctx: TaskContext, plan_id: str, out: str, witness: str | None = None) -> Report:
    """Write the report of a survey, whose plan is the task `plan_id`, to the folder `out` as Markdown and as CSV.

    It waits for the survey's tasks. A package whose task failed or was cancelled is named in the report.
    """
    collected = await ctx.step("collect", _collect, plan_id, witness)
    await ctx.progress(0.5, f"{len(collected.reports)} packages")
    return await ctx.step("write", _write, collected, out, witness)


async def _enqueue_packages(
    survey: str, *, root: str | None, limit: int | None, tests: bool, witness: str | None, pace: float
) -> Planned:
    folder = root or sysconfig.get_paths()["stdlib"]
    session_id = TaskContext.current().task.session_id
    with witnessed(witness, "enqueue[0]"):
        found = find_packages(folder, tests=tests, limit=limit)
        # Together, so that they share commits. Each has a key: when this step is cut short and runs again, it finds
        # the tasks that are there.
        handles = await asyncio.gather(
            *(
                package.options(idempotency_key=f"{survey}: {each.name}", session_id=session_id).enqueue(
                    each.name, folder, each.files, witness=witness, pace=pace
                )
                for each in found
            )
        )
    task_ids = {each.name: handle.id for each, handle in zip(found, handles, strict=True)}
    return Planned(folder, task_ids, sum(len(each.files) for each in found))


def _parts(files: list[str]) -> Iterator[list[str]]:
    size = max(FILES_PER_STEP, -(-len(files) // MOST_STEPS))
    for start in range(0, len(files), size):
        yield files[start : start + size]


def _parse_files(number: int, root: str, files: list[str], witness: str | None, pace: float) -> Measures:
    with witnessed(witness, f"parse[{number}]"):
        if pace:
            time.sleep(pace)
        return measure_files(root, files)


async def _collect(plan_id: str, witness: str | None) -> Collected:
    with witnessed(witness, "collect[0]"):
        planned = await plan.handle(plan_id).result()
        collected = Collected(root=planned.root)
        for name, task_id in planned.packages.items():
            try:
                collected.reports.append(await package.handle(task_id).result())
            except (TaskFailed, TaskCancelled) as error:
                collected.missing[name] = str(error)
        return collected


def _write(collected: Collected, out: str, witness: str | None) -> Report:
    folder = Path(out)
    with witnessed(witness, "write[0]"):
        folder.mkdir(parents=True, exist_ok=True)
        markdown = write_file(folder / "survey.md", as_markdown(collected, TaskContext.current().now()))
        csv = write_file(folder / "survey.csv", as_csv(collected))
        return Report(
            markdown=str(markdown),
            csv=str(csv),
            packages=len(collected.reports),
            missing=len(collected.missing),
            totals=collected.totals(),
        )
