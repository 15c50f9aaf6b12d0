"""`taskrunner completion`: what makes a shell complete the commands and their options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from taskrunner.cli import terminal
from taskrunner.cli.common import COMPLETE, NAME, door_options
from taskrunner.cli.endings import Trouble


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@door_options
@click.pass_context
def completion_command(ctx: click.Context, /, shell: str) -> None:
    """Print the lines that make SHELL complete taskrunner.

    For bash: eval "$(taskrunner completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc; for fish:
    taskrunner completion fish > ~/.config/fish/completions/taskrunner.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        message = f"completion: click knows no shell {shell!r}"
        raise Trouble(message)
    terminal.say(kind(ctx.find_root().command, {}, NAME, COMPLETE).source())
