"""The shape of the house, proved from its source: floors, circles, sizes, and what may stand where."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("taskrunner", "tests", "workers", "examples", "benchmarks")

ROOMS = {"core": 1, "storage": 2, "resources": 3, "authoring": 4, "runtime": 5, "app": 6}
FRONT = 7  # taskrunner/__init__.py: the public names
DOORS = ("__main__", "chaos", "cli", "observability", "testing", "workers")  # optional leaves, on top of it all
OUTSIDE = "taskrunner.chaos"  # it breaks seams, and looks at the store with another library: in its own processes

MAX_FILE, MAX_CLASS, MAX_FUNCTION = 400, 300, 60

SQL = re.compile(
    r"\s*(?:(?:SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|WITH|ATTACH)\s+[\w*('\"]|(PRAGMA|BEGIN|COMMIT)\b)"
)
OPENS_A_FILE = re.compile(r"(?:(?:os|io|codecs)\.)?open|.*\.(?:read|write)_bytes")
"""Calls by which a program opens a file. (`.open` of anything else than a path is some verb of ours.)"""
PATH_OPEN = re.compile(r".*(?:path|file|folder|db|Path\(.*\))\.open", re.IGNORECASE)
MAY_OPEN = {
    "taskrunner.storage.guard": "the store's own file, with care, and what the system says of mounts",
    "taskrunner.storage.hold": "the store's own file, held for as long as the process has it open",
    "taskrunner.storage.checkpoint": "the lock file of whoever checkpoints",
    "taskrunner.storage.bells": "the store's folder, where a socket's path would be too long",
    "taskrunner.runtime.liveness": "the lock files of supervisors",
    "taskrunner.runtime.proc": "/proc",
}
STARTS_A_THREAD = re.compile(r"(?:threading\.)?(?:Thread|Timer)|_thread\.start_new_thread|start_new_thread")

RUNS_DATA = re.compile(
    r"(?:builtins\.)?(?:eval|exec|compile|__import__)|(?:pickle|cPickle|_pickle|marshal|shelve|dill|cloudpickle|joblib|"
    r"jsonpickle|yaml|runpy)\..*"
)
"""Calls by which what was stored, or sent, could become code."""
IMPORTS_BY_NAME = re.compile(r"(?:importlib\.|_)?import_module|spec_from_file_location|(?:importlib\.util\.).*")
MAY_IMPORT = {
    "taskrunner": "its own public names, on first use",
    "taskrunner.cli.app_path": "the APP of the command line",
    "taskrunner.cli.program": "its own commands",
    "taskrunner.runtime.origin": "in a child, the program of its supervisor, as that has found it",
}
OURS_ALONE = "taskrunner.chaos"
"""The door that plants bugs in our own source, to see that they are found; nothing stored comes near it."""


@dataclass
class Module:
    """One source file with what it imports of ours."""

    name: str
    tree: ast.Module
    edges: list[tuple[str, int]] = field(default_factory=list)
    """(module, line) of each import of ours: at the top, inside functions, under TYPE_CHECKING, by `import_module`."""
    relative: list[int] = field(default_factory=list)

    def at(self, line: int) -> str:
        """Say a place as an editor takes it."""
        return f"{self.name}:{line}"


def house(sources: dict[str, str]) -> dict[str, Module]:
    """Read modules, by name, and what they import of each other."""
    modules = {name: Module(name, ast.parse(source)) for name, source in sources.items()}
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                module.relative.append(node.lineno)
            for target in imported(node, modules):
                if target.partition(".")[0] == "taskrunner":
                    module.edges.append((target, getattr(node, "lineno", 0)))
    return modules


def imported(node: ast.AST, modules: dict[str, Module]) -> list[str]:
    """What one node imports: `from a import b` means the module a.b where there is one, else a name in a."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(module=str(name), level=0):
            return [full if (full := f"{name}.{alias.name}") in modules else name for alias in node.names]
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]) if "import" in ast.unparse(function):
            return [name]
    return []


