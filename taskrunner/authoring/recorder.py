"""What an attempt may write, and whether it still may: everything goes through here, under the fence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taskrunner.authoring.history import History, Number
from taskrunner.core.errors import AttemptOver, LeaseLost, NonDeterministicStep
from taskrunner.core.model import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskrunner.core.clock import Clock
    from taskrunner.core.model import Fence
    from taskrunner.storage.engine import Rows, Statement
    from taskrunner.storage.store import Store


@dataclass(slots=True)
class _Pending:
    """A record that waits for its caller's next write: a failure that the body caught, or a value of the clock."""

    caller: object
    statement: Statement


class Recorder:
    """One attempt's pen. It belongs to the event loop."""

    def __init__(self, store: Store, fence: Fence, clock: Clock, history: History) -> None:
        self.store = store
        self.fence = fence
        self.clock = clock
        self.history = history
        self.over: AttemptOver | None = None
        """Why this attempt may do nothing more: its task is gone, or its code is another."""
        self.ending: AttemptOver | None = None
        """Why it takes no new steps: it is asked to end, and may clean up."""
        self.recorded_steps = 0
        self._pending: list[_Pending] = []
        self._progress: tuple[float, str] | None = None

    def check(self, *, new_step: bool = False) -> None:
        """Refuse to go on when the attempt is over, or for a new step when it is asked to end."""
        if self.over is not None:
            raise self.over
        if new_step and self.ending is not None:
            raise self.ending

    def end(self, error: AttemptOver) -> AttemptOver:
        """Mark the attempt as over, whatever its code catches, and return the error to raise."""
        if self.over is None:
            self.over = error
        return self.over

    def recorded(self, number: Number, digest: str) -> Step | None:
        """What an earlier attempt has recorded for this call.

        Raises:
            NonDeterministicStep: the body takes other steps, or gives this one other arguments, than are recorded.
        """
        try:
            step = self.history.recorded(number)
        except NonDeterministicStep as error:
            raise self.end(error) from None
        if step is not None and step.digest != digest:
            message = f"step {number.label!r} was recorded with other arguments than it is called with now"
            raise self.end(NonDeterministicStep(message))
        return step

    def step(
        self, number: Number, digest: str, *, value: str | None, failure: tuple[str, str] | None = None
    ) -> Statement:
        """The record of a call: its value as JSON text, or the type and text of its error."""
        error_type, error = failure or (None, None)
        record = Step(
            scope=number.scope,
            name=number.name,
            occurrence=number.occurrence,
            position=number.position,
            turn=number.turn,
            digest=digest,
            value=value,
            error_type=error_type,
            error=error,
            attempt=self.fence.attempt,
            created_at=self.clock.now(),
        )
        return self.store.journal.record(self.fence, record)

    def postpone(self, caller: object, statement: Statement) -> None:
        """Keep a record for the caller's next write."""
        self._pending.append(_Pending(caller, statement))

    async def write(self, statements: Sequence[Statement], caller: object) -> list[Rows]:
        """Commit statements with what this caller has postponed and the latest progress; the rows of the given ones.

        Raises:
            LeaseLost: the task was taken from this attempt, and nothing was written.
        """
        self.check()
        riders = [pending for pending in self._pending if pending.caller is caller]
        progress, self._progress = self._progress, None
        ride = [rider.statement for rider in riders]
        if progress is not None:
            ride.append(self.store.tasks.progress(self.fence, *progress))
        self._pending = [pending for pending in self._pending if pending not in riders]
        try:
            results = await self.store.journal.write([*ride, *statements])
        except LeaseLost as lost:
            raise self.end(lost) from None
        except BaseException:
            self._pending = [*riders, *self._pending]
            self._progress = self._progress or progress
            raise
        return results[len(ride) :]

    def show(self, fraction: float, message: str) -> None:
        """Keep the latest progress; it is written with the next step, or by `take_progress`."""
        shown = self._progress[0] if self._progress else 0.0
        self._progress = (max(shown, fraction), message)

    def take_progress(self) -> Statement | None:
        """The progress that is not yet written, if the attempt still may write."""
        if self._progress is None or self.over is not None:
            return None
        (fraction, message), self._progress = self._progress, None
        return self.store.tasks.progress(self.fence, fraction, message)

    def take_pending(self) -> list[Statement]:
        """All that was postponed, for the commit that ends a completed attempt."""
        pending, self._pending = self._pending, []
        return [record.statement for record in pending]
