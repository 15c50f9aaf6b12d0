"""Long agent jobs that survive anything, in one SQLite file, with nothing else to run."""

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
