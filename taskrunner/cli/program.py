"""The command `taskrunner`: which commands there are, and how every one of them ends.

A command is imported when it is called: `--version` and `--help` load neither the engine nor a user's code.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

import click

from taskrunner.cli import terminal
from taskrunner.cli.common import COMPLETE, NAME, Door, door_options
from taskrunner.cli.endings import DONE, WRONG_USAGE, code_of, sentence_of

_COMMANDS: Final = {
    "cancel": ("by_hand", "Cancel tasks, by their ids or by a filter."),
    "chaos": ("chaos", "Try to break it, on this machine: faults of every kind, and what came of them."),
    "completion": ("completion", "Print what makes a shell complete the commands and their options."),
    "config": ("config", "Show every setting with its value and its origin."),
    "demo": ("demo", "Survey the standard library, kill the supervisor half-way, prove that nothing was lost."),
    "doctor": ("doctor", "Say what is in the store, who works on it, and what is wrong with it."),
    "enqueue": ("enqueue", "Enqueue a task by the name of its type."),
    "health": ("health", "Say by the exit code whether supervisors work on the store and nothing waits too long."),
    "list": ("listing", "List tasks."),
    "pause": ("queues", "Take no more tasks from a queue, in any supervisor."),
    "resume": ("queues", "Take tasks from a queue again."),
    "retry": ("by_hand", "Run failed or cancelled tasks again."),
    "run": ("run", "Run a supervisor, until it is stopped."),
    "show": ("show", "Show one task with its attempts and steps, and why it is as it is."),
    "stats": ("stats", "Count tasks by status, queue and type."),
    "tail": ("tail", "Follow one task until it ends."),
}
"""Each command's module below taskrunner.cli, and what it does."""


class _Commands(click.Group):
    """The commands by name, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"taskrunner.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_module, help_text) in _COMMANDS.items()])


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's signature
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            terminal.say(f"taskrunner {version('durable-taskrunner')}")
        except PackageNotFoundError:
            terminal.say("taskrunner (not installed)")
        ctx.exit()


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@door_options
def program() -> None:
    """Durable tasks in one SQLite file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: the process's own) and return its exit code."""
    terminal.prepare()
    door = Door()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given and COMPLETE not in os.environ:
        return _help()
    try:
        code = _complete() if COMPLETE in os.environ else _invoke(given, door)
        terminal.flush()
    except BrokenPipeError:
        terminal.abandon_output()  # who read our output has seen enough
        return DONE
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the user gets one sentence and a code
        _report(error, debug=door.debug)
        return code_of(error)
    return code


def _complete() -> int:
    """Answer a shell that asks how a line may go on."""
    from click.shell_completion import shell_complete

    return shell_complete(program, {"obj": Door()}, NAME, COMPLETE, os.environ[COMPLETE])


def _help() -> int:
    with suppress(OSError):
        sys.stderr.write(program.get_help(program.make_context(NAME, [], resilient_parsing=True)) + "\n")
    return WRONG_USAGE


def _invoke(arguments: list[str], door: Door) -> int:
    try:
        with program.make_context(NAME, arguments, obj=door) as ctx:
            result = program.invoke(ctx)
    except click.exceptions.Exit as ending:
        return int(ending.exit_code)
    return result if isinstance(result, int) else DONE


def _report(error: BaseException, *, debug: bool) -> None:
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        if debug:
            sys.stderr.write(terminal.harmless_lines("".join(traceback.format_exception(error))))
        if sentence := sentence_of(error):
            terminal.complain(sentence)
