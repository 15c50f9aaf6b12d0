"""Where a runner is defined, and how a child process finds it there: by name, for nothing is pickled.

A child imports the modules that define the runner and its tasks. A program that was started as a file is imported from
that file under the name `__mp_main__`, as the standard library's own child processes do it: what the file does under
`if __name__ == "__main__":` is done once, by the program itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from taskrunner.core.errors import InvalidInput, NotOpen
from taskrunner.core.hints import target_of

if TYPE_CHECKING:
    from taskrunner.authoring.definition import TaskDefinition

MAIN: Final = "__mp_main__"


class Origin(msgspec.Struct, frozen=True):
    """How another process gets at a runner."""

    module: str
    name: str
    """What the module calls it, or the function that makes it; with dots."""
    modules: tuple[str, ...] = ()
    """The modules in which its tasks are defined."""
    main: bytes = b""
    """The file of the program, if any of them is the program itself."""
    setup: str = ""
    """A function that a child calls first, as `module:name`."""


def find(
    runner: object,
    definitions: Mapping[str, TaskDefinition[..., Any]],
    address: str = "",
    setup: str = "",
    *,
    asked_by: str = "processes",
) -> Origin:
    """Find out where a runner comes from; `address` (`module:name`) says it, where it is known.

    A refusal begins with `asked_by`.

    Raises:
        InvalidInput: no other process could import it; the sentence says why.
    """
    module, _, name = address.partition(":") if address else _home_of(runner, asked_by)
    functions = [target_of(definition.fn) for definition in definitions.values()]
    homes = dict.fromkeys([module, *(str(getattr(function, "__module__", "") or module) for function in functions)])
    program = sys.modules.get("__main__")
    main = b""
    known: dict[str, str] = {}
    if "__main__" in homes:
        spec = getattr(program, "__spec__", None)
        if spec is not None:  # python -m NAME
            known["__main__"] = spec.name
        else:
            main, known["__main__"] = _file_of(program, asked_by), MAIN
    names = [known.get(home, home) for home in homes]
    return Origin(module=names[0], name=name, modules=tuple(names[1:]), main=main, setup=setup)


def load(origin: Origin) -> Any:  # noqa: ANN401 - a TaskRunner, which this floor does not know
    """Import a runner, in a child.

    Raises:
        InvalidInput: there is none where it was.
        BaseException: whatever the import raises.
    """
    if origin.setup:
        module, _, name = origin.setup.partition(":")
        getattr(importlib.import_module(module), name)()
    if origin.main:
        _import_program(Path(os.fsdecode(origin.main)))
    found: Any = importlib.import_module(origin.module)
    for module in origin.modules:
        importlib.import_module(module)
    for part in origin.name.split("."):
        found = getattr(found, part)
    if not hasattr(found, "definitions") and callable(found):
        found = found()
    if not hasattr(found, "definitions"):
        message = f"{origin.module}:{origin.name} is no TaskRunner when it is imported again"
        raise InvalidInput(message)
    return found


_importing: list[None] = []


@contextmanager
def importing() -> Iterator[None]:
    """The app is being imported in a child: it must not do again what the program does."""
    _importing.append(None)
    try:
        yield
    finally:
        _importing.pop()


def refuse_while_importing() -> None:
    """Refuse to open a store or to work while a child imports the app.

    Raises:
        NotOpen: it does.
    """
    if _importing:
        message = (
            "a child process imports this program, which begins its work anew: put what starts it under "
            "if __name__ == '__main__':"
        )
        raise NotOpen(message)


def _home_of(runner: object, asked_by: str) -> tuple[str, str, str]:
    """The module in which a runner has a name, best one that is not the program itself."""
    found = [
        (module_name, name)
        for module_name, module in list(sys.modules.items())
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is runner
    ]
    if not found:
        message = (
            f"{asked_by}: a child process imports the runner by its name, and this one has none in any module: "
            "define it at the top of a module, or start it with `taskrunner run module:function`"
        )
        raise InvalidInput(message, path=asked_by)
    made_in = getattr(runner, "made_in", "")  # others have only imported it: a test, which has no business in a child
    module, name = min(found, key=lambda place: (place[0] in {"__main__", MAIN}, place[0] != made_in))
    return module, ":", name


def _file_of(program: object, asked_by: str) -> bytes:
    file = getattr(program, "__file__", None)
    if file is None or not Path(file).is_file():
        message = (
            f"{asked_by}: a child process imports the program, and this one is in no file (python -c, a prompt, a "
            "notebook): put its runner and its tasks into a module"
        )
        raise InvalidInput(message, path=asked_by)
    return os.fsencode(Path(file).absolute())


def _import_program(file: Path) -> None:
    spec = spec_from_file_location(MAIN, file, loader=SourceFileLoader(MAIN, str(file)))
    if spec is None or spec.loader is None:
        message = f"{file}: it cannot be imported"
        raise InvalidInput(message)
    module = module_from_spec(spec)
    sys.modules[MAIN] = sys.modules["__main__"] = module
    spec.loader.exec_module(module)
