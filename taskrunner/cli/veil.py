"""What a store's programs hide (`redact=`), hidden by the commands, too, which do not have these programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from taskrunner.cli.reading import decoded
from taskrunner.core.model import Attempt, HandRetry, LogLine, Step
from taskrunner.core.redaction import HIDDEN, Redaction
from taskrunner.storage.listing import Listed
from taskrunner.storage.store import Store


class Veil:
    """What is hidden of a store's tasks, or of one of them with its steps, attempts and log."""

    def __init__(self, redaction: Redaction) -> None:
        self.redaction = redaction

    @classmethod
    async def of(cls, store: Store) -> Veil:
        """What the programs of this store hide."""
        return cls(Redaction(await store.redactions.all()))

    def over(self, listed: Listed, steps: Sequence[Step] = ()) -> Veil:
        """The same for one task: what its input, its output and its steps hold is hidden in its texts, too."""
        if not self.redaction.is_active or listed.task is None:
            return self
        values = [{step.name: decoded(step.value)} for step in steps]
        return Veil(self.redaction.apart(listed.task.input, listed.task.output, *values))

    def task(self, listed: Listed) -> Listed:
        """A task as it may be seen. One that cannot be read has no values to show."""
        task = listed.task
        if not self.redaction.is_active or task is None:
            return listed
        mine = self.over(listed).redaction
        seen = replace(
            task,
            input=mine.value(task.input),
            output=mine.value(task.output),
            unique_key=mine.value(task.unique_key),
            idempotency_key=mine.value(task.idempotency_key),
            error_message=None if task.error_message is None else mine.text(task.error_message),
            progress_message=mine.text(task.progress_message),
        )
        return replace(listed, task=seen)

    def step(self, step: Step) -> Step:
        """A step as it may be seen."""
        if not self.redaction.is_active:
            return step
        value = None if step.value is None else json.dumps(self.redaction.under(step.name, decoded(step.value)))
        return replace(step, value=value, error=self.text(step.error))

    def attempt(self, attempt: Attempt) -> Attempt:
        """An ended attempt as it may be seen."""
        return replace(attempt, error_message=self.text(attempt.error_message), traceback=self.text(attempt.traceback))

    def retry(self, retry: HandRetry) -> HandRetry:
        """A retry by hand as it may be seen."""
        return replace(retry, error_message=self.text(retry.error_message))

    def line(self, line: LogLine) -> LogLine:
        """A line of a log as it may be seen."""
        if not self.redaction.is_active:
            return line
        fields = json.dumps(self.redaction.value(decoded(line.fields)))
        return replace(line, event=self.text(line.event) or "", fields=fields)

    def raw(self, row: dict[str, str]) -> dict[str, str]:
        """The beginnings of an unreadable row's values: where something is hidden, its documents are not shown."""
        if not self.redaction.is_active:
            return row
        return {name: HIDDEN if name in _DOCUMENTS else text for name, text in row.items()}

    def text(self, text: str | None) -> str | None:
        """A text as it may be seen."""
        return None if text is None else self.redaction.text(text)


_DOCUMENTS = frozenset({"input", "output", "unique_key", "idempotency_key", "error_message", "progress_message"})
