"""The command line: a door, which no room imports."""

from taskrunner.cli.program import main

__all__ = ["main"]
