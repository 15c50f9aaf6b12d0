"""`taskrunner enqueue`: a task by the name of its type."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import anyio
import click

from taskrunner import InvalidInput, TaskHandle, TaskRunner
from taskrunner.cli import terminal
from taskrunner.cli.common import Door, door_options, json_option
from taskrunner.cli.endings import DONE, WAIT_TIMED_OUT, Trouble
from taskrunner.cli.supervisors import find_supervisors
from taskrunner.cli.times import instant_of
from taskrunner.core.durations import seconds
from taskrunner.core.places import MAX_DEPTH
from taskrunner.storage.store import Store

FOR_EVER = ""
"""What `--wait` without a duration means."""

TELL_AFTER = 1.0
"""Seconds of a wait after which it is told that nobody works on the store."""

_MOST_DIGITS = 1_000  # far beyond 64 bits, and far below where Python refuses to read them


@click.command("enqueue")
@click.argument("type_name", metavar="TYPE")
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--input", "document", metavar="JSON", help="The whole input as a JSON object; - reads it from stdin.")
@click.option("--priority", type=int, metavar="0-9", help="Lower comes first.")
@click.option("--queue", metavar="NAME")
@click.option("--delay", metavar="D", help="Not before so long from now.")
@click.option("--run-at", metavar="TIME", help="Not before this time: ISO 8601 with a time zone.")
@click.option("--unique-key", metavar="KEY", help="At most one unfinished task of this type has it.")
@click.option("--on-conflict", type=click.Choice(["reuse", "replace", "reject"]), help="When the unique key is taken.")
@click.option("--idempotency-key", metavar="KEY", help="A second enqueue with it finds the first one's task.")
@click.option("--session-id", metavar="ID")
@click.option("--max-retries", type=int, metavar="N")
@click.option("--timeout", metavar="D", help="How long one attempt may take.")
@click.option("--wait", metavar="D", is_flag=False, flag_value=FOR_EVER, help="Wait for the result; --wait=D: so long.")
@json_option
@door_options
@click.pass_obj
def enqueue_command(
    door: Door,
    /,
    type_name: str,
    pairs: tuple[str, ...],
    *,
    document: str | None,
    run_at: str | None,
    wait: str | None,
    in_json: bool,
    **options: Any,  # noqa: ANN401 - each option has its own type
) -> int:
    """Enqueue a task of TYPE and print its id; with --wait, its result as JSON.

    The input is given as KEY=VALUE pairs, where a VALUE that is JSON is taken as such and everything else as text, or
    whole with --input. Durations are seconds, or such as 90s, 15m, 2h.
    """
    payload = _input_of(document, pairs)
    given = {name: value for name, value in options.items() if value is not None}
    if run_at is not None:
        given["run_at"] = instant_of(run_at, "--run-at")
    patience = None if wait is None or wait == FOR_EVER else seconds(wait, "--wait", zero=True)

    async def enqueue() -> int:
        async with TaskRunner(door.db) as runner:
            handle = await runner.enqueue(type_name, payload, **given)
            if wait is None:
                await _print_task(handle, in_json=in_json)
            else:
                await _print_result(handle, runner.store, patience, in_json=in_json)
        return DONE

    return anyio.run(enqueue)


async def _print_task(handle: TaskHandle[Any], *, in_json: bool) -> None:
    if in_json:
        terminal.print_json({"id": handle.id, "status": await handle.status()})
    else:
        terminal.say(handle.id)


async def _print_result(handle: TaskHandle[Any], store: Store, patience: float | None, *, in_json: bool) -> None:
    if terminal.is_terminal(sys.stderr):
        terminal.complain(f"waiting for the end of task {handle.id}")
    try:
        result = await _result_of(handle, store, patience)
    except TimeoutError as error:
        message = f"task {handle.id} has not ended within {patience:g} s; it is {await handle.status()}"
        raise Trouble(message, WAIT_TIMED_OUT) from error
    terminal.print_json({"id": handle.id, "status": "completed", "output": result} if in_json else result)


async def _result_of(handle: TaskHandle[Any], store: Store, patience: float | None) -> object:
    if patience is not None and patience <= TELL_AFTER:
        return await handle.result(timeout=patience)
    try:
        return await handle.result(timeout=TELL_AFTER)
    except TimeoutError:
        if all(each.dead is not None for each in await find_supervisors(store)):
            terminal.complain("no supervisor works on this store at the moment: start one with `taskrunner run APP`")
    return await handle.result(timeout=None if patience is None else patience - TELL_AFTER)


def _input_of(document: str | None, pairs: tuple[str, ...]) -> dict[str, Any]:
    if document is not None and pairs:
        message = f"--input and {pairs[0]!r}: give the input as one JSON object or as KEY=VALUE pairs, not both"
        raise InvalidInput(message, path="input")
    if document is None:
        return _object_of(pairs)
    try:
        value = _json(sys.stdin.read() if document == "-" else document, "--input")
    except InvalidInput:
        raise
    except ValueError as error:
        message = f"--input is no JSON: {error}"
        raise InvalidInput(message, path="input") from error
    if not isinstance(value, dict):
        message = f'--input is {type(value).__name__}: the input of a task is a JSON object, such as {{"topic": "x"}}'
        raise InvalidInput(message, path="input")
    return value


def _object_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for text in pairs:
        key, value = _pair(text)
        if key in given:
            message = f"{text!r}: {key} is given twice"
            raise InvalidInput(message, path="input")
        given[key] = value
    return given


def _pair(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        message = f"{text!r}: write KEY=VALUE"
        raise InvalidInput(message, path="input")
    try:
        return key, _json(value, key)
    except InvalidInput:
        raise
    except ValueError:
        return key, value


def _json(text: str, name: str) -> Any:  # noqa: ANN401 - any JSON value
    """Read JSON.

    Raises:
        InvalidInput: it is JSON that no task can take.
        ValueError: it is none.
    """

    def whole(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            message = f"{name}: a number of {len(digits.lstrip('-')):,} digits is outside -2**63 … 2**63-1"
            raise InvalidInput(message, path="input")
        return int(digits)

    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_int=whole)
    except RecursionError as error:
        message = f"{name}: this JSON is more than {MAX_DEPTH} levels deep"
        raise InvalidInput(message, path="input") from error


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is no JSON number"
    raise ValueError(message)
