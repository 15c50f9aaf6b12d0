"""Definitions: the decorator in all its forms, options at the door, and which runner a task goes to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from taskrunner.authoring.context import TaskContext
from taskrunner.authoring.definition import BoundTask, Host, R, TaskDefinition, Tasks, current_host
from taskrunner.authoring.handle import TaskHandle
from taskrunner.core.errors import InvalidInput, NotOpen, UnknownTask
from taskrunner.core.model import NewTask, TaskType
from taskrunner.core.redaction import NOTHING
from tests.unit.functions import research
from tests.unit.samples import Silent

if TYPE_CHECKING:
    from taskrunner.storage.store import Store

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Desk(Tasks):
    """A host without a store: it keeps what it is given."""

    def __init__(self, name: str = "", *, is_open: bool = True) -> None:
        super().__init__()
        self.name = name
        self.is_open = is_open
        self.taken: list[BoundTask[Any]] = []
        self.redaction = NOTHING

    @property
    def store(self) -> Store:
        """None."""
        raise NotOpen

    async def enqueue(self, bound: BoundTask[R], /) -> TaskHandle[R]:
        """Keep it."""
        self.taken.append(bound)
        return TaskHandle(self, f"{self.name}-{len(self.taken)}", bound.returns)

    def include(self, tasks: Tasks) -> Desk:
        """Become the host of all of them."""
        for definition in tasks.definitions.values():
            definition.hosts.append(self)
        return self


class Calculator:
    """Methods as tasks."""

    digits = 2

    async def add(self, ctx: TaskContext, a: float, b: float) -> float:  # noqa: ARG002 - as tasks have it
        """The sum."""
        return round(a + b, self.digits)


@contextmanager
def inside(host: Host) -> Iterator[None]:
    """As if a task of this host were running."""
    token = current_host.set(host)
    try:
        yield
    finally:
        current_host.reset(token)


def test_every_form_of_the_decorator_defines_a_task() -> None:
    """`@task`, `@task()`, `@task(…)` and `task(name=…)(method)` give a definition under the expected name."""
    tasks = Tasks("lab.")
    calculator = Calculator()

    @tasks.task
    async def one(n: int) -> int:
        return n

    @tasks.task()
    def two() -> None: ...

    @tasks.task(name="drei", queue="slow", priority=1, timeout="1h", max_retries=5, max_losses=4, wait=3, retry=OSError)
    def three() -> None: ...

    add = tasks.task(name="add")(calculator.add)
    upper = tasks.task(name="upper")(str.upper)
    fixed = tasks.task(name="fixed")(functools.partial(research, depth=9))
    assert list(tasks.definitions) == ["lab.one", "lab.two", "lab.drei", "lab.add", "lab.upper", "lab.fixed"]
    assert tasks.definitions["lab.add"] is add
    assert three.kind == TaskType(
        name="lab.drei", queue="slow", priority=1, max_retries=5, timeout=3_600.0, max_losses=4
    )
    assert one.kind == TaskType(name="lab.one")
    assert three.policy.delay(OSError(), 3) == 3
    assert three.policy.wants(OSError(), 0)
    assert not three.policy.wants(KeyError(), 0)
    assert add.bind(1, b=2).input == {"a": 1, "b": 2}
    assert upper.bind("a").input == {"self": "a"}
    assert fixed.bind("a").input == {"topic": "a"}
    assert [one.signature.is_async, two.signature.is_async] == [True, False]


async def test_a_task_stays_the_function_that_it_was() -> None:
    """A call runs it here and now, and its name, text and signature are the function's."""
    tasks = Tasks()
    task = tasks.task(research)
    context: Any = None
    assert await task(context, "tea") == {"tea": 2}
    assert task.fn is research
    assert callable(task)
    assert (task.__name__, task.__doc__, task.__module__) == ("research", research.__doc__, research.__module__)  # type: ignore[attr-defined]
    assert inspect.signature(task) == inspect.signature(research)
    assert repr(task) == "<task research>"


class InBody:
    """Where methods are made."""

    try:

        @Tasks().task
        async def method(self, a: int) -> int:
            """Without an object it cannot be called."""
            return a

    except InvalidInput as error:
        said = str(error)


def test_a_method_in_a_class_body_is_refused() -> None:
    """The sentence says to decorate the method of an object, and static methods and local functions are let through."""
    assert "InBody.method is a method without its object" in InBody.said
    tasks = Tasks()
    with pytest.raises(InvalidInput, match=r"Calculator\.add is a method without its object"):
        tasks.task(Calculator.add)
    with pytest.raises(InvalidInput, match="without its object"):

        class Local:
            @classmethod
            @tasks.task
            def made(cls) -> None: ...

    class Static:
        @tasks.task
        @staticmethod
        def run(n: int) -> int:
            return n

        @staticmethod
        @tasks.task
        def walk(n: int) -> int:
            return n

    assert list(tasks.definitions) == ["run", "walk"]
    assert Static.run(3) == Static.walk(3) == 3


def test_a_name_is_taken_once() -> None:
    """A second task of the same name is refused, and the sentence says who was first."""
    tasks = Tasks("p.")
    tasks.task(research)
    with pytest.raises(InvalidInput, match=r"a task named 'p.research' is defined already, by .*functions.research"):
        tasks.task(research)
    with pytest.raises(InvalidInput, match="defined already"):
        tasks.task(name="research")(lambda: 3)
    assert list(tasks.definitions) == ["p.research"]
    assert Tasks().task(research).name == "research"


ANYTHING: Any = research


