"""`taskrunner cancel` and `taskrunner retry`: tasks by their ids, or all that a filter means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import anyio
import click

from taskrunner import InvalidInput, TaskRunner
from taskrunner.cli import terminal
from taskrunner.cli.choosing import filter_of, filter_options
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.endings import DONE, FAILED, NOT_FOUND
from taskrunner.cli.listing import pages, print_tasks
from taskrunner.cli.reading import document_of, open_to_read, readable, require_store, settings_of
from taskrunner.cli.veil import Veil
from taskrunner.core.errors import safe_text
from taskrunner.core.states import RETRIABLE, Status
from taskrunner.storage.bulk import BATCH, Answer, Done
from taskrunner.storage.listing import Filter, Listed

Verb = Literal["cancel", "retry"]

_CANCELLABLE: Final[tuple[Status, ...]] = ("pending", "running")
_FIRST: Final[dict[Verb, tuple[Status, ...]]] = {"cancel": _CANCELLABLE, "retry": ("failed",)}
"""The statuses that a filter without --status means."""

_WORDS: Final[dict[Answer, str]] = {
    "cancelled": "cancelled",
    "cancelling": "cancelling",
    "retried": "retried",
    "too_late": "too late",
    "not_retriable": "not retried",
    "key_taken": "key taken",
    "not_found": "not found",
    "unreadable": "unreadable",
}
_SUMMARY: Final[dict[Answer, str]] = {
    "cancelled": "cancelled",
    "cancelling": "running, and asked to end",
    "retried": "to be run again",
    "too_late": "too late",
    "not_retriable": "left alone, for they have neither failed nor been cancelled",
    "key_taken": "refused, for its unique key is taken",
    "not_found": "not found",
    "unreadable": "unreadable, and left alone",
}
_LEFT: Final[dict[Verb, Answer]] = {"cancel": "too_late", "retry": "not_retriable"}
"""What is said of a task that the verb means nothing to."""
_DONE: Final[frozenset[Answer]] = frozenset({"cancelled", "cancelling", "retried"})


@dataclass(slots=True)
class Tally:
    """What became of the tasks so far."""

    done: list[Done] = field(default_factory=list)
    counts: Counter[Answer] = field(default_factory=Counter)

    def add(self, done: Sequence[Done]) -> None:
        """Take in the answers of a batch."""
        self.done += done
        self.counts.update(each.answer for each in done)

    def sentence(self) -> str:
        """All in one line, such as `12 cancelled, 1 too late`."""
        parts = [f"{self.counts[answer]:,} {words}" for answer, words in _SUMMARY.items() if self.counts[answer]]
        return ", ".join(parts) or "no task is meant"


@click.command("cancel")
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options(_CANCELLABLE)
@click.option("--reason", metavar="TEXT", default="", help="Why; it becomes the task's error message.")
@click.option("--dry-run", is_flag=True, help="Only list the tasks that would be cancelled.")
@json_option
@door_options
@click.pass_obj
def cancel_command(
    door: Door,
    /,
    task_ids: tuple[str, ...],
    *,
    reason: str,
    dry_run: bool,
    in_json: bool,
    **filters: Any,  # noqa: ANN401 - each filter has its own type
) -> int:
    """Cancel tasks, by their ids or by a filter.

    A task that waits is cancelled at once. A running one starts no new step, may clean up for the grace of its
    supervisor, and never completes. A finished one stays as it is: it was too late.
    """
    return _run(door, "cancel", task_ids, filters, reason=reason, dry_run=dry_run, in_json=in_json)


@click.command("retry")
@click.argument("task_ids", metavar="[ID]...", nargs=-1)
@filter_options(sorted(RETRIABLE, reverse=True))
@click.option("--dry-run", is_flag=True, help="Only list the tasks that would be retried.")
@json_option
@door_options
@click.pass_obj
def retry_command(
    door: Door,
    /,
    task_ids: tuple[str, ...],
    *,
    dry_run: bool,
    in_json: bool,
    **filters: Any,  # noqa: ANN401 - each filter has its own type
) -> int:
    """Run failed or cancelled tasks again, by their ids or by a filter.

    A filter means failed tasks, unless --status says otherwise. A task goes on from its recorded steps, with all its
    retries. One whose unique key another task has by now is refused.
    """
    return _run(door, "retry", task_ids, filters, reason="", dry_run=dry_run, in_json=in_json)


def _run(
    door: Door,
    verb: Verb,
    task_ids: Sequence[str],
    filters: Mapping[str, Any],
    *,
    reason: str,
    dry_run: bool,
    in_json: bool,
) -> int:
    chosen = _meant(verb, task_ids, filters)
    ids = tuple(dict.fromkeys(task_ids))
    if dry_run:
        _print_dry_run(verb, anyio.run(_look, door, chosen, ids), in_json=in_json)
        return DONE
    tally = Tally()
    try:
        anyio.run(partial(_do, door, verb, chosen, ids, tally, reason=safe_text(reason)))
    except BaseException:
        if tally.done:
            terminal.complain(f"before it ended: {tally.sentence()}")
        raise
    if in_json:
        terminal.print_json({"tasks": [_document(each) for each in tally.done], "counts": dict(tally.counts)})
    elif ids:
        terminal.print_table(("ID", "ANSWER", "WHY"), [(each.id, _WORDS[each.answer], each.why) for each in tally.done])
    else:
        terminal.say(tally.sentence())
    return _code(tally, _DONE if ids else _DONE | set(_LEFT.values()))


def _code(tally: Tally, good: frozenset[Answer]) -> int:
    """0 when all went well. What ended before a filter had found it is no failure; what was named by its id is."""
    others = set(tally.counts) - good
    if not others:
        return DONE
    return NOT_FOUND if others == {"not_found"} else FAILED


def _meant(verb: Verb, task_ids: Sequence[str], filters: Mapping[str, Any]) -> list[Filter]:
    """The filters, one for each status that is meant; none where the tasks are named by their ids.

    Raises:
        InvalidInput: neither ids nor a filter, or both.
    """
    given = [name for name, value in filters.items() if value is not None]
    if bool(task_ids) == bool(given):
        how = "not by both" if given else "with --status, --type, --queue, --session, --parent, --since or --until"
        message = f"{verb}: name the tasks by their ids, or choose them by a filter, {how}"
        raise InvalidInput(message, path="ID")
    if task_ids:
        return []
    chosen = filter_of(filters)
    return [replace(chosen, status=status) for status in ([chosen.status] if chosen.status else _FIRST[verb])]


async def _do(
    door: Door, verb: Verb, chosen: Sequence[Filter], ids: Sequence[str], tally: Tally, *, reason: str
) -> None:
    require_store(settings_of(door))
    with terminal.progress() as show:
        async with TaskRunner(door.db) as runner:
            bulk = runner.store.bulk

            async def work(batch: Sequence[str]) -> None:
                tally.add(await (bulk.cancel(batch, reason) if verb == "cancel" else bulk.retry(batch)))
                show(tally.sentence())

            for start in range(0, len(ids), BATCH):
                await work(ids[start : start + BATCH])
            for each in chosen:
                async for batch in bulk.choose(each):
                    await work(batch)


async def _look(door: Door, chosen: Sequence[Filter], ids: Sequence[str]) -> list[Listed]:
    async with open_to_read(settings_of(door)) as store:
        veil = await Veil.of(store)
        named = [veil.task(readable(await store.listing.one(task_id))) for task_id in ids]
        return named + [one for each in chosen async for one in pages(store, each)]


def _print_dry_run(verb: Verb, found: Sequence[Listed], *, in_json: bool) -> None:
    takes = _CANCELLABLE if verb == "cancel" else RETRIABLE
    meant = [each for each in found if each.status in takes]
    left = [each for each in found if each.status not in takes]
    if in_json:
        documents = {
            name: [document_of(each) for each in rows] for name, rows in (("tasks", meant), (_LEFT[verb], left))
        }
        terminal.print_json({"dry_run": True, **documents})
        return
    print_tasks(meant)
    many = f"{len(meant):,} {'task' if len(meant) == 1 else 'tasks'}"
    rest = f", and {'is too late for' if verb == 'cancel' else 'not'} {len(left):,} of them" if left else ""
    terminal.complain(f"--dry-run: {verb} means {many}{rest}; nothing was done")


def _document(done: Done) -> dict[str, str]:
    return {"id": done.id, "answer": done.answer, **({"why": done.why} if done.why else {})}
