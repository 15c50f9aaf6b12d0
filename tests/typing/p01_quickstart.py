"""Define, enqueue, work, read the result. Kill it half-way and start it again: it goes on."""

import asyncio

from taskrunner import TaskContext, TaskRunner

runner = TaskRunner("agent.db")


async def make_plan(topic: str) -> list[str]:
    return [f"{topic}: past", f"{topic}: present"]


def search(query: str) -> str:
    return query.upper()


@runner.task
async def research(ctx: TaskContext, topic: str, depth: int = 2) -> dict[str, str]:
    plan = await ctx.step("plan", make_plan, topic)
    found: dict[str, str] = {}
    for done, query in enumerate(plan[:depth], start=1):
        found[query] = await ctx.step("search", search, query)
        await ctx.progress(done / len(plan), f"searched {query}")
    return found


async def main() -> None:
    async with runner.working():
        handle = await research.enqueue("durable queues", depth=2)
        for query, text in (await handle.result(timeout="1m")).items():
            print(query, text)


asyncio.run(main())
