"""Settings: the same names, values and rules by every route (B77)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskrunner.core.errors import InvalidInput
from taskrunner.core.settings import KNOBS, Flag, Settings, read_pyproject, resolve

Route = Callable[[Mapping[str, Any]], Settings]


def by_code(given: Mapping[str, Any]) -> Settings:
    """As arguments of TaskRunner."""
    return resolve(code=given)


def by_override(given: Mapping[str, Any]) -> Settings:
    """As arguments of `runner.override`."""
    return resolve(override=given)


def by_environment(given: Mapping[str, Any]) -> Settings:
    """As variables, in an environment that holds others."""
    texts = {f"TASKRUNNER_{name.upper()}": str(value) for name, value in given.items()}
    return resolve(env={"HOME": "/root", "TASKRUNNER_TEST_SWITCH": "1", **texts})


def by_flag(given: Mapping[str, Any]) -> Settings:
    """As texts on the command line."""
    return resolve(flags={name: str(value) for name, value in given.items()})


def by_file(given: Mapping[str, Any]) -> Settings:
    """As a table of a pyproject.toml."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    return resolve(pyproject=tomllib.loads("\n".join(lines)))


ROUTES = {"code": by_code, "override": by_override, "env": by_environment, "flag": by_flag, "pyproject": by_file}
every_route = pytest.mark.parametrize(("origin", "by"), ROUTES.items(), ids=ROUTES)

CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"lease": 5, "heartbeat": 10}, "heartbeat", r"=10: with lease.*=5 it must be less than half of it"),
    ({"lease": 5, "heartbeat": 2.5}, "heartbeat", r"=2\.5: with lease.*=5 it must be less than half of it"),
    ({"lease": "10s"} | {"busy_timeout": 9}, "busy_timeout", r"=9: with lease.*=10 it must be less than lease - 2 \* "),
    ({"busy_timeout": 10}, "busy_timeout", r"=10: .* which is 10 s"),
    ({"lease": 0}, "lease", r"=.?0.?: .*must be more than 0"),
    ({"lease": -1}, "lease", "-1"),
    ({"lease": 0.001}, "lease", r"=.?0\.001.?: it must be at least 0\.01 s"),
    ({"lease": "5x"}, "lease", r"='5x': not a duration"),
    ({"lease": "4000000000s"}, "lease", "at most a hundred years"),
    ({"heartbeat": 0}, "heartbeat", "more than 0"),
    ({"heartbeat": 0.0001}, "heartbeat", r"at least 0\.001 s"),
    ({"sweep": 0}, "sweep", "more than 0"),
    ({"grace": -1}, "grace", "-1"),
    ({"busy_timeout": 0}, "busy_timeout", "more than 0"),
    ({"concurrency": 0}, "concurrency", r"=0: it must be a whole number from 1 to 10,000"),
    ({"concurrency": -1}, "concurrency", r"=-1: it must be a whole number from 1"),
    ({"concurrency": 2.5}, "concurrency", r"=.?2\.5.?: it must be a whole number"),
    ({"concurrency": "many"}, "concurrency", r"='many': it must be a whole number"),
    ({"concurrency": 2**63}, "concurrency", "9223372036854775808"),
    ({"max_losses": -1}, "max_losses", r"=-1: it must be a whole number from 3"),
    ({"max_losses": 2}, "max_losses", "whole number from 3 to 1,000, for one guilty task can cost an innocent"),
    ({"max_retries": -1}, "max_retries", r"=-1: it must be a whole number from 0"),
    ({"durability": "paranoid"}, "durability", r"='paranoid': it must be 'full' or 'normal'"),
    ({"max_payload": 0}, "max_payload", r"=.?0.?: it must be a size"),
    ({"max_payload": "2 MB of JSON"}, "max_payload", "'2MiB'"),
    ({"max_payload": "1GiB"}, "max_payload", "to 256 MiB"),
    ({"keep_finished": 0}, "keep_finished", "more than 0"),
    ({"keep_finished": "500ms"}, "keep_finished", r"='500ms': it must be at least 1 s"),
    ({"keep_finished": "for ever"}, "keep_finished", r"='for ever': not a duration"),
    ({"allow_unsafe_mount": "maybe"}, "allow_unsafe_mount", r"='maybe': it must be true or false"),
    ({"queues": "mail,,calls"}, "queues", r"='': a queue's name has 1 to 200 characters"),
    ({"queues": "a\tb"}, "queues", "none of them a control"),
]


@every_route
@pytest.mark.parametrize(("given", "name", "rule"), CONTRADICTIONS)
def test_what_cannot_be_is_refused_by_every_route(
    origin: str, by: Route, given: dict[str, Any], name: str, rule: str
) -> None:
    """One sentence names the setting, the value and the rule, and where to mend it (B77)."""
    with pytest.raises(InvalidInput, match=rule) as caught:
        by(given)
    place = {"env": f" (TASKRUNNER_{name.upper()})", "flag": f" (--{name.replace('_', '-')})", "pyproject": " ([tool."}
    assert str(caught.value).startswith(name + place.get(origin, "="))
    assert caught.value.path == name
    assert "\n" not in str(caught.value)


