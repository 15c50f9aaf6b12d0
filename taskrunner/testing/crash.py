"""Every crash that a task can meet: killed for real at each commit of its life, and gone on with by a new process."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from taskrunner.app import TaskRunner
from taskrunner.authoring.definition import BoundTask
from taskrunner.core.durations import Duration, seconds
from taskrunner.core.errors import InvalidInput, TaskRunnerError, UnknownTask
from taskrunner.core.places import shown
from taskrunner.runtime import origin
from taskrunner.testing.lives import Lives
from taskrunner.testing.orders import DB, END, HELLO, Commit, End, Hello, Killed, Log, Order, Repeated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from taskrunner.authoring.definition import TaskDefinition
    from taskrunner.core.model import JSON
    from taskrunner.runtime.origin import Origin
    from taskrunner.testing.orders import Moment

IMPORT: Final = 60.0
"""Seconds in which the app is imported and the task enqueued, at least."""

DEATHS: Final = 10
"""How often a run's process may end by itself beyond the `max_losses` after which its task is quarantined."""

_NAME: Final = "crash_sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRun:
    """One run of the task, from its first claim to its end."""

    killed: str
    """Where its process was killed, such as "before commit 3 (step 'charge')"; empty: nowhere."""
    result: JSON
    """What the task returned; "failed: TYPE: WHY" or "cancelled" if it did not."""
    repeated_steps: list[str]
    """The steps whose function was called again though their record had been committed before the kill."""
    commits: list[str]
    """What its commits wrote, in their order."""


@dataclass(slots=True)
class Sweep:
    """What came of the runs of a sweep."""

    kills: int = 0
    """How often a process was killed: once in each run but the first and the last."""
    results: list[JSON] = field(default_factory=list)
    """What each run gave: the task's result, or the text "failed: TYPE: WHY" or "cancelled"."""
    repeated_steps: list[str] = field(default_factory=list)
    """Steps whose function was called again though their record had been committed before the kill; each once."""
    runs: list[SweptRun] = field(default_factory=list)
    """The same by run, with the place of each kill."""

    def add(self, run: SweptRun) -> None:
        """Count a run in."""
        self.runs.append(run)
        self.kills += bool(run.killed)
        self.results.append(run.result)
        self.repeated_steps += [label for label in run.repeated_steps if label not in self.repeated_steps]


async def crash_sweep(
    bound: BoundTask[Any],
    /,
    *,
    check: Callable[[], object] | None = None,
    timeout: Duration = "60s",  # noqa: ASYNC109 - of each run, not of this call
) -> Sweep:
    """Run a task once for each commit of its life, kill its process there with SIGKILL, and have a new one go on.

    The commits are all that a supervisor makes for it: its own beginning, the claim, each step's record, messages,
    progress, the end. At each there are two kills, before the COMMIT, when all is written but that, and after it, when
    nobody was told. A first run and a last one are not killed. What the task enqueues is worked on as well.

    Each run has a store of its own in a temporary file, with the runner's settings; its bodies run in the process that
    is killed (`processes` is 0). That imports the runner by its name, as child processes do, so what a test has patched
    is not patched there; environment, folder and files are the same. When nothing is due its clock is put forward, so a
    retry after an hour takes no hour. A task with a `session_id` finds an empty conversation of that id.

    `check` is called, and awaited, after each run. `timeout` is of each run (default: a minute).

    Raises:
        InvalidInput: not a bound task; or another process cannot import it, as the sentence says.
        UnknownTask: no runner includes this task.
        TimeoutError: a run has not ended in time, or waits for what never comes; the sentence says where it was killed.
        TaskRunnerError: a run's process ends by itself again and again, or cannot work at all.
        Exception: what `check` raised, with a note of where the run was killed.
    """
    if not isinstance(bound, BoundTask) or bound.definition is None:
        message = f"{_NAME}({shown(bound)}): a bound task is wanted, as task.bind(…) gives it"
        raise InvalidInput(message)
    limit = seconds(timeout, "timeout")
    runner, where = _home_of(bound.definition)
    sweep = Sweep()
    async with _begun(bound, runner, where, limit) as runs:
        first = await runs.run()
        sweep.add(first)
        await _checked(check, first)
        for number in count(1):
            for moment in _MOMENTS:
                run = await runs.run(number, moment)
                sweep.add(run)
                await _checked(check, run)
                if not run.killed and number > len(first.commits):
                    return sweep
    raise AssertionError  # the loop has no other end


_MOMENTS: Final[tuple[Moment, ...]] = ("before", "after")


def _home_of(definition: TaskDefinition[..., Any]) -> tuple[TaskRunner, Origin]:
    """The runner whose task is to be swept: one that another process finds by its name, and of several the open one."""
    runners = [host for host in definition.hosts if isinstance(host, TaskRunner)]
    if not runners:
        message = f"{_NAME}: task {definition.name!r} is in no runner: call runner.include(…) with its Tasks"
        raise UnknownTask(message)
    found: list[tuple[TaskRunner, Origin]] = []
    refused: InvalidInput | None = None
    for runner in runners:
        try:
            found.append((runner, origin.find(runner, runner.definitions, asked_by=_NAME)))
        except InvalidInput as error:
            refused = error
    if not found and refused is not None:
        raise refused
    chosen = [each for each in found if each[0].is_open] if len(found) > 1 else found
    if len(chosen) != 1:
        names = " and ".join(f"{where.module}:{where.name}" for _runner, where in found)
        message = f"{_NAME}: task {definition.name!r} is in {names}: open the one that is meant, and no other"
        raise InvalidInput(message)
    return chosen[0]


