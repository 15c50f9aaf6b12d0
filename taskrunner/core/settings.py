"""Settings: one table of knobs, from which every route of giving one is derived.

A knob has the same name and the same default in code, on the command line (`--max-losses`), in the environment
(`TASKRUNNER_MAX_LOSSES`) and in the table `[tool.taskrunner]` of a pyproject.toml; `resolve` says which of them counts.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from taskrunner.core.durations import seconds
from taskrunner.core.errors import InvalidInput

Origin: TypeAlias = Literal["flag", "override", "code", "env", "pyproject", "default"]
Durability: TypeAlias = Literal["full", "normal"]

ENVIRONMENT: Final = "TASKRUNNER_"
TEST_SWITCHES: Final = "TASKRUNNER_TEST_"
"""Variables that begin so switch something on or off for our own tests: they are no settings."""

SHORTEST: Final = 0.001
"""Seconds: no interval is shorter, for it would be a spin."""

LARGEST_PAYLOAD: Final = 256 * 1024 * 1024
"""Bytes: a row of SQLite holds 1 GB, and a task's row has an input and an output."""

LEAST_MEMORY: Final = 64 * 1024 * 1024
"""Bytes: a child with less could not even import taskrunner."""

MOST_MEMORY: Final = 1 << 50

_LONGEST_NAME = 200
_SIZE = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*(?:([kKMG])(i?))?B?\s*")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3}
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting: how it is read, what it is when nobody says, and what it does."""

    name: str
    read: Callable[[object, str], object]
    """Turns a given value into the setting's, or raises InvalidInput with the label that it is handed."""
    default: object
    doc: str
    derive: Callable[[Mapping[str, Any]], object] | None = None
    """Makes the default out of the knobs above it in the table; `default` is then the formula, as a text for people."""
    none: str = ""
    """What the default None means, as a word for people."""
    from_text: Callable[[str], object] = str
    """What the text of a flag or a variable stands for; `read` refuses what is still a text and should be none."""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"{ENVIRONMENT}{self.name.upper()}"

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def label(self, origin: Origin) -> str:
        """How errors call it: by its name and, outside code, by the place where somebody has to mend it."""
        places = {"flag": self.flag, "env": self.variable, "pyproject": "[tool.taskrunner]"}
        return f"{self.name} ({places[origin]})" if origin in places else self.name


# ── how values are read ───────────────────────────────────────────────────────────────────────────────────────────────


def _refused(label: str, value: object, rule: str) -> InvalidInput:
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001 - anybody's __repr__; Python's own for an int of more than 4,300 digits
        shown = f"<{type(value).__name__}>"
    return InvalidInput(f"{label}={shown if len(shown) <= _LONGEST_NAME else shown[:_LONGEST_NAME] + '…'}: {rule}")


def _duration(shortest: float) -> Callable[[object, str], object]:
    def read(value: Any, label: str) -> float:  # noqa: ANN401 - whatever the user gave
        number = seconds(value, label, zero=shortest == 0)
        if number < shortest:
            raise _refused(label, value, f"it must be at least {shortest:g} s")
        return number

    return read


def _whole(least: int, most: int, *, why: str = "") -> Callable[[object, str], object]:
    def read(value: object, label: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _refused(label, value, f"it must be a whole number from {least} to {most:,}{why}")
        return value

    return read


def _size(least: int, most: int, bounds: str) -> Callable[[object, str], object]:
    def read(value: object, label: str) -> int:
        if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
            number, letter, binary = match.groups()
            value = int(float(number) * (1024 if binary else 1000) ** _POWERS.get(letter, 0))
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _refused(label, value, f"it must be a size {bounds}, such as 65536, '500kB' or '2MiB'")
        return value

    return read


def _truth(value: object, label: str) -> bool:
    if not isinstance(value, bool):
        raise _refused(label, value, "it must be true or false")
    return value


def _durability(value: object, label: str) -> str:
    if not isinstance(value, str) or value not in {"full", "normal"}:
        raise _refused(label, value, "it must be 'full' or 'normal'")
    return str(value)


def _path(value: object, label: str) -> str:
    if not isinstance(value, str | Path) or not str(value):
        raise _refused(label, value, "it must be the path of a file")
    return str(value)


def _queues(value: object, label: str) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple | set | frozenset) or not names:
        raise _refused(label, value, "it must name at least one queue; leave it out for all")
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or any(map(_is_control, name)):
            raise _refused(label, name, f"a queue's name has 1 to {_LONGEST_NAME} characters, none of them a control")
    return tuple(dict.fromkeys(names))


