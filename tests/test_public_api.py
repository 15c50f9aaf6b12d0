"""The public surface: exactly these names, callable as the contract says, each explained where it is defined."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_overloads

import pytest

import taskrunner

NAMES = """
    AmbiguousStep AttemptOver BoundTask Bridge DuplicateTask Duration Fail InvalidInput InvalidResult JSON LeaseLost
    Message NoSession NonDeterministicStep NotInStep NotInTask NotOpen OnConflict PayloadTooLarge Retry RetryOn Role
    Session Sessions Status StepFailed StepRunner StoreBusy StoreError StoreUnknown Task TaskCancelled TaskContext
    TaskDefinition TaskFailed TaskHandle TaskInfo TaskList TaskNotFound TaskRunner TaskRunnerError Tasks UnknownTask
    Wait
"""

ALIASES = {"Duration", "JSON", "OnConflict", "RetryOn", "Role", "Status", "Wait"}

OPTIONS = """priority=None, queue=None, delay=None, run_at=None, session_id=None, unique_key=None, on_conflict="reuse",
    idempotency_key=None, max_retries=None, timeout=None"""

CALLS: dict[str, str | list[str]] = {
    "Tasks": 'prefix="", /',
    "Tasks.task": [
        "self, fn, /",
        """self, *, name=None, queue="default", priority=5, timeout=None, max_retries=None, retry=None, wait=None,
        max_losses=None""",
    ],
    "TaskDefinition.bind": "self, *args, **kwargs",
    "TaskDefinition.handle": "self, task_id, /",
    "TaskDefinition.options": f"self, *, {OPTIONS}",
    "Bridge.__call__": "self, coroutine, /",
    "Bridge.__enter__": "self",
    "Bridge.__exit__": "self, kind, error, tb, /",
    "Bridge.iterate": "self, items, /",
    "TaskRunner": """db=None, /, *, durability=None, lease=None, heartbeat=None, sweep=None, grace=None,
        max_losses=None, max_retries=None, max_payload=None, busy_timeout=None, keep_finished=None,
        allow_unsafe_mount=False, lifespan=None, redact=()""",
    "TaskRunner.handle": "self, task_id, /",
    "TaskRunner.include": "self, tasks, /, *more",
    "TaskRunner.limit": "self, *, queue, concurrency",
    "TaskRunner.on": "self, event, listener, /",
    "TaskRunner.override": "self, *, db=None, **settings",
    "TaskRunner.working": "self, *, concurrency=None, processes=None, queues=None",
    "StepRunner.step": "self, name, fn, /, *args, **kwargs",
    "TaskContext.current": "",
    "TaskContext.now": "self",
    "TaskContext.options": "self, *, retry=None, wait=None, max_retries=0, timeout=None, returns=None, key=None",
    "TaskContext.random": "self",
    "TaskContext.uuid": "self",
    "Retry": 'reason="", /, *, after=None',
    "Fail": "reason, /",
}
"""Plain calls, by their parameters; two where there are overloads."""

COROUTINES: dict[str, str | list[str]] = {
    "TaskDefinition.enqueue": "self, *args, **kwargs",
    "TaskRunner.drain": "self, *, queues=None",
    "TaskRunner.enqueue": ["self, bound, /", f"self, name, input=..., /, *, {OPTIONS}"],
    "TaskRunner.enqueue_many": "self, bound, /",
    "TaskRunner.pause": "self, queue, /",
    "TaskRunner.read": "self, sql, params=None, /",
    "TaskRunner.resume": "self, queue, /",
    "TaskRunner.run": "self, *, concurrency=None, processes=None, queues=None",
    "TaskHandle.task": "self",
    "TaskHandle.info": "self",
    "TaskHandle.status": "self",
    "TaskHandle.progress": "self",
    "TaskHandle.result": "self, timeout=None",
    "TaskHandle.cancel": 'self, reason=""',
    "TaskHandle.retry": "self",
    "TaskList.get": "self, task_id, /",
    "TaskList.list": """self, *, status=None, type=None, queue=None, session_id=None, parent_task_id=None, limit=100,
        after=None""",
    "TaskContext.progress": 'self, fraction, message=""',
    "Sessions.create": 'self, *, title="", model=None, system_prompt=None',
    "Sessions.get": "self, session_id, /",
    "Sessions.list": 'self, *, status="active", limit=50, after=None',
    "Session.add": """self, role, content, /, *, tool_calls=(), tool_call_id=None, parent_msg_id=None, token_count=None,
        payload=None""",
    "Session.recent": "self, n, /",
}

PROPERTIES = {
    "TaskRunner": "sync",
    "TaskHandle": "id",
    "TaskContext": "attempt idempotency_key log resources session sync task",
}

ROWS = {
    "Task": """id session_id parent_task_id type queue priority status waiting_for unique_key cancel_requested_at input
        output error_message progress progress_message attempt losses retry_count max_retries run_at scheduled_for
        started_at completed_at created_at updated_at""",
    "TaskInfo": "task attempts steps children",
    "Message": """id session_id role content tool_calls tool_call_id parent_msg_id token_count payload created_at""",
}

ERRORS: dict[str, tuple[str | type, ...]] = {
    "TaskRunnerError": (Exception,),
    "TaskFailed": ("TaskRunnerError",),
    "TaskCancelled": ("TaskRunnerError",),
    "StepFailed": ("TaskRunnerError",),
    "TaskNotFound": ("TaskRunnerError", LookupError),
    "UnknownTask": ("TaskRunnerError", LookupError),
    "DuplicateTask": ("TaskRunnerError",),
    "InvalidInput": ("TaskRunnerError", ValueError),
    "PayloadTooLarge": ("InvalidInput",),
    "InvalidResult": ("TaskRunnerError", TypeError),
    "AmbiguousStep": ("TaskRunnerError",),
    "NotOpen": ("TaskRunnerError", RuntimeError),
    "NotInTask": ("TaskRunnerError", LookupError),
    "NotInStep": ("TaskRunnerError", LookupError),
    "NoSession": ("TaskRunnerError", LookupError),
    "StoreError": ("TaskRunnerError",),
    "StoreBusy": ("StoreError",),
    "StoreUnknown": ("StoreError",),
    "Retry": ("TaskRunnerError",),
    "Fail": ("TaskRunnerError",),
    "AttemptOver": (BaseException,),
    "LeaseLost": ("AttemptOver",),
    "NonDeterministicStep": ("AttemptOver",),
}

LATER = {
    "TaskDefinition": "schedule",
    "TaskRunner": "schedule signal",
    "TaskHandle": "signal stream fork",
    "TaskContext": """transaction artifacts continue_as sleep wait_for approve spawn gather emit throttle
        spend""",
    "Sessions": "search archive delete erase export",
    "Session": "append flush context branch state",
}

HEAVY = {"hypothesis", "psycopg", "pydantic", "pytest", "rich", "sqlite3", "trio"}
"""What `import taskrunner` must do without, so that a program and the command start at once."""


def resolve(name: str) -> Any:  # noqa: ANN401 - a class or a function
    """Find `Class` or `Class.member`, as defined."""
    owner, _, member = name.partition(".")
    found = getattr(taskrunner, owner)
    return inspect.getattr_static(found, member) if member else found


def parameters(call: Callable[..., object]) -> list[inspect.Parameter]:
    """The parameters of a function or of a class."""
    return list(inspect.signature(call).parameters.values())


def accepts(actual: Callable[..., object], expected: str) -> bool:
    """Whether every call that `expected` allows is allowed by `actual`, which may take more."""
    theirs = parameters(actual)
    named = {parameter.name: parameter for parameter in theirs}
    several = {parameter.kind for parameter in theirs if is_many(parameter)}
    wanted = parameters(eval(f"(lambda {expected}: None)"))  # noqa: S307 - a text of this file
    for index, want in enumerate(wanted):
        if is_many(want):
            if want.kind not in several:
                return False
            continue
        by_place = want.kind is want.POSITIONAL_ONLY
        found = (theirs[index] if index < len(theirs) else None) if by_place else named.pop(want.name, None)
        if found is None or (not by_place and found.kind is not want.kind):
            return False
        if (by_place and found.kind is found.KEYWORD_ONLY) or (want.default is want.empty) < (
            found.default is want.empty
        ):
            return False
        named.pop(found.name, None)
    return all(more.default is not more.empty or is_many(more) for more in named.values())


def is_many(parameter: inspect.Parameter) -> bool:
    """Whether it is `*args` or `**kwargs`."""
    return parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}


@pytest.mark.parametrize(
    ("promised", "given", "fits"),
    [
        ("a, b=1", "a, b=1", True),
        ("a", "a, more=0, *, most=0", True),
        ("a, /", "other", True),
        ("*, a=1", "**kwargs", False),
        ("a, b=1", "a, b", False),
        ("a", "b", False),
        ("a", "*, a", False),
        ("a", "a, b", False),
        ("a, b", "a", False),
        ("*args, **kwargs", "*args", False),
    ],
)
def test_the_comparison_can_fail(promised: str, given: str, fits: bool) -> None:
    """A call that was promised and is refused is found; one that may do more is no harm."""
    assert accepts(eval(f"lambda {given}: None"), promised) is fits  # noqa: S307 - a text of this file


def test_the_names_are_these() -> None:
    """`__all__` is the whole contract of this version, in the linter's order: constants first, then by alphabet."""
    assert list(taskrunner.__all__) == sorted(NAMES.split(), key=lambda name: (not name.isupper(), name))