@every_route
@pytest.mark.parametrize("wrong", ["leese", "max_loses", "lease_seconds", "db_path", "zzz"])
def test_an_unknown_name_is_refused_by_every_route(origin: str, by: Route, wrong: str) -> None:
    """A slip of the pen does not run with the default: the nearest setting is named (B77)."""
    nearest = {"leese": "lease", "max_loses": "max_losses", "lease_seconds": "lease", "db_path": "db"}.get(wrong, "")
    written = {"env": nearest.upper(), "flag": nearest.replace("_", "-")}.get(origin, nearest)
    with pytest.raises(InvalidInput, match=rf"(?i){wrong}: there is no such setting; the nearest is .*{written}"):
        by({wrong: "1"})


VALUES: dict[str, Any] = {
    "db": "agent.db",
    "concurrency": 4,
    "queues": "mail, calls,mail",
    "lease": "1m",
    "heartbeat": 10,
    "sweep": 0.5,
    "grace": 0,
    "busy_timeout": "250ms",
    "max_losses": 3,
    "max_retries": 0,
    "durability": "normal",
    "max_payload": "2MiB",
    "processes": 2,
    "max_memory": "512MB",
    "max_tasks_per_child": 100,
    "keep_finished": "30d",
    "allow_unsafe_mount": True,
}


@every_route
def test_every_route_gives_the_same_values(origin: str, by: Route) -> None:
    """Whatever the route, the same settings come out, and say where they came from (B77)."""
    assert set(VALUES) == {knob.name for knob in KNOBS}
    settings = by(VALUES)
    assert settings == Settings(
        db="agent.db",
        concurrency=4,
        processes=2,
        max_memory=512_000_000,
        max_tasks_per_child=100,
        queues=("mail", "calls"),
        lease=60.0,
        heartbeat=10.0,
        sweep=0.5,
        grace=0.0,
        busy_timeout=0.25,
        max_losses=3,
        max_retries=0,
        durability="normal",
        max_payload=2 * 1024 * 1024,
        keep_finished=30 * 86_400.0,
        allow_unsafe_mount=True,
        origins={},
    )
    assert {settings.origin(knob.name) for knob in KNOBS} == {origin}


def test_the_defaults() -> None:
    """What holds when nobody says anything; heartbeat and busy_timeout follow the lease."""
    settings = resolve()
    assert settings == Settings(
        db="",
        concurrency=10,
        processes=0,
        max_memory=None,
        max_tasks_per_child=None,
        queues=None,
        lease=30.0,
        heartbeat=10.0,
        sweep=1.0,
        grace=30.0,
        busy_timeout=5.0,
        max_losses=5,
        max_retries=3,
        durability="full",
        max_payload=1024 * 1024,
        keep_finished=None,
        allow_unsafe_mount=False,
        origins={},
    )
    assert {settings.origin(knob.name) for knob in KNOBS} == {"default"}
    short = resolve(code={"lease": 6})
    assert (short.heartbeat, short.busy_timeout) == (2.0, 1.0)
    assert resolve(code={"lease": 6, "heartbeat": 1}).busy_timeout == 2.0
    assert resolve(code={"lease": 600}).busy_timeout == 5.0


def test_a_flag_counts_before_an_override_before_code_before_the_environment_before_the_file() -> None:
    """Each route loses to those before it, knob by knob; None and an empty variable are not given."""
    routes: dict[str, dict[str, Any]] = {
        "flags": {"lease": "61s", "grace": None},
        "override": {"lease": 62, "grace": 2},
        "code": {"lease": 63, "grace": 3, "sweep": 3},
        "env": {"TASKRUNNER_LEASE": "64", "TASKRUNNER_SWEEP": "4", "TASKRUNNER_MAX_RETRIES": "4", "TASKRUNNER_DB": ""},
        "pyproject": {"lease": 65, "max_retries": 5, "concurrency": 5, "db": "five.db"},
    }
    settings = resolve(**routes)
    got = {name: (getattr(settings, name), settings.origin(name)) for name in ("lease", "grace", "sweep", "db")}
    assert got == {
        "lease": (61, "flag"),
        "grace": (2, "override"),
        "sweep": (3, "code"),
        "db": ("five.db", "pyproject"),
    }
    assert (settings.max_retries, settings.origin("max_retries")) == (4, "env")
    assert (settings.concurrency, settings.origin("concurrency")) == (5, "pyproject")


def test_contradictions_across_routes_name_both_places() -> None:
    """A heartbeat from the code and a lease from the environment: the sentence names both (B77)."""
    with pytest.raises(InvalidInput, match=r"^heartbeat=10: with lease \(TASKRUNNER_LEASE\)=15 it must be less than"):
        resolve(code={"heartbeat": 10}, env={"TASKRUNNER_LEASE": "15"})


