"""Long agent jobs that survive anything, in one SQLite file, with nothing else to run."""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from taskrunner.app import TaskRunner
    from taskrunner.authoring.context import TaskContext
    from taskrunner.authoring.definition import BoundTask, TaskDefinition, Tasks
    from taskrunner.authoring.handle import DuplicateTask, TaskHandle
    from taskrunner.authoring.listing import TaskList
    from taskrunner.authoring.retry import RetryOn, Wait
    from taskrunner.authoring.steps import StepRunner
    from taskrunner.core.bridge import Bridge
    from taskrunner.core.durations import Duration
    from taskrunner.core.errors import (
        AmbiguousStep,
        AttemptOver,
        Fail,
        InvalidInput,
        InvalidResult,
        LeaseLost,
        NonDeterministicStep,
        NoSession,
        NotInStep,
        NotInTask,
        NotOpen,
        PayloadTooLarge,
        Retry,
        StepFailed,
        StoreBusy,
        StoreError,
        StoreUnknown,
        TaskCancelled,
        TaskFailed,
        TaskNotFound,
        TaskRunnerError,
        UnknownTask,
    )
    from taskrunner.core.model import JSON, Message, Task, TaskInfo
    from taskrunner.core.states import OnConflict, Role, Status
    from taskrunner.resources.sessions import Session, Sessions

__all__ = [
    "JSON",
    "AmbiguousStep",
    "AttemptOver",
    "BoundTask",
    "Bridge",
    "DuplicateTask",
    "Duration",
    "Fail",
    "InvalidInput",
    "InvalidResult",
    "LeaseLost",
    "Message",
    "NoSession",
    "NonDeterministicStep",
    "NotInStep",
    "NotInTask",
    "NotOpen",
    "OnConflict",
    "PayloadTooLarge",
    "Retry",
    "RetryOn",
    "Role",
    "Session",
    "Sessions",
    "Status",
    "StepFailed",
    "StepRunner",
    "StoreBusy",
    "StoreError",
    "StoreUnknown",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskDefinition",
    "TaskFailed",
    "TaskHandle",
    "TaskInfo",
    "TaskList",
    "TaskNotFound",
    "TaskRunner",
    "TaskRunnerError",
    "Tasks",
    "UnknownTask",
    "Wait",
]

_HOMES = {
    "app": "TaskRunner",
    "authoring.context": "TaskContext",
    "authoring.definition": "BoundTask TaskDefinition Tasks",
    "authoring.handle": "DuplicateTask TaskHandle",
    "authoring.listing": "TaskList",
    "authoring.retry": "RetryOn Wait",
    "authoring.steps": "StepRunner",
    "core.bridge": "Bridge",
    "core.durations": "Duration",
    "core.errors": """
        AmbiguousStep AttemptOver Fail InvalidInput InvalidResult LeaseLost NonDeterministicStep NoSession
        NotInStep NotInTask NotOpen PayloadTooLarge Retry StepFailed StoreBusy StoreError StoreUnknown
        TaskCancelled TaskFailed TaskNotFound TaskRunnerError UnknownTask
    """,
    "core.model": "JSON Message Task TaskInfo",
    "core.states": "OnConflict Role Status",
    "resources.sessions": "Session Sessions",
}
"""Where each name is defined. It is loaded when it is first asked for, so that the command starts at once."""

if not _typing.TYPE_CHECKING:  # a checker that saw this would believe in every name

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names.split()), None)
        if home is None:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message, name=name)
        value = globals()[name] = getattr(_import_module(f"{__name__}.{home}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