def read(folder: str) -> Iterator[tuple[str, str]]:
    """Every module of a folder of the checkout: its name and its source."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path.read_text(encoding="utf-8")


@cache
def ours() -> dict[str, Module]:
    """The package as it is."""
    return house(dict(read("taskrunner")))


def floor(name: str) -> int:
    """The floor on which a module stands."""
    return FRONT if name == "taskrunner" else ROOMS.get(name.split(".")[1], FRONT + 1)


def upward(modules: dict[str, Module]) -> list[str]:
    """Imports of a higher floor."""
    return [
        f"{module.at(line)} imports {target}"
        for module in modules.values()
        for target, line in module.edges
        if floor(target) > floor(module.name)
    ]


def relative(modules: dict[str, Module]) -> list[str]:
    """Imports that do not say the whole name."""
    return [module.at(line) for module in modules.values() for line in module.relative]


def circle(modules: dict[str, Module]) -> list[str]:
    """Modules that need each other, in order."""
    graph = {module.name: {target for target, _line in module.edges} for module in modules.values()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def private(modules: dict[str, Module]) -> list[str]:
    """Where task types and programs, which show users what they can write, use more than users have."""
    return [
        f"{module.at(line)} imports {target}"
        for module in modules.values()
        if not re.fullmatch(r"taskrunner(\.(?!workers\b).*)?", module.name)
        for target, line in module.edges
        if not re.fullmatch(r"taskrunner(\.testing|\.workers(\..*)?)?", target)
    ]


def sql(modules: dict[str, Module]) -> list[str]:
    """Statements outside the .sql files. The engine may say PRAGMA, BEGIN and COMMIT: they belong to no table."""
    return [
        f"{module.at(line)} {text[:40]!r}"
        for module in modules.values()
        if not module.name.startswith(OUTSIDE)
        for line, text in texts(module.tree)
        if (found := SQL.match(text)) and not (found[1] and module.name.startswith("taskrunner.storage"))
    ]


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string in the code with its line, except for docstrings and other bare strings."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


def calls(modules: dict[str, Module], *patterns: re.Pattern[str], where: Callable[[str], bool]) -> list[str]:
    """Calls whose function's text matches, in the modules asked for."""
    return [
        f"{module.at(node.lineno)} calls {name}"
        for module in modules.values()
        if where(module.name)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        for name in [ast.unparse(node.func)]
        if any(pattern.fullmatch(name) for pattern in patterns)
    ]


def opens(modules: dict[str, Module]) -> list[str]:
    """Where a room opens a file: the lowest floor does not know of files, and doors write reports."""
    return calls(
        modules, OPENS_A_FILE, PATH_OPEN, where=lambda name: floor(name) in range(2, FRONT) and name not in MAY_OPEN
    )


def threads(modules: dict[str, Module]) -> list[str]:
    """Where a thread is started past the seam."""
    return calls(
        modules, STARTS_A_THREAD, where=lambda name: name != "taskrunner.core.threads" and not name.startswith(OUTSIDE)
    )


def runs_data(modules: dict[str, Module]) -> list[str]:
    """Where something could be unpickled or evaluated."""
    return calls(modules, RUNS_DATA, where=lambda name: not name.startswith(OURS_ALONE))


def imports_by_name(modules: dict[str, Module]) -> list[str]:
    """Where a module is imported whose name is no part of the source."""
    return calls(
        modules,
        IMPORTS_BY_NAME,
        where=lambda name: name not in MAY_IMPORT and not name.startswith(OURS_ALONE),
    )


def too_long(name: str, source: str) -> Iterator[str]:
    """What in a file is longer than a reader can hold in mind. A function is counted without its decorators."""
    if (lines := len(source.splitlines())) > MAX_FILE:
        yield f"{name} has {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > (MAX_CLASS if isinstance(node, ast.ClassDef) else MAX_FUNCTION):
                yield f"{name}:{node.lineno} {node.name} has {length} lines"


# ── what is so ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_file_has_its_floor() -> None:
    """`ls taskrunner` is the architecture: nothing stands there that has no place in it."""
    known = {"__init__", *ROOMS, *DOORS}
    there = {name.split(".")[1] for name in ours() if name != "taskrunner"}
    assert there <= known


def test_imports_run_down_only() -> None:
    """Who reads a floor needs to know the floors below it and no other; an import for types counts as any."""
    assert upward(ours()) == []


def test_imports_are_absolute() -> None:
    """An import says where its name is defined."""
    assert relative(ours()) == []


def test_no_module_stands_in_a_circle() -> None:
    """There is an order in which to read the house."""
    assert circle(ours()) == []


def test_workers_and_examples_use_public_names_only() -> None:
    """What we deploy and show, users can write."""
    names = house(dict([*read("taskrunner"), *read("workers"), *read("examples")]))
    assert private(names) == []


def test_sql_stands_in_sql_files() -> None:
    """Every statement has a name and a comment, in a file of its dialect."""
    assert sql(ours()) == []


def test_only_the_guard_opens_files() -> None:
    """One `open(db).close()` drops every lock that SQLite holds on the store in this process (B53)."""
    assert opens(ours()) == []


def test_threads_are_started_in_one_place() -> None:
    """Each of our threads has a name and cannot hold up the exit, and a simulation can do without them."""
    assert threads(ours()) == []


def test_nothing_stored_becomes_code() -> None:
    """No pickle, no eval: whoever can write a row, or speak to a child, cannot make us run what he likes (G10)."""
    names = house(dict([*read("taskrunner"), *read("workers")]))
    assert runs_data(names) == []


def test_names_are_imported_in_few_places() -> None:
    """What a row names is looked for among the registered tasks: only what an operator names is imported (G10)."""
    assert imports_by_name(ours()) == []


def test_files_classes_and_functions_are_short() -> None:
    """A file has at most 400 lines, a class 300, a function 60: what is longer is two things."""
    sources = dict(item for folder in CODE for item in read(folder))
    assert [item for name, source in sources.items() for item in too_long(name, source)] == []


