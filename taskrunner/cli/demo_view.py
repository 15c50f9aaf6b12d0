"""The demo's progress, seen by a person or read from a pipe."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from taskrunner.cli import terminal
from taskrunner.cli.demo_survey import Look

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class PlainView:
    """One line for each tenth of the way."""

    def __init__(self) -> None:
        self._shown = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """There is nothing to put away."""

    def show(self, look: Look) -> None:
        """Show how far the survey is."""
        if look.total is None:
            return
        tenth = 10 * look.ended // max(1, look.total)
        if tenth != self._shown:
            self._shown = tenth
            self.say(f"{look.ended:>4} of {look.total} packages measured, {len(look.running)} under way")

    def say(self, text: str) -> None:
        """Say something between."""
        terminal.say(text)
        sys.stdout.flush()


class RichView:
    """A bar for the whole, and one for each package under way."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._whole = progress.add_task("packages", total=None)
        self._bars: dict[str, TaskID] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._progress)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def show(self, look: Look) -> None:
        """Show how far the survey is."""
        self._progress.update(self._whole, total=look.total, completed=look.ended)
        running = {task.id: task for task in look.running}
        for task_id in [task_id for task_id in self._bars if task_id not in running]:
            self._progress.remove_task(self._bars.pop(task_id))
        for task_id, task in running.items():
            if task_id not in self._bars:
                name = terminal.harmless(str(task.input["name"]))
                self._bars[task_id] = self._progress.add_task(f"  {name}", total=1.0)
            self._progress.update(self._bars[task_id], completed=task.progress)

    def say(self, text: str) -> None:
        """Say something above the bars."""
        self._progress.console.print(text, markup=False, highlight=False)


View = PlainView | RichView


def make_view() -> AbstractContextManager[View]:
    """The view that fits standard output."""
    if not terminal.is_terminal(sys.stdout):
        return PlainView()
    try:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        return PlainView()
    name = TextColumn("{task.description}", markup=False)
    return RichView(Progress(name, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), transient=True))
