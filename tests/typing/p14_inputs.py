"""Rich inputs and results, by annotation; a step's result comes back as the same type after a crash."""

import asyncio
from dataclasses import dataclass, field
from datetime import date
from typing import NotRequired, TypedDict

import msgspec
from pydantic import BaseModel

from taskrunner import InvalidInput, TaskContext, TaskRunner

runner = TaskRunner("inputs.db")


@dataclass(frozen=True)
class Query:
    text: str
    since: date | None = None
    tags: list[str] = field(default_factory=list[str])


class Hit(BaseModel):
    url: str
    score: float
    seen: date | None = None


class Options(TypedDict):
    limit: int
    language: NotRequired[str]


class Answer(msgspec.Struct):
    best: str
    score: float


async def find(query: Query, options: Options) -> list[Hit]:
    return [Hit(url=query.text, score=0.5, seen=query.since), Hit(url="other", score=0.25)][: options["limit"]]


@runner.task
async def ask(ctx: TaskContext, query: Query, options: Options) -> Answer:
    hits = await ctx.step("find", find, query, options)
    best = await ctx.options(returns=Hit).step("best", lambda: max(hits, key=lambda hit: hit.score))
    return Answer(best=f"{best.url} of {best.seen}", score=best.score)


async def main() -> None:
    async with runner.working():
        handle = await ask.enqueue(Query("tea", since=date(2026, 1, 1)), {"limit": 3})
        answer = await handle.result(timeout="1m")
        print(answer.best, answer.score)
        try:
            await ask.enqueue(Query("tea", tags=["green", 7]), {"limit": 3})  # type: ignore[list-item]
        except InvalidInput as error:
            print("refused:", error.path)


if __name__ == "__main__":
    asyncio.run(main())