# ── and that the rules bite ───────────────────────────────────────────────────────────────────────────────────────────

WRONG: dict[str, tuple[Callable[[dict[str, Module]], list[str]], dict[str, str]]] = {
    "upward": (upward, {"core.a": "import taskrunner.storage.b", "storage.b": ""}),
    "upward, of a name": (upward, {"core.a": "from taskrunner.storage.b import c", "storage.b": ""}),
    "upward, of a module": (upward, {"core.a": "from taskrunner.storage import b", "storage.b": ""}),
    "upward, in a function": (upward, {"app": "def f():\n    from taskrunner.cli import g", "cli": ""}),
    "upward, for types": (upward, {"core.a": "if TYPE_CHECKING:\n    from taskrunner.app import B", "app": ""}),
    "upward, by text": (upward, {"core.a": "import_module('taskrunner.app')", "app": ""}),
    "the front from a room": (upward, {"runtime.a": "from taskrunner import Task"}),
    "relative": (relative, {"core.a": "from . import b", "core.b": ""}),
    "a circle": (circle, {"core.a": "import taskrunner.core.b", "core.b": "from taskrunner.core import a"}),
    "a circle of types": (
        circle,
        {"core.a": "import taskrunner.core.b", "core.b": "if T:\n    import taskrunner.core.a"},
    ),
    "a worker from behind": (private, {"workers.a": "from taskrunner.core.b import c", "core.b": ""}),
    "a query": (sql, {"runtime.a": "q = 'SELECT * FROM tasks'"}),
    "a query, composed": (sql, {"storage.a": "q = f'UPDATE tasks SET {column} = 1'"}),
    "a pragma outside": (sql, {"cli.a": "q = 'PRAGMA journal_mode'"}),
    "open": (opens, {"storage.a": "open(db)"}),
    "os.open": (opens, {"runtime.a": "os.open(db, 0)"}),
    "Path.open": (opens, {"resources.a": "Path(db).open()"}),
    "path.open": (opens, {"app": "self.path.open('rb')"}),
    "read_bytes": (opens, {"storage.a": "Path(db).read_bytes()"}),
    "eval": (runs_data, {"storage.a": "eval(row[0])"}),
    "a pickle": (runs_data, {"core.a": "pickle.loads(data)"}),
    "a yaml": (runs_data, {"cli.a": "yaml.load(text)"}),
    "an import by name": (imports_by_name, {"authoring.a": "importlib.import_module(row.type)"}),
    "an import by name, bare": (imports_by_name, {"runtime.a": "import_module(row.type)"}),
    "a thread": (threads, {"runtime.a": "threading.Thread(target=f).start()"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_rule_bites(case: str) -> None:
    """Each rule finds what it is there for."""
    rule, sources = WRONG[case]
    assert rule(house({"taskrunner": "", **{f"taskrunner.{name}": source for name, source in sources.items()}}))


RIGHT: dict[str, tuple[Callable[[dict[str, Module]], list[str]], dict[str, str]]] = {
    "downward": (upward, {"app": "from taskrunner.core.a import B", "core.a": ""}),
    "from a door": (upward, {"cli.a": "from taskrunner import B"}),
    "one beside the other": (circle, {"core.a": "from taskrunner.core.b import B", "core.b": ""}),
    "a worker from the front": (private, {"workers.a": "from taskrunner import B, c"}),
    "a worker of workers": (private, {"workers.a": "from taskrunner.workers.b import B", "workers.b": ""}),
    "an engine's pragma": (sql, {"storage.sqlite": "execute('PRAGMA optimize'); execute('BEGIN IMMEDIATE')"}),
    "English": (sql, {"app": "'''SELECT is no word of ours.'''\nraise ValueError('with it, select one')"}),
    "a pattern": (runs_data, {"core.a": "re.compile(text)"}),
    "a door's own commands": (imports_by_name, {"cli.program": "import_module(name)"}),
    "a verb called open": (opens, {"app": "Store.open(url)\nopen_store(url)\nself.store.open()"}),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_rule_spares(case: str) -> None:
    """Each rule leaves alone what is right."""
    rule, sources = RIGHT[case]
    assert not rule(house({"taskrunner": "", **{f"taskrunner.{name}": source for name, source in sources.items()}}))


def test_a_long_file_a_long_class_and_a_long_function_are_found() -> None:
    """Each limit counts from its first line too many."""
    body = "    x = 1\n"
    assert not list(too_long("a", "x = 1\n" * MAX_FILE))
    assert len(list(too_long("a", "x = 1\n" * (MAX_FILE + 1)))) == 1
    for head, limit in (("class A:\n", MAX_CLASS), ("def f():\n", MAX_FUNCTION), ("async def f():\n", MAX_FUNCTION)):
        assert not list(too_long("a", head + body * (limit - 1)))
        assert len(list(too_long("a", head + body * limit))) == 1