def test_there_are_no_other_names() -> None:
    """What a program finds in `taskrunner` is public or one of its modules; the rest is nobody's to use."""
    modules = {module.name for module in pkgutil.iter_modules(taskrunner.__path__)}
    assert {name for name in dir(taskrunner) if not name.startswith("_")} - modules == set(NAMES.split())
    with pytest.raises(AttributeError, match="module 'taskrunner' has no attribute 'nonsense'"):
        taskrunner.nonsense  # type: ignore[attr-defined]  # noqa: B018 - to look for it is the test


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_as_the_contract_says(name: str) -> None:
    """Each function takes what the contract says, by the same names; it may take more."""
    check_call(name, CALLS[name], asynchronous=False)


@pytest.mark.parametrize("name", COROUTINES)
def test_a_coroutine_is_as_the_contract_says(name: str) -> None:
    """Each `async def` takes what the contract says, by the same names; it may take more."""
    check_call(name, COROUTINES[name], asynchronous=True)


def check_call(name: str, expected: str | list[str], *, asynchronous: bool) -> None:
    """Compare one call with its line in the tables above."""
    found = resolve(name)
    if isinstance(found, classmethod):
        found = getattr(taskrunner.TaskContext, found.__func__.__name__)
    assert inspect.iscoroutinefunction(found) is asynchronous
    forms = (inspect.isfunction(found) and get_overloads(found)) or [found]
    for text in [expected] if isinstance(expected, str) else expected:
        assert any(accepts(form, text) for form in forms), [str(inspect.signature(form)) for form in forms]


