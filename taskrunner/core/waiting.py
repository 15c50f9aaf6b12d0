"""Why a pending task does not run yet, as people want to hear it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from taskrunner.core.model import Queue, Task

IN_LINE: Final = "its turn"
"""What a task waits for that nothing holds up."""


def waits_for(task: Task, queues: Mapping[str, Queue], now: datetime) -> list[str]:
    """All that keeps a pending task from being claimed now; `IN_LINE` when that is others before it, or nothing.

    `queues` are those of which something was said. Empty for a task that is not pending.
    """
    if task.status != "pending":
        return []
    queue = queues.get(task.queue)
    reasons = [] if task.waiting_for is None else [task.waiting_for]
    if queue is not None and queue.paused_at is not None:
        reasons.append(f"queue {task.queue} is paused")
    if task.run_at > now:
        reasons.append(f"until {task.run_at:%Y-%m-%d %H:%M:%S}")
    if task.is_suspect:
        reasons.append("suspect: one at a time")
    if not reasons and queue is not None and queue.concurrency is not None and queue.running >= queue.concurrency:
        reasons.append(f"queue {task.queue} runs {queue.running} of {queue.concurrency}")
    return reasons or [IN_LINE]