@pytest.mark.parametrize(
    "given",
    [
        {"concurrency": True},
        {"concurrency": "10"},
        {"concurrency": 10**5000},
        {"lease": True},
        {"lease": float("nan")},
        {"lease": float("inf")},
        {"lease": [30]},
        {"sweep": timedelta(0)},
        {"durability": "FULL"},
        {"durability": 1},
        {"max_payload": 1.5},
        {"max_payload": True},
        {"max_payload": "9" * 4000},
        {"allow_unsafe_mount": 1},
        {"allow_unsafe_mount": "true"},
        {"queues": []},
        {"queues": [1]},
        {"queues": 5},
        {"queues": ["x" * 201]},
        {"queues": ["\ud800"]},
        {"db": ""},
        {"db": 5},
        {"db": b"agent.db"},
    ],
)
def test_code_and_file_give_values_of_the_right_type(given: dict[str, Any]) -> None:
    """Where there are types, a text is no number and a truth value no count; the sentence stays short."""
    for route in ("code", "override", "pyproject"):
        routes: dict[str, Any] = {route: given}
        with pytest.raises(InvalidInput) as caught:
            resolve(**routes)
        assert caught.value.path == next(iter(given))
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("500kB", 500_000),
        ("500 KiB", 512_000),
        ("1.5MiB", 1_572_864),
        ("64M", 64_000_000),
    ],
)
def test_a_size_may_have_a_unit(text: int | str, size: int) -> None:
    """Bytes as a number, or with kB, MB (thousands), KiB, MiB (1024s)."""
    assert resolve(code={"max_payload": text}).max_payload == size
    assert resolve(env={"TASKRUNNER_MAX_PAYLOAD": str(text)}).max_payload == size


@pytest.mark.parametrize(
    ("text", "truth"), [("1", True), ("Yes", True), ("on", True), ("0", False), (" false ", False)]
)
def test_a_variable_says_yes_or_no(text: str, truth: bool) -> None:
    """A truth value in the environment is written as people do."""
    assert resolve(env={"TASKRUNNER_ALLOW_UNSAFE_MOUNT": text}).allow_unsafe_mount is truth


def test_a_queue_may_be_called_by_a_number() -> None:
    """A text stays a text where the setting is one."""
    assert resolve(env={"TASKRUNNER_QUEUES": "7", "TASKRUNNER_DB": "7"}).queues == ("7",)
    assert resolve(code={"queues": ["b", "a", "b"]}).queues == ("b", "a")
    assert resolve(code={"db": Path("agent.db")}).db == "agent.db"


@pytest.mark.parametrize("variable", ["TASKRUNNER_", "TASKRUNNER_lease", "TASKRUNNER_PROCESES", "TASKRUNNER_LEASE_"])
def test_a_variable_of_ours_that_is_no_setting_is_refused(variable: str) -> None:
    """Everything that begins with TASKRUNNER_ is meant for us; what begins with TASKRUNNER_TEST_ is for our tests."""
    with pytest.raises(InvalidInput, match=f"^{variable}: there is no such setting; the nearest is TASKRUNNER_"):
        resolve(env={variable: "5"})
    resolve(env={"TASKRUNNER_TEST_ANYTHING": "5", "OTHER_LEASE": "x", "taskrunner_lease": "x"})


def test_a_flag_may_come_as_an_override() -> None:
    """What the command line gives to a program's own runner is read, judged and named as a flag (B77)."""
    settings = resolve(override={"lease": Flag("61s"), "grace": 2}, code={"lease": 63})
    assert (settings.lease, settings.origin("lease"), settings.origin("grace")) == (61.0, "flag", "override")
    with pytest.raises(InvalidInput, match=r"^concurrency \(--concurrency\)='many'"):
        resolve(override={"concurrency": Flag("many")})


def test_the_file_is_read_from_its_table(tmp_path: Path) -> None:
    """`[tool.taskrunner]` counts, other tools' tables do not; without the file or the table nothing is given."""
    file = tmp_path / "pyproject.toml"
    assert read_pyproject(file) == {}
    file.write_text('[tool.other]\nlease = "x"\n')
    assert read_pyproject(file) == {}
    file.write_text('[tool.taskrunner]\ndb = "agent.db"\nqueues = ["mail"]\nlease = "2m"\nallow_unsafe_mount = false\n')
    settings = resolve(pyproject=read_pyproject(file))
    assert (settings.db, settings.queues, settings.lease) == ("agent.db", ("mail",), 120.0)
    assert settings.origin("allow_unsafe_mount") == "pyproject"


@pytest.mark.parametrize("content", [b"[tool", b"\xff", b"tool.taskrunner = 5", b"[[tool.taskrunner]]\n", None])
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    """A pyproject.toml that cannot be read, or whose table is none, is named."""
    file = tmp_path / "pyproject.toml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"pyproject\.toml: ") as caught:
        read_pyproject(file)
    assert "\n" not in str(caught.value)


def test_everything_is_derived_from_one_table() -> None:
    """The table has a knob for every field, in their order, each with a text; defaults pass their own rules."""
    assert [knob.name for knob in KNOBS] == [field.name for field in fields(Settings) if field.name != "origins"]
    for knob in KNOBS:
        assert knob.doc.endswith(".")
        assert knob.variable == f"TASKRUNNER_{knob.name.upper()}"
        if knob.default not in ("", None) and knob.derive is None:
            assert knob.read(knob.default, knob.name) == knob.default
