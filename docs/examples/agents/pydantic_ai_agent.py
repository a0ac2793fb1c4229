"""An agent with Pydantic AI: it solves word problems with a calculator."""

import asyncio
import json
import os
from types import SimpleNamespace

import openai
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from practicum.tools.calculator import evaluate, show_number

CLIENT = openai.AsyncOpenAI(api_key="that of an episode")  # one pool of connections for all episodes


async def calculator(expression: str = "", **others) -> str:
    try:
        return show_number(evaluate(expression))
    except ValueError as error:
        return f"Error: {error}"


async def solve(task) -> None:
    client = CLIENT.with_options(base_url=task.base_url, api_key=task.api_key)
    system, user = task.messages
    functions = [tool["function"] for tool in task.tools]
    tools = [Tool.from_schema(calculator, f["name"], f["description"], f["parameters"]) for f in functions]
    model = OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, instructions=system["content"], tools=tools)
    try:
        await agent.run(user["content"])
    except (UnexpectedModelBehavior, UsageLimitExceeded):
        return  # a call of a tool that there is not, again and again


if __name__ == "__main__":
    with open(os.environ["PRACTICUM_TASK_FILE"]) as file:
        asyncio.run(solve(SimpleNamespace(**json.load(file))))
