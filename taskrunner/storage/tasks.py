"""The verbs of tasks: enqueue, claim, end, cancel, look. Each builds a unit; the SQL stands in `tasks.sql`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from taskrunner.core.durations import after, moment, stamp
from taskrunner.core.errors import InvalidInput, LeaseLost, NoSession, StoreError, TaskNotFound, TaskRunnerError
from taskrunner.core.places import shown
from taskrunner.core.states import RETRIABLE
from taskrunner.storage.changes import CANCEL, WORK
from taskrunner.storage.claims import Claim, Recovered, claim_of, claim_unit
from taskrunner.storage.engine import Refused, Rejected, Statement, Unit, Unreadable, json_of
from taskrunner.storage.rows import task_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskrunner.core.clock import Clock
    from taskrunner.core.model import Fence, NewTask, Task
    from taskrunner.core.states import Status
    from taskrunner.storage.engine import Engine, Rows, Value


def task_topic(task_id: str) -> str:
    """The topic of commits that ended or moved this task."""
    return f"task:{task_id}"


class KeyTaken(TaskRunnerError):
    """An unfinished task holds this unique key."""

    def __init__(self, task_type: str, unique_key: str) -> None:
        super().__init__(f"an unfinished task {task_type!r} has unique_key={unique_key!r} already")
        self.type = task_type
        self.unique_key = unique_key


class TaskStore:
    """All that is done to tasks. Times are read from the clock once per unit."""

    def __init__(self, engine: Engine, clock: Clock, *, default_retries: int, default_losses: int) -> None:
        self._engine = engine
        self._clock = clock
        self._default_retries = default_retries
        self._default_losses = default_losses
        self._has_limits = False  # as the last claim has seen it

    # ── enqueue ──────────────────────────────────────────────────────────────────────────────────────────────────────
    async def enqueue(self, new: NewTask) -> str:
        """Store one task and return its id, or the id of the one that holds its key. Durable when it returns.

        Raises:
            KeyTaken: its unique key is taken and may not be reused.
            NoSession: no session has its session_id, or that session is deleted.
        """
        return (await self.enqueue_many([new]))[0]

    async def enqueue_many(self, new: Sequence[NewTask]) -> list[str]:
        """Store many tasks in one commit, all or none, and return their ids in order. Raises as `enqueue` does.

        Raises:
            InvalidInput: two of them have one unique key, which the second may not reuse.
        """
        if not new:
            return []
        now = self._clock.now()
        unit = Unit(tuple([self._enqueue(task, now) for task in new]), topics=(WORK,))
        try:
            results = await self._engine.write(unit)
        except Refused as refused:
            taken = new[refused.index]
            if any((each.type, each.unique_key) == (taken.type, taken.unique_key) for each in new[: refused.index]):
                message = f"unique_key={taken.unique_key!r}: two tasks of one batch have it, and may not share it"
                raise InvalidInput(message, path="unique_key") from None
            raise KeyTaken(taken.type, taken.unique_key or "") from None
        except Rejected as rejected:
            raise _no_session(rejected, new) from rejected
        written = zip(unit.statements, results, strict=True)
        return [(rows[0][0] if rows else statement.params["id"]) for statement, rows in written]  # type: ignore[misc]

    def _enqueue(self, new: NewTask, now: datetime) -> Statement:
        keyed = new.unique_key is not None or new.idempotency_key is not None
        at = stamp(now)
        run_at = new.run_at or (after(now, new.delay) if new.delay else None)
        return Statement(
            "enqueue_keyed" if keyed else "enqueue",
            {
                "id": self._clock.new_id(now),
                "session_id": new.session_id,
                "parent_task_id": new.parent_task_id,
                "type": new.type,
                "input": new.input,
                "queue": new.queue,
                "priority": new.priority,
                "run_at": stamp(run_at) if run_at else at,
                "unique_key": new.unique_key,
                "on_conflict": new.on_conflict,
                "idempotency_key": new.idempotency_key,
                "max_retries": new.max_retries,
                "timeout": new.timeout,
                "max_losses": new.max_losses,
                "now": at,
                "default_retries": self._default_retries,
                "default_losses": self._default_losses,
            },
            expect_rows=1,
        )

    async def holder_of(self, taken: KeyTaken) -> str | None:
        """The id of the unfinished task that holds this unique key, if one still does."""
        params: dict[str, Value] = {"type": taken.type, "unique_key": taken.unique_key}
        rows = await self._engine.read(Statement("task_by_unique_key", params))
        return str(rows[0][0]) if rows else None

    # ── claim ────────────────────────────────────────────────────────────────────────────────────────────────────────
    async def claim(
        self,
        owner: str,
        queues: Sequence[str],
        slots: int,
        known: Sequence[str] = (),
        only: Sequence[str] | None = None,
        *,
        suspect: bool = False,
    ) -> Claim:
        """Recover orphans and claim what can be run, in one unit; durable when it returns.

        `slots` is how many tasks this owner may run in all; `known` names types of which tasks may have been put back
        because nobody knew them (in the queues of `only`; None: in all). With `suspect` it is the suspects' turn: one
        of them is claimed, if there is one, and nothing else.

        Raises:
            LeaseLost: this owner was taken for dead; nothing was written.
        """
        now = stamp(self._clock.now())
        unit = claim_unit(owner, queues, slots, known, only, now=now, suspect=suspect)
        try:
            results = await self._engine.write(unit)
        except Unreadable:  # something that is no taskrunner wrote a row, and it must not stop the others
            await self._engine.write(Unit((Statement("set_aside_unreadable", {"now": now}),), topics=(WORK,)))
            results = await self._engine.write(unit)
        except Refused:
            raise LeaseLost from None
        claim = claim_of(results, queues)
        self._has_limits = claim.limits
        return claim

    async def next_due(self) -> datetime | None:
        """When the next delayed task becomes due; None as well for a moment that nobody can read."""
        try:
            rows = await self._engine.read(Statement("next_due", {}))
            return moment(str(rows[0][0])) if rows[0][0] is not None else None
        except (ValueError, Unreadable):
            return None

    # ── end ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def complete(self, fence: Fence, output: str) -> Statement:
        """The body returned `output`, a JSON text. A task whose cancel was acknowledged becomes cancelled instead."""
        return self._end("complete", fence, output=output)

    def fail(
        self,
        fence: Fence,
        *,
        error_type: str,
        error_message: str,
        traceback: str | None = None,
        retry_in: float | None,
    ) -> Statement:
        """The body raised. `retry_in`: seconds until it is run again, if retries are left; None: it failed for good."""
        run_at = stamp(after(self._clock.now(), retry_in or 0.0))
        return self._end(
            "fail",
            fence,
            error_type=error_type,
            error_message=error_message,
            traceback=traceback,
            final=int(retry_in is None),
            run_at=run_at,
        )

    def release(self, fence: Fence, waiting_for: str | None = None) -> Statement:
        """The task is handed back unharmed; with `waiting_for` (`worker:TYPE`) it waits for somebody who can run it."""
        return self._end("release", fence, waiting_for=waiting_for)

    def cancelled(self, fence: Fence) -> Statement:
        """The body of a task that was asked to end has ended."""
        return self._end("cancelled", fence)

    def ending(self, fence: Fence, end: Statement, before: Sequence[Statement] = ()) -> Unit:
        """The unit that ends an attempt, with what the attempt still has to write."""
        again = end.name in {"fail", "release"}  # it may be run again, and not by us
        work = (WORK,) if again or self._has_limits else ()  # any end makes room in a queue that has a limit
        return Unit((*before, end), topics=(*work, task_topic(fence.task_id)))

    async def end(self, fence: Fence, end: Statement, before: Sequence[Statement] = ()) -> Status:
        """End an attempt and return the task's status.

        Raises:
            LeaseLost: the task was taken from this attempt.
        """
        try:
            results = await self._engine.write(self.ending(fence, end, before))
        except Refused:
            raise LeaseLost from None
        return status_of(results)

    async def lose(self, owner: str, lost: Sequence[Fence], how: str) -> list[Recovered]:
        """Charge running tasks of this owner whose own process died, in one statement; `how` is the evidence.

        A task that recorded a step in that attempt has one loss then, every other one more than before.
        """
        listed = json_of([(fence.task_id, fence.attempt) for fence in lost])
        params: dict[str, Value] = {"owner": owner, "lost": listed, "how": how, "now": stamp(self._clock.now())}
        topics = (WORK, *(task_topic(fence.task_id) for fence in lost))
        results = await self._engine.write(Unit((Statement("lose", params),), topics))
        return [Recovered(*row) for row in results[0]]  # type: ignore[arg-type]

    def progress(self, fence: Fence, fraction: float, message: str) -> Statement:
        """The attempt has come this far; what is shown never falls."""
        params = {"progress": fraction, "message": message, "now": stamp(self._clock.now()), **_fence(fence)}
        return Statement("progress", params, expect_rows=1)

    def _end(self, name: str, fence: Fence, **params: str | float | None) -> Statement:
        return Statement(name, {**params, "now": stamp(self._clock.now()), **_fence(fence)}, expect_rows=1)

    # ── by hand: cancel, retry ────────────────────────────────────────────────────────────────────────────────────────
    async def cancel(self, task_id: str, reason: str = "") -> Literal["cancelled", "cancelling", "too_late"]:
        """Cancel a pending task at once, or ask a running one to end; durable when it returns.

        Raises:
            TaskNotFound: no task has this id.
        """
        params = {"task": task_id, "reason": reason or None, "now": stamp(self._clock.now())}
        unit = Unit((Statement("cancel", params),), topics=(CANCEL, task_topic(task_id)))
        rows = (await self._engine.write(unit))[0]
        if rows:
            return "cancelled" if rows[0][0] == "cancelled" else "cancelling"
        await self.status(task_id)
        return "too_late"

    async def retry(self, task_id: str) -> None:
        """Have a failed or cancelled task run again, from its recorded steps; durable when it returns.

        Raises:
            TaskNotFound: no task has this id.
            InvalidInput: the task is completed, or has not ended.
            KeyTaken: an unfinished task has its unique key by now.
        """
        params: dict[str, Value] = {"task": task_id, "now": stamp(self._clock.now())}
        unit = Unit((Statement("retry", params),), topics=(WORK, task_topic(task_id)))
        while not (await self._engine.write(unit))[0]:
            rows = await self._engine.read(Statement("unretried", {"task": task_id}))
            if not rows:
                raise _not_found(task_id)
            status, kind, key = rows[0]
            if status not in RETRIABLE:
                message = f"task {task_id} is {status!s}: only a failed or cancelled task can be retried"
                raise InvalidInput(message, path="status")
            if key is not None:  # else it has ended after the refusal: it can be retried now
                raise KeyTaken(str(kind), str(key))

    async def cancel_requests(self, owner: str) -> list[tuple[str, int]]:
        """The tasks of this owner that were asked to end: id and attempt."""
        rows = await self._engine.read(Statement("cancel_requests", {"owner": owner}))
        return [(str(row[0]), int(str(row[1]))) for row in rows]

    # ── look ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    async def get(self, task_id: str) -> Task:
        """One task.

        Raises:
            TaskNotFound: no task has this id.
        """
        try:
            rows = await self._engine.read(Statement("task", {"id": task_id}))
        except Unreadable as error:
            message = f"task {task_id}: its row is unreadable ({error.reason})"
            raise StoreError(message) from None
        if not rows:
            raise _not_found(task_id)
        return task_of(rows[0])

    async def status(self, task_id: str) -> Status:
        """One task's status; raises as `get` does."""
        rows = await self._engine.read(Statement("task_status", {"id": task_id}))
        if not rows:
            raise _not_found(task_id)
        status: Status = rows[0][0]  # type: ignore[assignment]
        return status

    async def counts(self) -> dict[str, int]:
        """How many tasks there are by status; it reads all of an index, so it is for people, not for loops."""
        rows = await self._engine.read(Statement("task_counts", {}))
        return {str(status): int(str(count)) for status, count in rows}


def status_of(results: list[Rows]) -> Status:
    """The task's status, as the last statement of a unit that ended an attempt has returned it."""
    status: Status = results[-1][0][0]  # type: ignore[assignment]
    return status


def _fence(fence: Fence) -> dict[str, str | int]:
    return {"task": fence.task_id, "owner": fence.owner, "attempt": fence.attempt}


def _not_found(task_id: str) -> TaskNotFound:
    return TaskNotFound(f"no task has the id {shown(task_id)}")


def _no_session(rejected: Rejected, new: Sequence[NewTask]) -> Exception:
    ids = sorted({task.session_id for task in new if task.session_id is not None})
    named = f"session_id={ids[0]!r}" if len(ids) == 1 else "one of the tasks' session_ids"
    if "FOREIGN KEY" in rejected.reason:
        return NoSession(f"{named}: no session has this id")
    if "session is deleted" in rejected.reason:
        return NoSession(f"{named}: the session is deleted and takes no new tasks")
    return rejected