def _is_control(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cs"}  # Cs: half of a surrogate pair, which no UTF-8 can hold


def _whole_of(text: str) -> object:
    return int(text) if _WHOLE.fullmatch(text) else text


def _truth_of(text: str) -> object:
    return _TRUTH.get(text.strip().lower(), text)


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────

KNOBS: Final[tuple[Knob, ...]] = (
    Knob("db", _path, "", "The path of the store's file."),
    Knob("concurrency", _whole(1, 10_000), 10, "Tasks that a supervisor runs at the same time.", from_text=_whole_of),
    Knob(
        "processes",
        _whole(0, 1_000),
        0,
        "Child processes in which a supervisor runs its tasks; 0: in its own process.",
        from_text=_whole_of,
    ),
    Knob(
        "max_memory",
        _size(LEAST_MEMORY, MOST_MEMORY, "of at least 64 MiB"),
        None,
        "Bytes of data that a child process may have (RLIMIT_DATA); what asks for more gets a MemoryError. No limit "
        "unless given.",
        none="no limit",
    ),
    Knob(
        "max_tasks_per_child",
        _whole(1, 1_000_000_000),
        None,
        "How many tasks a child process is given before another one takes its place. No limit unless given.",
        none="no limit",
        from_text=_whole_of,
    ),
    Knob("queues", _queues, None, "The queues that a supervisor takes tasks from; all unless given.", none="all"),
    Knob(
        "lease",
        _duration(10 * SHORTEST),
        30.0,
        "Seconds after which a supervisor that gives no sign of life has lost its tasks. The death of its process is "
        "seen at once: the lease is for one that is stopped, suspended or out of sight.",
    ),
    Knob(
        "heartbeat", _duration(SHORTEST), "lease / 3", "Seconds between two signs of life.", lambda it: it["lease"] / 3
    ),
    Knob("sweep", _duration(SHORTEST), 1.0, "Seconds between two looks for due tasks and dead supervisors."),
    Knob("grace", _duration(0), 30.0, "Seconds that running tasks have to end when they are cancelled or stopped."),
    Knob(
        "busy_timeout",
        _duration(SHORTEST),
        "(lease - 2 * heartbeat) / 2, at most 5 s",
        "Seconds to wait for another program's write lock.",
        lambda known: min(5.0, (known["lease"] - 2 * known["heartbeat"]) / 2),
    ),
    Knob(
        "max_losses",
        _whole(3, 1_000, why=", for one guilty task can cost an innocent one beside it two"),
        5,
        "How often in a row a task may lose its process before it is quarantined.",
        from_text=_whole_of,
    ),
    Knob(
        "max_retries",
        _whole(0, 1_000_000),
        3,
        "How often a task that raised is run again, unless its type or its enqueue says otherwise.",
        from_text=_whole_of,
    ),
    Knob("durability", _durability, "full", "'full' survives power loss, 'normal' the death of processes only."),
    Knob(
        "max_payload",
        _size(1, LARGEST_PAYLOAD, "from 1 byte to 256 MiB"),
        1024 * 1024,
        "Bytes that the JSON of an input, a result or a step's value may have.",
    ),
    Knob(
        "keep_finished", _duration(1.0), None, "How long a task is kept after its end, with its keys.", none="for ever"
    ),
    Knob(
        "allow_unsafe_mount",
        _truth,
        default=False,
        doc="Use a network or FUSE mount all the same: you vouch that one machine only opens the file.",
        from_text=_truth_of,
    ),
)
"""Every setting. A derived default needs the ones above it."""

_BY_NAME: Final = {knob.name: knob for knob in KNOBS}
_BY_VARIABLE: Final = {knob.variable: knob for knob in KNOBS}


@dataclass(frozen=True, slots=True)
class Flag:
    """A value from the command line, where `runner.override` takes it to somebody else's runner."""

    value: object

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting with its value, checked; times are in seconds, sizes in bytes. Made by `resolve`."""

    db: str
    """Empty: nobody has named a store."""
    concurrency: int
    processes: int
    max_memory: int | None
    """Bytes; None: no limit."""
    max_tasks_per_child: int | None
    """None: no limit."""
    queues: tuple[str, ...] | None
    """None: all."""
    lease: float
    heartbeat: float
    sweep: float
    grace: float
    busy_timeout: float
    max_losses: int
    max_retries: int
    durability: Durability
    max_payload: int
    keep_finished: float | None
    """None: for ever."""
    allow_unsafe_mount: bool
    origins: Mapping[str, Origin] = field(repr=False, compare=False)

    def origin(self, name: str) -> Origin:
        """Where the value of a setting came from."""
        return self.origins[name]


def resolve(
    flags: Mapping[str, object] | None = None,
    override: Mapping[str, object] | None = None,
    code: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    pyproject: Mapping[str, object] | None = None,
) -> Settings:
    """Settle every knob: a flag counts before an override, code, the environment, the file and the default.

    An override that is a `Flag` is taken as a flag. `env` is a whole environment, such as `os.environ`; an empty
    variable is taken as not given. `pyproject` is what `read_pyproject` returns. Elsewhere None means not given.

    Raises:
        InvalidInput: a value that cannot be, two that contradict each other, or a name that is no setting.
    """
    routes: dict[Origin, Mapping[str, object]] = {
        "flag": {**(flags or {}), **{name: it.value for name, it in (override or {}).items() if isinstance(it, Flag)}},
        "override": {name: it for name, it in (override or {}).items() if not isinstance(it, Flag)},
        "code": code or {},
        "env": _from_environment(env or {}),
        "pyproject": pyproject or {},
    }
    for origin, given in routes.items():
        _check_names(given, origin)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for knob in KNOBS:
        origins[knob.name] = next(
            (origin for origin, given in routes.items() if given.get(knob.name) is not None), "default"
        )
        values[knob.name] = _value(knob, origins[knob.name], routes, values)
    _check_together(values, origins)
    return Settings(**values, origins=MappingProxyType(origins))


def read_pyproject(path: Path = Path("pyproject.toml")) -> Mapping[str, object]:
    """The table `[tool.taskrunner]` of a pyproject.toml; empty where there is none.

    Raises:
        InvalidInput: the file cannot be read, or the table is none.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tools = tomllib.loads(text).get("tool", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: it cannot be read as TOML ({error})"
        raise InvalidInput(message, path=str(path)) from error
    table = tools.get("taskrunner", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        message = f"{path}: [tool.taskrunner] must be a table of settings, and it is {table!r}"
        raise InvalidInput(message, path=str(path))
    return table


def _from_environment(env: Mapping[str, str]) -> dict[str, object]:
    given: dict[str, object] = {}
    for variable, text in env.items():
        if not variable.startswith(ENVIRONMENT) or variable.startswith(TEST_SWITCHES):
            continue
        if variable not in _BY_VARIABLE:
            raise _unknown(variable, _nearest(variable.removeprefix(ENVIRONMENT)).variable)
        given[_BY_VARIABLE[variable].name] = text or None
    return given


def _check_names(given: Mapping[str, object], origin: Origin) -> None:
    for name in given:
        if name in _BY_NAME:
            continue
        nearest = _nearest(name)
        written = f"[tool.taskrunner] {name}" if origin == "pyproject" else name
        raise _unknown(written, nearest.flag if origin == "flag" else nearest.name)


def _nearest(name: str) -> Knob:
    return _BY_NAME[difflib.get_close_matches(name.lower().replace("-", "_"), _BY_NAME, n=1, cutoff=0)[0]]


def _unknown(name: str, nearest: str) -> InvalidInput:
    return InvalidInput(f"{name}: there is no such setting; the nearest is {nearest}", path=name)


def _value(
    knob: Knob, origin: Origin, routes: Mapping[Origin, Mapping[str, object]], known: Mapping[str, Any]
) -> object:
    if origin == "default":
        return knob.derive(known) if knob.derive else knob.default
    value = routes[origin][knob.name]
    if origin in {"flag", "env"} and isinstance(value, str):
        value = knob.from_text(value)
    try:
        return knob.read(value, knob.label(origin))
    except InvalidInput as error:
        error.path = knob.name
        raise


def _check_together(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> None:
    lease, heartbeat, busy = (values[name] for name in ("lease", "heartbeat", "busy_timeout"))
    if not 2 * heartbeat < lease:
        name, rule = "heartbeat", "it must be less than half of it"
    elif not busy < lease - 2 * heartbeat and origins["busy_timeout"] != "default":
        name, rule = "busy_timeout", f"it must be less than lease - 2 * heartbeat, which is {lease - 2 * heartbeat:g} s"
    else:
        return
    label = _BY_NAME[name].label(origins[name])
    message = f"{label}={values[name]:g}: with {_BY_NAME['lease'].label(origins['lease'])}={lease:g} {rule}"
    raise InvalidInput(message, path=name)
