"""What an attempt may write, and whether it still may: everything goes through here, under the fence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import anyio
import anyio.lowlevel

from taskrunner.authoring.history import History, Number
from taskrunner.authoring.log_lines import LogLines
from taskrunner.core.errors import AttemptOver, LeaseLost, NonDeterministicStep, StoreBusy
from taskrunner.core.loop import Reply, detach, has_ended, has_returned
from taskrunner.core.redaction import NOTHING, Redaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskrunner.core.clock import Clock
    from taskrunner.core.model import Fence, Step
    from taskrunner.storage.engine import Rows, Statement
    from taskrunner.storage.store import Store

Witness: TypeAlias = "Callable[[Fence, Number, Callable[..., Any], str, Step | None], None]"
"""Gets the attempt, the step's number, its function, the digest of its arguments and its record, if there is one."""

WRITE_AGAIN = 0.5
"""Seconds after which a write that met a locked or full store is tried again."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A record that waits for a write that may depend on it: a failure that the body caught, or a `ctx.now()`."""

    statement: Statement
    after: int
    """The number of calls when it came up: what was called before knows nothing of it."""
    lineage: tuple[object, ...] | None
    """Who a failure was raised to, or None for a value, which everybody may know."""

    def is_known_to(self, number: Number) -> bool:
        """Whether who called this may know of it.

        A failure that left its async task is known to those that the task descends from, which may have caught it:
        its siblings must not write it, for perhaps nobody catches it, and then it is to be run again.
        """
        if self.lineage is None:  # also of a step that was called before: it may have read the value since
            return True
        if number.call < self.after:
            return False
        if self.lineage[-1] is number.caller:
            return True
        if not has_ended(self.lineage[-1]):
            return False
        return number.caller in self.lineage or has_returned(self.lineage[-1])


class Recorder:
    """One attempt's pen. It belongs to the event loop."""

    witnesses: ClassVar[list[Witness]] = []
    """Who hears of each step that a body of this process asks for, before its function is called; for tests."""

    def __init__(
        self, store: Store, fence: Fence, clock: Clock, history: History, redaction: Redaction = NOTHING
    ) -> None:
        self.store = store
        self.redaction = redaction
        """What is hidden of this task's values in what people see."""
        self.fence = fence
        self.clock = clock
        self.history = history
        self.over: AttemptOver | None = None
        """Why this attempt may do nothing more: its task is gone, or its code is another."""
        self.ending: AttemptOver | None = None
        """Why it takes no new steps: it is asked to end, and may clean up."""
        self.on_first_step: Callable[[], None] | None = None
        """Who wants to hear that this attempt has recorded a step."""
        self._pending: list[_Pending] = []
        self._carrying: anyio.Event | None = None
        """Set when the write has ended that carries some of them; None: there is none under way."""
        self._carried: frozenset[_Pending] = frozenset()
        self._progress: tuple[float, str] | None = None
        self.lines = LogLines(clock)
        """What the body has logged and no write has carried along yet."""

    def check(self, *, new_step: bool = False) -> None:
        """Refuse to go on when the attempt is over, or for a new step when it is asked to end."""
        reason = self.over or (self.ending if new_step else None)
        if reason is not None:
            raise reason.with_traceback(None)  # which would grow with each time that it is raised

    async def admit(self, *, new_step: bool = False) -> None:
        """As `check`; but code that catches everything and asks again must not keep the event loop for itself."""
        try:
            self.check(new_step=new_step)
        except AttemptOver:
            await anyio.lowlevel.cancel_shielded_checkpoint()
            raise

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
        return self.store.journal.record(
            self.fence,
            scope=number.scope,
            name=number.name,
            occurrence=number.occurrence,
            position=number.position,
            turn=number.turn,
            digest=digest,
            value=value,
            error_type=error_type,
            error=error,
        )

    def postpone(self, number: Number, statement: Statement, *, failure: bool) -> None:
        """Keep a record for the next write that may depend on it."""
        lineage = number.lineage if failure else None
        self._pending.append(_Pending(statement, self.history.calls, lineage))

    async def write(self, statements: Sequence[Statement], number: Number) -> list[Rows]:
        """Commit statements with the records that they may depend on, the progress and the log; the former's rows.

        Raises:
            LeaseLost: the task was taken from this attempt, and nothing was written.
        """
        while True:
            if self.over is not None:
                await self.admit()
            riders = self._pending and [pending for pending in self._pending if pending.is_known_to(number)]
            if riders and self._carrying is not None:  # another write may be carrying them at this moment
                await self._carrying.wait()
                continue
            try:
                if riders or self._progress is not None or self.lines.waiting:
                    return await (self._carry(statements, riders) if riders else self._commit(statements, riders))
                return await self.store.journal.write(statements)
            except LeaseLost as lost:
                raise self.end(lost) from None
            except StoreBusy:  # however long it is locked or full: the body's work is done, and it is not at fault
                await anyio.sleep(WRITE_AGAIN)

    async def _carry(self, statements: Sequence[Statement], riders: Sequence[_Pending]) -> list[Rows]:
        """Commit with records on which other writes may depend: it is seen through when its wait is cancelled."""
        reply: Reply[list[Rows]] = Reply()
        carrying, self._carried = anyio.Event(), frozenset(riders)
        self._carrying = carrying

        async def carry() -> None:
            try:
                reply.give(await self._commit(statements, riders))
            except BaseException as error:  # noqa: BLE001 - it is raised again where the write is awaited
                reply.fail(error)
            finally:
                self._carrying, self._carried = None, frozenset()
                carrying.set()

        detach(carry)
        return await reply.wait()

    async def _commit(self, statements: Sequence[Statement], riders: Sequence[_Pending]) -> list[Rows]:
        ride = [rider.statement for rider in riders]
        progress, self._progress = self._progress, None
        if progress is not None:
            ride.append(self.store.tasks.progress(self.fence, *progress))
        lines = self.lines.take()
        if lines:
            ride.append(self.store.journal.log(self.fence, lines))
        try:
            results = await self.store.journal.write([*ride, *statements])
        except LeaseLost as lost:
            raise self.end(lost) from None
        except Exception:
            self._progress = self._progress or progress
            self.lines.put_back(lines)
            raise
        if riders:
            written = set(riders)
            self._pending = [pending for pending in self._pending if pending not in written]
        return results[len(ride) :]

    def step_recorded(self) -> None:
        """Hear that a step of this attempt is in the store."""
        if self.on_first_step is not None:
            tell, self.on_first_step = self.on_first_step, None
            tell()

    def show(self, fraction: float, message: str) -> None:
        """Keep the latest progress; it is written with the next step, or by `take_shown`."""
        shown = self._progress[0] if self._progress else 0.0
        self._progress = (max(shown, fraction), self.redaction.text(message))

    def take_shown(self) -> list[Statement]:
        """The progress and the lines of the log that are not yet written, if the attempt still may write."""
        statements: list[Statement] = []
        if self.over is not None:
            return statements
        if self._progress is not None:
            progress, self._progress = self._progress, None
            statements.append(self.store.tasks.progress(self.fence, *progress))
        if lines := self.lines.take():
            statements.append(self.store.journal.log(self.fence, lines))
        return statements

    def take_pending(self) -> list[Statement]:
        """All that was postponed and is not on its way, for the commit that ends a completed attempt."""
        return [pending.statement for pending in self._pending if pending not in self._carried]
