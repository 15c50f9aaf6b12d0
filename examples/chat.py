"""A conversation with an agent that uses a tool, without a network: `think` stands for the model.

Each answer of the model and each use of the tool is a step, so what was paid for is not paid again after a crash. A
message that is added inside a step commits with it.

It prints:

    user: How warm is it in Oslo?
    assistant: (calls weather)
    tool: 12 degrees in Oslo
    assistant: It is 12 degrees in Oslo.
    user: And in Rome?
    assistant: (calls weather)
    tool: 27 degrees in Rome
    assistant: It is 27 degrees in Rome.
    tokens: 56
"""

import asyncio
from dataclasses import dataclass

from taskrunner import Message, TaskContext, TaskRunner

runner = TaskRunner("chat.db")


@dataclass
class Thought:
    """What the model wants: to call the tool for a city, or to say something."""

    city: str = ""
    text: str = ""


def think(conversation: list[Message]) -> Thought:
    last = conversation[-1]
    if last.role == "tool":
        return Thought(text=f"It is {last.content}.")
    return Thought(city=last.content.rstrip("?").split()[-1])


async def next_thought() -> Thought:
    """One call of the model. Its answer joins the conversation in the commit that records the step."""
    session = TaskContext.current().session
    conversation = await session.recent(20)
    thought = think(conversation)
    calls = [{"name": "weather", "arguments": {"city": thought.city}}] if thought.city else []
    await session.add("assistant", thought.text, tool_calls=calls, token_count=8 * len(conversation[-2:]))
    return thought


async def weather(city: str) -> str:
    degrees = {"Oslo": 12, "Rome": 27}[city]
    text = f"{degrees} degrees in {city}"
    await TaskContext.current().session.add("tool", text, tool_call_id=city)
    return text


@runner.task
async def answer(ctx: TaskContext, question: str) -> str:
    await ctx.session.add("user", question)
    while True:
        thought = await ctx.step("think", next_thought)
        if not thought.city:
            return thought.text
        await ctx.step("weather", weather, thought.city)


async def main() -> None:
    async with runner.working():
        session = await runner.sessions.create(title="the weather", model="none")
        for question in ("How warm is it in Oslo?", "And in Rome?"):
            handle = await answer.options(session_id=session.id).enqueue(question)
            await handle.result(timeout="1m")
        for message in await session.recent(100):
            print(f"{message.role}: {message.content or '(calls weather)'}")
        print("tokens:", (await runner.sessions.get(session.id)).token_usage)


if __name__ == "__main__":
    asyncio.run(main())