async def _checked(check: Callable[[], object] | None, run: SweptRun) -> None:
    if check is None:
        return
    try:
        answer = check()
        if isawaitable(answer):
            await answer
    except BaseException as error:
        error.add_note(f"{_NAME}: this came of the check after the run that {_told(run.killed)}")
        raise


def _told(killed: str) -> str:
    return f"was killed {killed}" if killed else "was not killed"


@asynccontextmanager
async def _begun(bound: BoundTask[Any], runner: TaskRunner, where: Origin, limit: float) -> AsyncIterator[_Runs]:
    """Import the app in another process, and enqueue the task there."""
    settings = runner.settings
    given = {name: getattr(settings, name) for name, route in settings.origins.items() if route in {"flag", "override"}}
    hello = Hello(
        origin=where,
        path=[os.fsencode(entry) for entry in sys.path if isinstance(entry, str)],
        argv=[os.fsencode(argument) for argument in sys.argv],
        settings={name: value for name, value in given.items() if name != "db"},
        new=bound.new,
    )
    with TemporaryDirectory(prefix="taskrunner-sweep-") as name:
        folder = Path(name)
        (folder / HELLO).write_bytes(msgspec.json.encode(hello))
        async with Lives(folder, asked_by=_NAME) as lives:
            runs = _Runs(folder, lives, bound.name, limit, settings.max_losses + DEATHS)
            await runs.begin()
            yield runs


class _Runs:
    """The runs of one sweep: each on a copy of the store in which the task was enqueued."""

    def __init__(self, folder: Path, lives: Lives, task: str, limit: float, most_deaths: int) -> None:
        self._folder = folder
        self._lives = lives
        self._task = task
        self._limit = limit
        self._most_deaths = most_deaths
        self._root = ""

    async def begin(self) -> None:
        """Enqueue the task in the store that is copied for each run."""
        limit = max(self._limit, IMPORT)
        with anyio.move_on_after(limit):
            await self._lives.live(Order(os.fsencode(self._folder)))
        end = _end_in(self._folder)
        if end is None:
            why = f"the process that imports the app and enqueues {self._task!r} has not done so"
            message = f"{_NAME}: {why} within {limit:g} seconds{self._lives.last_words()}"
            raise TaskRunnerError(message)
        if end.trouble:
            message = f"{_NAME}: {self._task!r} cannot be enqueued: {end.trouble}"
            raise TaskRunnerError(message)
        self._root = end.root

    async def run(self, number: int = 0, moment: Moment = "before") -> SweptRun:
        """Run the task to its end, killed at that commit; and see what came of it."""
        folder = self._folder / "run"
        folder.mkdir()
        shutil.copyfile(self._folder / DB, folder / DB)
        log = Log(folder)
        try:
            end: End | None = None
            with anyio.move_on_after(self._limit):
                end = await self._lived(folder, log, number, moment)
            lines = log.lines()
            commits = [line.what for line in lines if isinstance(line, Commit)]
            killed = next((f"{moment} commit {number} ({line.what})" for line in lines if isinstance(line, Killed)), "")
            if end is None or end.waits:
                raise TimeoutError(self._unended(killed, end, commits))
            if end.trouble:
                message = f"{_NAME}: the run that {_told(killed)} cannot go on: {end.trouble}"
                raise TaskRunnerError(message)
            repeated = list(dict.fromkeys(line.label for line in lines if isinstance(line, Repeated)))
            return SweptRun(killed=killed, result=_result(end), repeated_steps=repeated, commits=commits)
        finally:
            log.close()
            shutil.rmtree(folder, ignore_errors=True)

    async def _lived(self, folder: Path, log: Log, number: int, moment: Moment) -> End:
        order = Order(os.fsencode(folder), self._root, number, moment)
        deaths = 0
        while True:
            code = await self._lives.live(order)
            if (end := _end_in(folder)) is not None:
                return end
            if not order.kill_at or not any(isinstance(line, Killed) for line in log.lines()):
                deaths += 1
            else:
                order = Order(os.fsencode(folder), self._root)
            if deaths > self._most_deaths:
                why = f"the process of {self._task!r} ends by itself again and again: {code}"
                message = f"{_NAME}: {why}{self._lives.last_words()}"
                raise TaskRunnerError(message)

    def _unended(self, killed: str, end: End | None, commits: list[str]) -> str:
        message = f"{_NAME}: task {self._task!r} of the run that {_told(killed)} has not ended"
        if end is not None:
            return f"{message}, though all that is due has run: it waits for {end.waits}"
        last = f"; its last commit was: {commits[-1]}" if commits else ""
        return f"{message} within its timeout of {self._limit:g} seconds{last}{self._lives.last_words()}"


def _end_in(folder: Path) -> End | None:
    path = folder / END
    return msgspec.json.decode(path.read_bytes(), type=End) if path.exists() else None


def _result(end: End) -> JSON:
    if end.status == "completed":
        return end.output
    if end.status != "failed":
        return end.status
    named = end.error.startswith(f"{end.error_type}: ")
    return f"failed: {end.error}" if named else f"failed: {end.error_type}: {end.error}"
