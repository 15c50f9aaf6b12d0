"""Concurrent steps: numbered when called, so the standard tools work as they are."""

import asyncio

import anyio

from taskrunner import TaskContext, TaskRunner

runner = TaskRunner("wide.db")


async def search(query: str) -> list[str]:
    return [query]


def embed(text: str) -> list[float]:
    return [float(len(text))]


async def late(ctx: TaskContext, query: str) -> None:
    await ctx.step(f"late {query}", search, query)  # a name of its own: who starts first is the loop's business


@runner.task
async def wide(ctx: TaskContext, queries: list[str]) -> int:
    found = await asyncio.gather(*(ctx.step("search", search, q) for q in queries))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(ctx.step("search", search, "a"))
        vector = group.create_task(ctx.step("embed", embed, "a"))
    async with anyio.create_task_group() as tg:
        for query in queries:
            tg.start_soon(late, ctx, query)
    return sum(map(len, found)) + len(first.result()) + len(vector.result())


async def main() -> None:
    async with runner.working():
        handle = await wide.enqueue(["x", "y", "z"])
        print(await handle.result(timeout="1m"))


if __name__ == "__main__":
    asyncio.run(main())
