"""A worker pool inside a program that has work of its own: a server that takes jobs by name and tells how far they are.

The tasks stand in a `Tasks` without a database, as they would in a module of their own; the program's runner includes
them. The unique key keeps a second request for a page from making a second job while the first one is unfinished.

It prints:

    render intro: pending
    render intro: the same job
    status intro: completed, 100%, 3 of 3
    result intro: ['intro-1', 'intro-2', 'intro-3']
    render ../intro: refused: page: a name is wanted
"""

import asyncio
from collections.abc import Awaitable, Callable

from taskrunner import TaskContext, TaskHandle, TaskRunner, Tasks

pages = Tasks("pages.")


async def draw(page: str, number: int) -> str:
    await asyncio.sleep(0.02)
    return f"{page}-{number}"


@pages.task(timeout="5m")
async def render(ctx: TaskContext, page: str) -> list[str]:
    images: list[str] = []
    for number in (1, 2, 3):
        images.append(await ctx.step("draw", draw, page, number))
        await ctx.progress(number / 3, f"{number} of 3")
    return images


class Service:
    """What the server answers to `render PAGE`, `status PAGE` and `result PAGE`."""

    def __init__(self) -> None:
        self.jobs: dict[str, TaskHandle[list[str]]] = {}

    async def render(self, page: str) -> str:
        """Make a job, or find the one that is there; it is on the disk when this is answered."""
        if not page.isidentifier():
            return "refused: page: a name is wanted"
        handle = await render.options(unique_key=page).enqueue(page)
        known, self.jobs[page] = self.jobs.get(page), handle
        return "the same job" if known is not None and known.id == handle.id else "pending"

    async def status(self, page: str) -> str:
        """Look at the job's row."""
        task = await self.jobs[page].task()
        return f"{task.status}, {task.progress:.0%}, {task.progress_message}"

    async def result(self, page: str) -> str:
        """Wait for the job's end."""
        return str(await self.jobs[page].result(timeout="1m"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client, line by line."""
        answers: dict[str, Callable[[str], Awaitable[str]]] = {
            "render": self.render,
            "status": self.status,
            "result": self.result,
        }
        while line := await reader.readline():
            verb, page = line.decode().split()
            writer.write(f"{verb} {page}: {await answers[verb](page)}\n".encode())
        writer.close()


async def main() -> None:
    runner = TaskRunner("embedding.db")
    runner.include(pages)
    finished = asyncio.Event()
    runner.on("task.completed", lambda _event: finished.set())
    async with runner.working(concurrency=4), await asyncio.start_server(Service().serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"render intro\nrender intro\n")
        for _ in range(2):
            print((await reader.readline()).decode().rstrip())
        await finished.wait()
        writer.write(b"status intro\nresult intro\nrender ../intro\n")
        for _ in range(3):
            print((await reader.readline()).decode().rstrip())
        writer.close()


if __name__ == "__main__":
    asyncio.run(main())
