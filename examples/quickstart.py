"""Define a task, enqueue it, work, read its result.

Kill it at any moment with `kill -9` and start it again: it goes on with the first question that has no recorded answer.

It prints:

    10% planned
    40% asked: who works on coral reefs?
    70% asked: what is known of coral reefs?
    100% asked: what is new in coral reefs?
    Answer(question='who works on coral reefs?', words=5)
    Answer(question='what is known of coral reefs?', words=6)
    Answer(question='what is new in coral reefs?', words=6)
"""

import asyncio
from dataclasses import dataclass

from taskrunner import TaskContext, TaskRunner

runner = TaskRunner("quickstart.db")


@dataclass
class Answer:
    question: str
    words: int


async def plan(topic: str) -> list[str]:
    return [f"who works on {topic}?", f"what is known of {topic}?", f"what is new in {topic}?"]


async def ask(question: str) -> Answer:
    await asyncio.sleep(0.1)  # stands for a call that takes long and costs money
    return Answer(question, len(question.split()))


@runner.task(timeout="10m")
async def research(ctx: TaskContext, topic: str) -> list[Answer]:
    questions = await ctx.step("plan", plan, topic)
    await say(ctx, 0.1, "planned")
    answers: list[Answer] = []
    for done, question in enumerate(questions, start=1):
        answers.append(await ctx.step("ask", ask, question))
        await say(ctx, 0.1 + 0.9 * done / len(questions), f"asked: {question}")
    return answers


async def say(ctx: TaskContext, fraction: float, message: str) -> None:
    """Show how far the task is: here, and to everybody who looks at the store."""
    print(f"{fraction:.0%} {message}")
    await ctx.progress(fraction, message)


async def main() -> None:
    async with runner.working():
        handle = await research.enqueue("coral reefs")
        for answer in await handle.result(timeout="1m"):  # answers are of their class again
            print(answer)


if __name__ == "__main__":
    asyncio.run(main())
