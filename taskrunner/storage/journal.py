"""The verbs of an attempt's record: steps and log lines, written under the fence, and what is told of the past."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskrunner.core.durations import stamp
from taskrunner.core.errors import LeaseLost
from taskrunner.storage.engine import Refused, Rejected, Statement, Unit, json_of
from taskrunner.storage.messages import refusal
from taskrunner.storage.rows import attempt_of, log_line_of, retry_of, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskrunner.core.clock import Clock
    from taskrunner.core.model import Attempt, Fence, HandRetry, LogLine, Step
    from taskrunner.storage.engine import Engine, Rows, Value


class Journal:
    """Steps, ended attempts and log lines."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def record(
        self,
        fence: Fence,
        *,
        scope: str,
        name: str,
        occurrence: int,
        position: int,
        turn: int | None,
        digest: str,
        value: str | None,
        error_type: str | None,
        error: str | None,
    ) -> Statement:
        """The record of one step, as `Step` has it; it is refused once the task was taken from this attempt."""
        return Statement(
            "record_step",
            {
                "scope": scope,
                "name": name,
                "occurrence": occurrence,
                "position": position,
                "turn": turn,
                "digest": digest,
                "value": value,
                "error_type": error_type,
                "error": error,
                "task": fence.task_id,
                "owner": fence.owner,
                "attempt": fence.attempt,
                "now": stamp(self._clock.now()),
            },
            expect_rows=1,
        )

    def log(self, fence: Fence, lines: Sequence[tuple[str, str, str, str]]) -> Statement:
        """Lines of an attempt's log, each as when, level, event and fields in JSON; refused as a step is."""
        params: dict[str, Value] = {
            "lines": json_of(lines),
            "task": fence.task_id,
            "owner": fence.owner,
            "attempt": fence.attempt,
        }
        return Statement("add_log_lines", params, expect_rows=len(lines))

    def fence(self, fence: Fence) -> Statement:
        """A guard: the rest of the unit is written only while this attempt holds the task."""
        params: dict[str, Value] = {"task": fence.task_id, "owner": fence.owner, "attempt": fence.attempt}
        return Statement("fence", params, expect_rows=1)

    async def write(self, statements: Sequence[Statement]) -> list[Rows]:
        """Commit an attempt's statements; durable when it returns.

        Raises:
            LeaseLost: the task was taken from this attempt, and nothing was written.
            NoSession: there is no such session for a message among them, or it is deleted; nothing was written.
        """
        try:
            return await self._engine.write(Unit(tuple(statements)))
        except Refused:
            raise LeaseLost from None
        except Rejected as rejected:
            raise refusal(rejected) from None

    async def steps(self, history_id: str) -> list[Step]:
        """The recorded steps of a history, in the order in which they were recorded."""
        return [step_of(row) for row in await self._engine.read(Statement("steps", {"history_id": history_id}))]

    async def attempts(self, task_id: str) -> list[Attempt]:
        """The ended attempts of a task, oldest first."""
        return [attempt_of(row) for row in await self._engine.read(Statement("attempts", {"task": task_id}))]

    async def retries(self, task_id: str) -> list[HandRetry]:
        """How often, when and from what a task was retried by hand, oldest first."""
        return [retry_of(row) for row in await self._engine.read(Statement("retries", {"task": task_id}))]

    async def steps_after(self, history_id: str, place: int) -> tuple[list[Step], int]:
        """The steps of a history that were recorded after `place` (0: all), and the place of the last one."""
        params: dict[str, Value] = {"history_id": history_id, "after": place}
        rows = await self._engine.read(Statement("steps_after", params))
        return [step_of(row) for row in rows], int(str(rows[-1][-1])) if rows else place

    async def log_after(self, task_id: str, place: int) -> tuple[list[LogLine], int]:
        """The lines of a task's log that were written after `place` (0: all), and the place of the last one."""
        rows = await self._engine.read(Statement("log_lines_after", {"task": task_id, "after": place}))
        return [log_line_of(row) for row in rows], int(str(rows[-1][-1])) if rows else place