@pytest.mark.parametrize("owner", PROPERTIES)
def test_a_property_is_there(owner: str) -> None:
    """What is read without a call."""
    for name in PROPERTIES[owner].split():
        assert isinstance(resolve(f"{owner}.{name}"), property)


def test_a_runner_has_its_nouns() -> None:
    """A runner that nothing was done with yet offers its sessions and its tasks."""
    runner = taskrunner.TaskRunner()
    assert isinstance(runner.sessions, taskrunner.Sessions)
    assert isinstance(runner.tasks, taskrunner.TaskList)


@pytest.mark.parametrize("owner", ROWS)
def test_a_row_is_frozen_and_has_its_columns(owner: str) -> None:
    """A row is what was read, not a handle to change it by."""
    row = resolve(owner)
    assert is_dataclass(row)
    assert set(ROWS[owner].split()) <= {column.name for column in fields(row)}
    assert vars(row)["__dataclass_params__"].frozen


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_stands_in_the_tree(name: str) -> None:
    """One `except TaskRunnerError` catches all that is an error, and no `except Exception` what must pass."""
    for base in ERRORS[name]:
        assert issubclass(resolve(name), resolve(base) if isinstance(base, str) else base)
    assert issubclass(resolve(name), Exception) is (name not in {"AttemptOver", "LeaseLost", "NonDeterministicStep"})


@pytest.mark.parametrize("owner", LATER)
def test_what_is_not_built_is_absent(owner: str) -> None:
    """A name that would not work yet is not there: no stubs."""
    assert [name for name in LATER[owner].split() if hasattr(resolve(owner), name)] == []


def test_everything_public_is_explained() -> None:
    """`help()` of a public class, of a method, of a property says what it is for."""
    assert sorted(unexplained()) == []


def unexplained() -> Iterator[str]:
    """Public names without words of their own; what `dataclass` writes for a class is no explanation."""
    for name in sorted(set(NAMES.split()) - ALIASES):
        found = resolve(name)
        if not found.__doc__ or found.__doc__.startswith(f"{name}("):
            yield name
        for base in found.__mro__ if inspect.isclass(found) else ():
            if base.__module__.startswith("taskrunner"):
                yield from (
                    f"{base.__module__}.{base.__qualname__}.{member}"
                    for member, value in vars(base).items()
                    if not member.startswith("_") and is_member(value) and not inspect.getdoc(value)
                )


def is_member(value: object) -> bool:
    """Whether `value` is a method or a property as it stands in its class."""
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def test_import_is_light() -> None:
    """`import taskrunner` loads nothing heavy or optional, so that the command starts at once."""
    code = "import sys, taskrunner; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert HEAVY.isdisjoint(loaded), HEAVY & set(loaded)
