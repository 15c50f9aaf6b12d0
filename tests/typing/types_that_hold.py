"""Only has to type-check: what is inferred (assert_type), and what must be refused (an ignore that must be needed)."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, assert_type

from tenacity import retry_if_exception_message, wait_fixed

from taskrunner import (
    BoundTask,
    DuplicateTask,
    Message,
    Retry,
    Session,
    Status,
    Task,
    TaskContext,
    TaskDefinition,
    TaskHandle,
    TaskInfo,
    TaskRunner,
    Tasks,
)
from taskrunner.testing import harness

runner = TaskRunner("x.db", lease="30s", heartbeat=10, grace=timedelta(seconds=5), durability="normal")
more = Tasks("more.")
runner.include(more)


@dataclass
class Count:
    path: str
    words: int


class Calculator:
    def half(self, n: float) -> float:
        return n / 2

    async def double(self, ctx: TaskContext, n: int) -> int:
        return n * 2


calculator = Calculator()


@runner.task
async def research(ctx: TaskContext, topic: str, depth: int = 2) -> dict[str, int]:
    return {topic: depth}


@runner.task(queue="x", timeout="1h", retry=(OSError, ValueError), wait=wait_fixed(3), max_losses=3)
def plain(a: int, *rest: str, flag: bool = False) -> list[int]:
    return [a]


@runner.task()
async def nothing(ctx: TaskContext) -> None: ...


@more.task(name="counted", retry=retry_if_exception_message("busy"), wait="90s", priority=0)
def count(ctx: TaskContext, path: str) -> Count:
    raise Retry("later", after=datetime.now(UTC))


half = runner.task(name="tool.half")(calculator.half)
double = runner.task(calculator.double)


async def f(x: int, timeout: float = 1) -> str:
    return str(x + timeout)


def g(x: int, name: str = "") -> bytes:
    return bytes(x)


@asynccontextmanager
async def lifespan(runner: TaskRunner) -> AsyncGenerator[int]:
    yield len(runner.definitions)


pool = TaskRunner("y.db", lifespan=lifespan)
pool.limit(queue="gpu", concurrency=1)


async def tried() -> None:
    async with harness(runner) as lab:
        assert_type(await lab.call(research.bind("x")), dict[str, int])
        assert_type(await lab.enqueued(count), list[TaskHandle[Count]])
    assert_type(await runner.pause("gpu"), None)
    assert_type(await runner.resume("gpu"), None)


async def outside() -> None:
    assert_type(await research.enqueue("x"), TaskHandle[dict[str, int]])
    assert_type(await (await research.enqueue(topic="x", depth=3)).result(), dict[str, int])
    assert_type(await research.options(priority=1, delay="1h").enqueue("x"), TaskHandle[dict[str, int]])
    assert_type(research.options(session_id="s", on_conflict="reject").bind("x"), BoundTask[dict[str, int]])
    assert_type(await (await plain.enqueue(1, "a", "b", flag=True)).result(), list[int])
    assert_type(await (await half.enqueue(1.5)).result(), float)
    assert_type(await (await double.enqueue(1)).result(), int)
    assert_type(await (await count.enqueue("p")).result("5m"), Count)
    assert_type(research.bind("x"), BoundTask[dict[str, int]])
    assert_type(await runner.enqueue(research.bind("x")), TaskHandle[dict[str, int]])
    assert_type(await runner.enqueue("research", {"topic": "x"}), TaskHandle[Any])
    assert_type(await runner.enqueue("research", {"topic": "x"}, unique_key="k"), TaskHandle[Any])
    assert_type(await runner.enqueue_many([research.bind("x"), research.bind("y")]), list[TaskHandle[dict[str, int]]])
    assert_type(runner.sync(research.enqueue("x")), TaskHandle[dict[str, int]])
    assert_type(runner.handle("id"), TaskHandle[Any])
    assert_type(count.handle("id"), TaskHandle[Count])
    assert_type(await (await nothing.enqueue()).result(), None)
    assert_type(await runner.drain(), int)
    async with runner as client:
        assert_type(client, TaskRunner)
    async with runner.working(concurrency=2, queues=["x"]) as pool:
        assert_type(pool, TaskRunner)
    with runner.override(db="y.db") as other:
        assert_type(other, TaskRunner)


async def looked_at(handle: TaskHandle[Count]) -> None:
    assert_type(handle.id, str)
    assert_type(await handle.task(), Task)
    assert_type((await handle.task()).status, Status)
    assert_type((await handle.task()).run_at, datetime)
    assert_type(await handle.info(), TaskInfo)
    assert_type(await handle.status(), Status)
    assert_type(await handle.progress(), float)
    assert_type(await handle.cancel("why"), Literal["cancelled", "cancelling", "too_late"])
    assert_type(await runner.tasks.get("id"), Task)
    assert_type(await runner.tasks.list(status="failed", type="research", limit=5), list[Task])
    try:
        await research.enqueue("x")
    except DuplicateTask as duplicate:
        assert_type(duplicate.handle, TaskHandle[Any])


async def remembered(ctx: TaskContext) -> None:
    session = await runner.sessions.create(title="t")
    assert_type(session, Session)
    assert_type(await runner.sessions.list(), list[Session])
    assert_type(await session.add("user", "hello", token_count=1), Message)
    assert_type(await session.recent(3), list[Message])
    assert_type(ctx.session, Session)


async def inside(ctx: TaskContext) -> None:
    assert_type(await research(ctx, "x"), dict[str, int])
    assert_type(plain(1, "a"), list[int])
    assert_type(await ctx.step("f", f, 1, timeout=3), str)
    assert_type(await ctx.step("g", g, 1, name="n"), bytes)
    assert_type(await ctx.step("lambda", lambda: 3), int)
    assert_type(await ctx.step("async lambda", lambda: f(3)), str)
    assert_type(await ctx.step("partial", partial(g, 1)), bytes)
    assert_type(await ctx.step("partial async", partial(f, 1), timeout=2), str)
    assert_type(await ctx.step("builtin", len, "abc"), int)
    assert_type(await ctx.step("method", "abc".encode), bytes)
    assert_type(await ctx.step("bound", calculator.half, 2.0), float)
    assert_type(await ctx.step("class", Count, "p", 3), Count)
    assert_type(await ctx.options(timeout="5s", retry=OSError, max_retries=3).step("f", f, 1), str)
    assert_type(ctx.sync(ctx.step("f", f, 1)), str)
    assert_type(TaskContext.current(), TaskContext)
    assert_type(ctx.now(), datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.uuid(), str)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.resources, Any)
    ctx.log.info("searched", topic="x")


async def refused(ctx: TaskContext) -> None:
    await research.enqueue(1)  # type: ignore[arg-type]
    await research.enqueue()  # type: ignore[call-arg]
    await research.enqueue("x", deep=3)  # type: ignore[call-arg]
    await research("x")  # type: ignore[call-arg, arg-type]
    await research.options(prio=3).enqueue("x")  # type: ignore[call-arg]
    await research.options(on_conflict="ignore").enqueue("x")  # type: ignore[arg-type]
    await runner.enqueue(research)  # type: ignore[call-overload]
    await ctx.step("f", f, "one")  # type: ignore[call-overload]
    await ctx.step("f", f(1))  # type: ignore[call-overload]
    await ctx.step(f, 1)  # type: ignore[call-overload]
    ctx.step("f", f, 1)  # type: ignore[unused-coroutine]
    runner.limit(queue="gpu", rate=3)  # type: ignore[call-arg]
    TaskRunner("z.db", lifespan=tried)  # type: ignore[arg-type]
    (await runner.tasks.get("id")).status = "failed"  # type: ignore[misc]


async def not_built_yet(ctx: TaskContext, handle: TaskHandle[int]) -> None:
    ctx.spawn  # type: ignore[attr-defined]
    ctx.sleep  # type: ignore[attr-defined]
    ctx.transaction  # type: ignore[attr-defined]
    handle.fork  # type: ignore[attr-defined]
    runner.schedule  # type: ignore[attr-defined]
    runner.task(rate=3)  # type: ignore[call-overload]
    await runner.run(processes="2")  # type: ignore[arg-type]


class Wrong:
    @runner.task
    async def method(self, ctx: TaskContext, a: int) -> int:  # types pass; refused when the class body runs
        return a


definition: TaskDefinition[[str, int], dict[str, int]]
