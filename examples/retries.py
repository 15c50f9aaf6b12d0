"""Errors: which are retried, how often, and how a task says it itself; and a step that is tried again on its own.

It prints:

    flaky: ConnectionError: reset by peer
    flaky: ConnectionError: reset by peer
    flaky: done at attempt 3
    polite: taskrunner.Retry: the service asks for patience
    polite: done at attempt 2
    hopeless: taskrunner.Fail: there is no such page
    wrong: KeyError: 'no such key'
    saga: paid, not shipped (ConnectionError: no carrier), refunded
"""

import asyncio

from tenacity import wait_exponential

from taskrunner import Fail, Retry, StepFailed, TaskContext, TaskFailed, TaskRunner

runner = TaskRunner("retries.db")
FAILURES = 2


@runner.task(max_retries=5, retry=ConnectionError, wait=wait_exponential(multiplier=0.05, max=60))
async def flaky(ctx: TaskContext) -> str:
    if ctx.attempt <= FAILURES:
        raise ConnectionError("reset by peer")
    return f"done at attempt {ctx.attempt}"


@runner.task
async def polite(ctx: TaskContext) -> str:
    if ctx.attempt == 1:
        raise Retry("the service asks for patience", after="100ms")
    return f"done at attempt {ctx.attempt}"


@runner.task(max_retries=100)
async def hopeless() -> None:
    raise Fail("there is no such page")  # whatever retries are left


@runner.task(max_retries=100, retry=ConnectionError)
async def wrong() -> None:
    raise KeyError("no such key")  # not an error that is retried


async def pay(cents: int) -> str:
    return "paid"


async def ship(order: str) -> str:
    raise ConnectionError("no carrier")


async def refund(cents: int) -> str:
    return "refunded"


@runner.task
async def saga(ctx: TaskContext, order: str, cents: int) -> str:
    paid = await ctx.step("pay", pay, cents)
    try:
        shipped = await ctx.options(max_retries=2, wait="50ms", timeout="10s").step("ship", ship, order)
    except StepFailed as failure:  # recorded with the next step: every later attempt takes this branch
        refunded = await ctx.step("refund", refund, cents)
        return f"{paid}, not shipped ({failure.details}), {refunded}"
    return f"{paid}, {shipped}"


async def main() -> None:
    runner.on("task.retried", lambda event: print(f"{event['task_type']}: {event['error']}"))
    async with runner.working():
        for bound in (flaky.bind(), polite.bind(), hopeless.bind(), wrong.bind(), saga.bind("A-17", cents=1_200)):
            handle = await runner.enqueue(bound)
            try:
                print(f"{bound.name}: {await handle.result(timeout='1m')}")
            except TaskFailed as failure:
                print(f"{bound.name}: {failure.details}")


if __name__ == "__main__":
    asyncio.run(main())
