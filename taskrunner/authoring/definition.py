"""Tasks as their author defines them: the decorator, the definition, and a task bound to its input."""
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, overload

import msgspec
from typing_extensions import TypeVar

from taskrunner.authoring.context import TaskContext
from taskrunner.authoring.handle import Client, TaskHandle
from taskrunner.authoring.options import Options, enqueue_options, task_type
from taskrunner.authoring.retry import RetryOn, RetryPolicy, Wait
from taskrunner.authoring.signature import Signature
from taskrunner.core.durations import Duration
from taskrunner.core.errors import InvalidInput, NotOpen, UnknownTask
from taskrunner.core.hints import target_of
from taskrunner.core.model import JSON, NewTask, TaskType
from taskrunner.core.places import shown
from taskrunner.core.redaction import Redaction
from taskrunner.core.states import OnConflict

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True, default=Callable[..., Any])

_LAMBDA = "<lambda>"


class BoundTask(msgspec.Struct, Generic[R_co], frozen=True):
    """A task with its input and options, checked, not yet enqueued."""

    name: str
    new: NewTask
    returns: Any
    """The annotation of its result."""
    definition: TaskDefinition[..., Any] | None = None
    """Whose input it is; None: of a task that is known by its name only."""

    @property
    def input(self) -> JSON:
        """Its input, as it will be stored."""
        return msgspec.json.decode(self.new.input)


class Host(Client, Protocol):
    """Who enqueues: a task runner, as its tasks see it."""

    @property
    def redaction(self) -> Redaction:
        """What is hidden of the values of its tasks."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether it can enqueue now."""
        ...

    async def enqueue(self, bound: BoundTask[R], /) -> TaskHandle[R]:
        """Store the task; it is durable when this returns."""
        ...


current_host: ContextVar[Host | None] = ContextVar("current_host", default=None)
"""The runner whose task is running here: the runtime says so."""


