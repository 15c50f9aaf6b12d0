"""Finding the user's runner: `module:runner`, or `module:factory`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from taskrunner import TaskRunner
from taskrunner.cli import terminal
from taskrunner.cli.endings import WRONG_USAGE, Trouble
from taskrunner.core.errors import error_text
from taskrunner.core.threads import threads
from taskrunner.core.traces import place_of

SLOW_IMPORT: Final = 5.0
"""Seconds after which an import that still goes on is named."""


def find_runner(path: str) -> TaskRunner:
    """The runner at `module:name`, where `name` is a TaskRunner or a callable without arguments that returns one.

    The current folder is importable.

    Raises:
        Trouble: the path is none, its module cannot be imported, or what it names is no TaskRunner.
    """
    module_name, separator, name = path.partition(":")
    if not separator or not module_name or not name:
        message = f"APP={path!r}: name a module and what it calls its TaskRunner, such as app:runner"
        raise Trouble(message, WRONG_USAGE)
    if trouble := _no_module(module_name, name):
        message = f"APP={path!r}: {trouble}"
        raise Trouble(message, WRONG_USAGE)
    found: object = _import(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            message = f"APP={path!r}: {module_name!r} has no {name!r}{_others(found)}"
            raise Trouble(message, WRONG_USAGE)
        found = getattr(found, part)
    if not isinstance(found, TaskRunner) and callable(found):
        found = _call(path, found)
    if not isinstance(found, TaskRunner):
        message = f"APP={path!r}: this is {_kind(found)}, and not a TaskRunner"
        raise Trouble(message, WRONG_USAGE)
    return found


def _no_module(text: str, name: str) -> str | None:
    """What to say of a text that can be no module's name, such as a file's."""
    file = Path(text)
    if "/" in text or (file.suffix == ".py" and not file.with_suffix("").is_dir()):
        module = ".".join(part for part in file.with_suffix("").parts if part.strip("./"))
        if file.is_absolute() or ".." in file.parts:
            return f"name a module and not its file: {file.stem}:{name}, in the folder {file.parent}"
        return f"name a module and not its file: {module}:{name}"
    if not all(text.split(".")):
        return f"{text!r} is no module's name, such as app or package.app"
    return None


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - as text, which is what sys.path holds
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        with _watched(name):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        place = place_of(error)
        if place is None and isinstance(error, ModuleNotFoundError):
            message = f"there is no module {error.name!r} in {here} or among the installed packages"
        else:
            message = f"{name!r} cannot be imported: {error_text(error)}{place or ''}"
        raise Trouble(message, WRONG_USAGE) from error


def _call(path: str, factory: object) -> object:
    try:
        made = factory() if callable(factory) else None
    except (Exception, SystemExit) as error:
        message = f"APP={path!r}: it raised {error_text(error)}{place_of(error) or ''}"
        raise Trouble(message, WRONG_USAGE) from error
    if inspect.iscoroutine(made):
        made.close()
        message = f"APP={path!r}: it is an async function; what makes the TaskRunner is a plain one"
        raise Trouble(message, WRONG_USAGE)
    return made


def _others(holder: object) -> str:
    names = sorted(name for name, value in vars(holder).items() if isinstance(value, TaskRunner))
    return f"; its TaskRunner is called {' or '.join(names)}" if names else ""


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of type {type(value).__qualname__}"


@contextmanager
def _watched(name: str) -> Iterator[None]:
    """Say where an import hangs, if it does."""
    done = threading.Event()
    thread_id = threading.get_ident()

    def watch() -> None:
        if not done.wait(SLOW_IMPORT):
            frame = sys._current_frames().get(thread_id)  # noqa: SLF001 - the documented way to see another thread
            place = f", now in {frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
            terminal.complain(f"the import of {name!r} goes on for more than {SLOW_IMPORT:g} s{place}")

    threads.get().start("import watch", watch)
    try:
        yield
    finally:
        done.set()
