"""The demo's view of its survey: begin it or find it, look at it, and what the store holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from taskrunner import Session, Task, TaskHandle, TaskRunner
from taskrunner.cli.endings import Trouble
from taskrunner.workers.effects import Effect, append, read
from taskrunner.workers.source import find_packages
from taskrunner.workers.survey import Planned, Report, package, plan, report

KEY: Final = "demo"
"""The idempotency key of the demo's tasks: there is one survey in a store, whoever asks for it how often."""

TITLE: Final = "A survey of the Python standard library"
ENDED: Final = frozenset({"completed", "failed", "cancelled"})
MOST_PACKAGES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Look:
    """How far the survey is."""

    total: int | None = None
    """Packages; None: the plan is not made yet."""
    ended: int = 0
    running: Sequence[Task] = field(default_factory=tuple)

    @property
    def done(self) -> bool:
        """Whether every package's task has ended."""
        return self.total is not None and self.ended >= self.total


def make_folder(path: Path) -> None:
    """Make a folder for what a survey writes, unless it is there.

    Raises:
        Trouble: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{path}: this folder cannot be made ({error.strerror}); name another one with --out"
        raise Trouble(message) from error


class Survey:
    """One survey in a store, seen by a client."""

    def __init__(self, runner: TaskRunner, session: Session, handle: TaskHandle[Planned], task: Task) -> None:
        self._runner = runner
        self._session = session
        self._plan = handle
        self._input = task.input
        self.witness = Path(task.input["witness"])
        self.continued = task.attempt > 0

    @classmethod
    async def begin(cls, runner: TaskRunner, *, witness: Path, limit: int | None, tests: bool, pace: float) -> Self:
        """Begin the survey of this store, or find the one that was begun; its own input then holds."""
        sessions = await runner.sessions.list()
        session = next((each for each in sessions if each.title == TITLE), None)
        if session is None:
            make_folder(witness.parent)
            session = await runner.sessions.create(title=TITLE)
        handle = await plan.options(idempotency_key=KEY, session_id=session.id).enqueue(
            KEY, limit=limit, tests=tests, witness=str(witness), pace=pace
        )
        survey = cls(runner, session, handle, await handle.task())
        make_folder(survey.witness.parent)
        return survey

    async def look(self) -> Look:
        """See how far it is.

        Raises:
            Trouble: its plan has failed.
        """
        task = await self._plan.task()
        if task.status != "completed":
            if task.status in ENDED:
                message = f"the plan has {task.status}: {task.error_message or 'without a word'}"
                raise Trouble(message)
            return Look()
        planned = await self._plan.result()
        tasks = await self._packages()
        ended = sum(1 for task in tasks if task.status in ENDED)
        return Look(len(planned.packages), ended, [task for task in tasks if task.status == "running"])

    async def has_steps(self, tasks: Sequence[Task]) -> bool:
        """Whether one of these tasks has recorded a step."""
        for task in tasks:
            if (await self._runner.handle(task.id).info()).steps:
                return True
        return False

    async def recorded(self) -> list[tuple[str, str]]:
        """Every step of the survey's tasks that the store holds: (task id, step)."""
        tasks = await self._runner.tasks.list(session_id=self._session.id, limit=MOST_PACKAGES)
        infos = [await self._runner.handle(task.id).info() for task in tasks]
        return [(info.task.id, f"{step.name}[{step.occurrence}]") for info in infos for step in info.steps]

    async def note_recorded(self) -> None:
        """Note in the effect log which steps the store holds by now: none of them may run again."""
        known = {(effect.task, effect.step) for effect in read(self.witness) if effect.event == "recorded"}
        news = [step for step in await self.recorded() if step not in known]
        append(self.witness, [Effect(event="recorded", task=task, step=step) for task, step in news])

    async def report(self, out: Path) -> TaskHandle[Report]:
        """Have the report written to the folder `out`, or find the task that did."""
        options = report.options(idempotency_key=KEY, session_id=self._session.id)
        return await options.enqueue(self._plan.id, str(out), str(self.witness))

    async def missing(self) -> list[str]:
        """The packages on disk that no task of this survey has measured. There must be none."""
        planned = await self._plan.result()
        on_disk = find_packages(planned.root, tests=self._input["tests"], limit=self._input["limit"])
        tasks = await self._packages()
        measured = {task.input["name"] for task in tasks if task.status == "completed"}
        return [each.name for each in on_disk if each.name not in measured]

    async def notes(self) -> int:
        """How many notes the survey's tasks have added to its session."""
        return len(await self._session.recent(MOST_PACKAGES))

    async def _packages(self) -> list[Task]:
        return await self._runner.tasks.list(type=package.name, session_id=self._session.id, limit=MOST_PACKAGES)