class TaskDefinition(Generic[P, R, F_co]):
    """Your function, still your function: a call runs it here and now; `enqueue` makes it durable."""

    def __init__(self, fn: F_co, kind: TaskType, policy: RetryPolicy) -> None:
        self.name: str = kind.name
        self.fn: F_co = fn
        self.kind = kind
        self.policy = policy
        self.signature = Signature(fn)
        self.hosts: list[Host] = []
        functools.update_wrapper(self, fn, updated=())

    @property
    def __call__(self) -> F_co:
        """The function itself."""
        return self.fn

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundTask[R]:
        """Check the arguments of a call and keep them as the task's input.

        Raises:
            InvalidInput: they do not fit the function, or have no JSON form; `path` names the place.
        """
        new = NewTask(type=self.name, input=self.signature.encode(args, kwargs))
        return BoundTask(self.name, new, self.signature.returns, self)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Enqueue a task of this type, with the arguments of a call; it is durable when this returns.

        Raises:
            InvalidInput: the arguments do not fit the function, or have no JSON form; `path` names the place.
            UnknownTask: no runner includes this task.
            NotOpen: the runner is not open, or there are several and none of them is the one that is meant.
            StoreError: the store could not take it.
        """
        return await self.host().enqueue(self.bind(*args, **kwargs))

    def options(
        self,
        *,
        priority: int | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        session_id: str | None = None,
        unique_key: str | None = None,
        on_conflict: OnConflict = "reuse",
        idempotency_key: str | None = None,
        max_retries: int | None = None,
        timeout: Duration | None = None,
    ) -> Enqueuer[P, R]:
        """The same task with options for what is enqueued through the answer. None: as the task's definition says.

        `priority`: 0 to 9, lower first. `delay`: how long until it is due; `run_at`: when (an aware datetime).
        `unique_key`: at most one unfinished task of this type has it; `on_conflict` says what becomes of a second:
        "reuse" (default) gives the first one's handle, "replace" rewrites its input, `run_at` and priority and nothing
        else, "reject" raises `DuplicateTask`, as "replace" does once it has started. `idempotency_key`: a second
        enqueue of this type with it gets the first one's handle, even long after, and whatever its input.
        `max_retries`: how often it is run again after an error. `timeout`: of one attempt. Durations are seconds, or
        texts like "90s".

        Raises:
            InvalidInput: one of them is out of its bounds, or two contradict each other; `path` is its name.
        """
        checked = enqueue_options(
            priority=priority,
            queue=queue,
            delay=delay,
            run_at=run_at,
            session_id=session_id,
            unique_key=unique_key,
            on_conflict=on_conflict,
            idempotency_key=idempotency_key,
            max_retries=max_retries,
            timeout=timeout,
        )
        return Enqueuer(self, checked)

    def handle(self, task_id: str, /) -> TaskHandle[R]:
        """A handle to a task of this type that was enqueued earlier; nothing is looked up.

        Raises:
            UnknownTask: no runner includes this task.
            NotOpen: there are several runners and none of them is the one that is meant.
        """
        return TaskHandle(self.host(), task_id, self.signature.returns)

    def host(self) -> Host:
        """The runner that enqueues this task when none is named: its only one, the current task's, or the open one.

        Raises:
            UnknownTask: no runner includes this task.
            NotOpen: there are several runners and none of them is the one that is meant.
        """
        if len(self.hosts) == 1:
            return self.hosts[0]
        if not self.hosts:
            message = f"task {self.name!r} is in no runner: call runner.include(…) with its Tasks, after it is defined"
            raise UnknownTask(message)
        current = current_host.get()
        for chosen in ([host for host in self.hosts if host is current], [host for host in self.hosts if host.is_open]):
            if len(chosen) == 1:
                return chosen[0]
        message = (
            f"task {self.name!r} is in {len(self.hosts)} runners, of which not exactly one is open: "
            "say which, by runner.enqueue(task.bind(…))"
        )
        raise NotOpen(message)


class Enqueuer(Generic[P, R]):
    """A task definition with options."""

    def __init__(self, definition: TaskDefinition[P, R, Any], options: Options) -> None:
        self._definition = definition
        self._options = options

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundTask[R]:
        """As `TaskDefinition.bind`, with the options."""
        definition = self._definition
        new = NewTask(type=definition.name, input=definition.signature.encode(args, kwargs), **self._options)
        return BoundTask(definition.name, new, definition.signature.returns, definition)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """As `TaskDefinition.enqueue`, with the options.

        Raises:
            DuplicateTask: an unfinished task has this `unique_key`, and `on_conflict` is "reject", or "replace" and it
                has started.
        """
        return await self._definition.host().enqueue(self.bind(*args, **kwargs))


class TaskDecorator(Protocol):
    """What `task(…)` with options gives: it turns a function into a `TaskDefinition`."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /
    ) -> TaskDefinition[P, R, Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[TaskContext, P], R], /
    ) -> TaskDefinition[P, R, Callable[Concatenate[TaskContext, P], R]]: ...
    @overload
    def __call__(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskDefinition[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> TaskDefinition[P, R, Callable[P, R]]: ...


class Tasks:
    """A set of task definitions without a database; a runner includes it.

    `prefix` comes before the name of each of its tasks: `Tasks("mail.")`.
    """

    def __init__(self, prefix: str = "", /) -> None:
        if not isinstance(prefix, str):
            message = f"prefix: must be a text, not {shown(prefix)}"
            raise InvalidInput(message, path="prefix")
        self.definitions: dict[str, TaskDefinition[..., Any]] = {}
        self._prefix = prefix

    @overload
    def task(
        self, fn: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /
    ) -> TaskDefinition[P, R, Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]]]: ...
    @overload
    def task(
        self, fn: Callable[Concatenate[TaskContext, P], R], /
    ) -> TaskDefinition[P, R, Callable[Concatenate[TaskContext, P], R]]: ...
    @overload
    def task(
        self, fn: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskDefinition[P, R, Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> TaskDefinition[P, R, Callable[P, R]]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 5,
        timeout: Duration | None = None,
        max_retries: int | None = None,
        retry: RetryOn | None = None,
        wait: Wait | None = None,
        max_losses: int | None = None,
    ) -> TaskDecorator: ...
    def task(  # type: ignore[misc]  # mypy takes the `/` to be about `self` as well
        self,
        fn: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 5,
        timeout: Duration | None = None,
        max_retries: int | None = None,
        retry: RetryOn | None = None,
        wait: Wait | None = None,
        max_losses: int | None = None,
    ) -> Any:
        """Define a task: `@tasks.task`, `@tasks.task(max_retries=5)`, or `tasks.task(name="add")(calculator.add)`.

        `name`: the task's type, after the prefix (default: the function's name). `queue`: default "default".
        `priority`: 0 to 9, lower first (default: 5). `timeout`: of one attempt (default: none). `max_retries`: how
        often it is run again after an error (default: the runner's). `retry`: after which errors, as exception types or
        a tenacity predicate (default: any). `wait`: how long before that, as a duration or a tenacity wait (default:
        exponential from 1 s to 300 s, with jitter). `max_losses`: how many attempts in a row may die with their process
        before it is quarantined, at least 3 (default: the runner's). Durations are seconds, or texts like "90s".

        Raises:
            InvalidInput: an option is out of its bounds; the name is taken; the function is a method in a class body,
                a generator, or takes or gives a type without a JSON form.
        """
        policy = RetryPolicy(retry, wait)

        def define(function: Any) -> TaskDefinition[..., Any]:  # noqa: ANN401 - whatever was decorated
            checked = _checked_function(function)
            own_name = _name_of(checked) if name is None else name
            kind = task_type(
                name=f"{self._prefix}{own_name}" if isinstance(own_name, str) else own_name,
                queue=queue,
                priority=priority,
                timeout=timeout,
                max_retries=max_retries,
                max_losses=max_losses,
            )
            definition: TaskDefinition[..., Any] = TaskDefinition(checked, kind, policy)
            self._define(definition)
            return definition

        return define if fn is None else define(fn)

    def _define(self, definition: TaskDefinition[..., Any]) -> None:
        """Take a definition in; a runner also becomes its host."""
        known = self.definitions.get(definition.name)
        if known is not None:
            message = f"a task named {definition.name!r} is defined already, by {_origin_of(known.fn)}"
            raise InvalidInput(message, path="name")
        self.definitions[definition.name] = definition


def _checked_function(function: Any) -> Callable[..., Any]:  # noqa: ANN401 - whatever was decorated
    if isinstance(function, TaskDefinition):
        message = f"{function.name!r} is a task already: a runner takes it with include"
        raise InvalidInput(message)
    if not callable(function):
        message = f"task() takes a function, not {shown(function)}; a name is given as task(name=…)"
        raise InvalidInput(message)
    target = target_of(function)
    where = getattr(target, "__qualname__", "").rpartition(".")[0]
    in_class = inspect.isfunction(function) and where and not where.endswith("<locals>")
    if in_class and next(iter(inspect.signature(function).parameters), "") in {"self", "cls"}:
        message = (
            f"{function.__qualname__} is a method without its object: make the object first, then "
            f"task(name=…)(object.{function.__name__})"
        )
        raise InvalidInput(message)
    return function  # type: ignore[no-any-return]


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == _LAMBDA:
        message = f"{'a lambda' if name == _LAMBDA else shown(function)} has no name of its own: give task(name=…)"
        raise InvalidInput(message, path="name")
    return name


def _origin_of(function: Callable[..., Any]) -> str:
    target = target_of(function)
    return f"{getattr(target, '__module__', '?')}.{getattr(target, '__qualname__', '?')}"
