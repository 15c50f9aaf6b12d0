"""Embed the workers in a web app: enqueue in one request (a call, here), ask for the result in another."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from pydantic import BaseModel

from taskrunner import Status, TaskContext, TaskNotFound, TaskRunner

runner = TaskRunner()  # TASKRUNNER_DB names the store


class Report(BaseModel):
    title: str
    pages: int


class JobView(BaseModel):
    status: Status
    progress: float
    report: Report | None = None


class NotFound(Exception):
    """What the framework turns into a 404."""


@runner.task(timeout="15m", max_retries=3)
async def write_report(ctx: TaskContext, title: str) -> Report:
    await ctx.progress(0.5)
    return Report(title=title, pages=3)


@asynccontextmanager
async def lifespan() -> AsyncGenerator[None]:
    async with runner.working(concurrency=4):
        yield


async def create(title: str) -> dict[str, str]:
    handle = await write_report.options(unique_key=title).enqueue(title)
    return {"id": handle.id}


async def show(task_id: str) -> JobView:
    handle = write_report.handle(task_id)
    try:
        task = await handle.task()
    except TaskNotFound:
        raise NotFound from None
    report = await handle.result() if task.status == "completed" else None
    return JobView(status=task.status, progress=task.progress, report=report)


async def main() -> None:
    async with lifespan():
        reply = await create("tea")
        await write_report.handle(reply["id"]).result(timeout="1m")
        print(repr(await show(reply["id"])))
        try:
            await show("0")
        except NotFound:
            print("no such report")


if __name__ == "__main__":
    asyncio.run(main())