@pytest.mark.parametrize(
    ("fn", "rule"),
    [
        ("research", "takes a function, not 'research'; a name is given as task"),
        (3, "takes a function, not 3"),
        (Silent(), "takes a function, not a value of type Silent"),
        (classmethod(ANYTHING), "takes a function, not a value of type classmethod"),
        (Tasks().task(research), "'research' is a task already"),
        (lambda: 3, "a lambda has no name of its own"),
        (functools.partial(research), "has no name of its own"),
        (max, "wrap it in a function of your own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_a_task_is_refused(fn: Any, rule: str) -> None:  # noqa: ANN401 - anything may be decorated
    """One sentence says what was decorated and what to do; nothing is defined."""
    tasks = Tasks()
    with pytest.raises(InvalidInput, match=rule):
        tasks.task(fn)
    assert not tasks.definitions


def test_a_bound_task_holds_what_will_be_stored() -> None:
    """Its input, its type, the options in seconds and UTC; what was not given is left to the type."""
    task = Tasks().task(research)
    bound = task.bind("tea")
    assert (bound.name, bound.input, bound.returns) == ("research", {"topic": "tea"}, dict[str, int])
    assert bound.new == NewTask(type="research", input='{"topic":"tea"}')
    full = task.options(
        priority=0,
        queue="slow",
        run_at=datetime(2026, 1, 1, 5, tzinfo=timezone(timedelta(hours=5))),
        session_id="s",
        unique_key="k",
        on_conflict="replace",
        idempotency_key="i",
        max_retries=0,
        timeout="1m",
    ).bind("tea", depth=3)
    assert full.input == {"topic": "tea", "depth": 3}
    assert full.new == NewTask(
        type="research",
        input='{"topic":"tea","depth":3}',
        priority=0,
        queue="slow",
        run_at=EPOCH,
        session_id="s",
        unique_key="k",
        on_conflict="replace",
        idempotency_key="i",
        max_retries=0,
        timeout=60.0,
    )
    assert task.options(delay=0).bind("a").new.delay == 0
    assert task.options(delay=timedelta(minutes=2)).bind("a").new.delay == 120
    with pytest.raises(AttributeError):
        bound.name = "other"  # type: ignore[misc]
    bound.input["topic"] = "coffee"
    assert bound.input == {"topic": "tea"}


async def bind(task: Any) -> None:  # noqa: ANN401 - called with what it does not take
    """Bind only."""
    task.bind("tea", "deep")


async def enqueue(task: Any) -> None:  # noqa: ANN401 - as above
    """Enqueue at once."""
    await task.enqueue("tea", depth="deep")


async def enqueue_with_options(task: Any) -> None:  # noqa: ANN401 - as above
    """Enqueue with options."""
    await task.options(priority=1).enqueue("tea", depth="deep")


@pytest.mark.parametrize("way", [bind, enqueue, enqueue_with_options])
async def test_bad_arguments_are_refused_before_anything_is_stored(way: Callable[[Any], Awaitable[None]]) -> None:
    """However it is enqueued, the path of the bad argument is said and the runner hears nothing."""
    desk = Desk()
    task = desk.task(research)
    desk.include(desk)
    with pytest.raises(InvalidInput, match="depth='deep': expected int, got str") as caught:
        await way(task)
    assert caught.value.path == "depth"
    assert not desk.taken


async def test_a_task_of_one_runner_goes_there() -> None:
    """The only runner is meant, open or not, whichever task is running."""
    tasks = Tasks()
    task = tasks.task(research)
    desk = Desk("a", is_open=False).include(tasks)
    with inside(Desk("other")):
        handle = await task.enqueue("tea")
    assert handle.id == "a-1"
    assert task.handle("x").id == "x"
    await task.options(queue="q").enqueue("tea")
    assert [bound.new.queue for bound in desk.taken] == [None, "q"]


async def test_a_task_of_no_runner_says_so() -> None:
    """The sentence says `include`."""
    task = Tasks().task(research)
    for enqueuer in (task, task.options(priority=1)):
        with pytest.raises(UnknownTask, match=r"task 'research' is in no runner: call runner.include"):
            await enqueuer.enqueue("tea")
    with pytest.raises(UnknownTask, match="include"):
        task.handle("x")
    assert task.bind("tea").input == {"topic": "tea"}


async def test_a_task_of_several_runners_goes_to_the_one_that_is_meant() -> None:
    """The running task's own, else the only open one; else the sentence names the way to say which."""
    tasks = Tasks()
    task = tasks.task(research)
    one, two = Desk("one", is_open=False).include(tasks), Desk("two").include(tasks)
    assert (await task.enqueue("tea")).id == "two-1"
    with inside(one):
        assert (await task.enqueue("tea")).id == "one-1"
    with inside(Desk("stranger")):
        assert (await task.enqueue("tea")).id == "two-2"
    for both in (True, False):
        one.is_open = two.is_open = both
        with pytest.raises(NotOpen, match=r"in 2 runners.*runner.enqueue\(task.bind\(…\)\)"):
            await task.enqueue("tea")


def test_two_definitions_share_nothing() -> None:
    """One function may be two tasks, with options of their own."""
    tasks = Tasks()
    slow: TaskDefinition[..., Any] = tasks.task(name="slow", timeout=9)(research)
    fast: TaskDefinition[..., Any] = tasks.task(name="fast", timeout=1)(research)
    assert (slow.kind.timeout, fast.kind.timeout) == (9, 1)
    assert slow.hosts is not fast.hosts


@pytest.mark.parametrize("prefix", [len, 3, None, b"a.", Silent()], ids=lambda prefix: type(prefix).__name__)
def test_a_prefix_is_a_text(prefix: Any) -> None:  # noqa: ANN401 - anything is tried
    """What is none is refused at once, and what makes a name that cannot be stored with the first task."""
    with pytest.raises(InvalidInput, match="prefix: must be a text"):
        Tasks(prefix)
    with pytest.raises(InvalidInput, match="control characters"):
        Tasks("a\n").task(research)
