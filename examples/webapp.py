"""A web application that works on its own jobs: the lifespan opens the runner, requests enqueue and look.

    uvicorn webapp:app

With WORK=elsewhere it only enqueues, and `taskrunner run webapp:runner` works on the same file in another process; with
PROCESSES=2 the jobs run in two child processes of this one. Run as a program it asks itself a few things. It wants the
packages starlette, uvicorn and httpx.

It prints:

    POST /reports 202
    the same job: True
    GET /reports/… completed: tides in 3 pages
    GET /reports/nothing 404
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from taskrunner import TaskContext, TaskNotFound, TaskRunner

runner = TaskRunner(os.environ.get("TASKRUNNER_DB", "webapp.db"))
PAGE = float(os.environ.get("PAGE", "0.02"))  # seconds
PROCESSES = int(os.environ.get("PROCESSES", "0"))


@dataclass
class Report:
    title: str
    pages: int


async def write_page(title: str, number: int) -> str:
    await asyncio.sleep(PAGE)
    return f"{title}, page {number}"


@runner.task(timeout="15m")
async def write_report(ctx: TaskContext, title: str) -> Report:
    pages = [await ctx.step("page", write_page, title, number) for number in (1, 2, 3)]
    return Report(title, len(pages))


async def create(request: Request) -> JSONResponse:
    title = str((await request.json())["title"])
    handle = await write_report.options(idempotency_key=title).enqueue(title)
    return JSONResponse({"id": handle.id}, status_code=202)  # it is on the disk, whatever happens now


async def show(request: Request) -> JSONResponse:
    handle = write_report.handle(request.path_params["task_id"])
    try:
        task = await handle.task()
    except TaskNotFound:
        return JSONResponse({"error": "no such report"}, status_code=404)
    report = await handle.result() if task.status == "completed" else None
    return JSONResponse({"status": task.status, "pages": report and report.pages})


@asynccontextmanager
async def lifespan(_app: Starlette) -> AsyncIterator[None]:
    works = os.environ.get("WORK") != "elsewhere"
    async with runner.working(concurrency=8, processes=PROCESSES) if works else runner:
        yield  # at the end the running jobs have the grace to end, and the rest is handed back unharmed


app = Starlette(
    routes=[Route("/reports", create, methods=["POST"]), Route("/reports/{task_id}", show)], lifespan=lifespan
)


async def main() -> None:
    from httpx import ASGITransport, AsyncClient

    async with lifespan(app), AsyncClient(transport=ASGITransport(app), base_url="http://here") as client:
        answers = [await client.post("/reports", json={"title": "tides"}) for _ in range(2)]
        print("POST /reports", answers[0].status_code)
        first, second = (answer.json()["id"] for answer in answers)
        print("the same job:", first == second)
        await write_report.handle(first).result(timeout="1m")
        found = (await client.get(f"/reports/{first}")).json()
        print(f"GET /reports/… {found['status']}: tides in {found['pages']} pages")
        print("GET /reports/nothing", (await client.get("/reports/nothing")).status_code)


if __name__ == "__main__":
    asyncio.run(main())
