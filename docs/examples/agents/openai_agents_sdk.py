"""An agent with OpenAI's Agents SDK, over chat completions or responses: it solves word problems with a calculator."""

import asyncio
import json
import os
from types import SimpleNamespace

import openai
from agents import Agent, FunctionTool, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError

from practicum.tools.calculator import evaluate, show_number

set_tracing_disabled(True)
CLIENT = openai.AsyncOpenAI(api_key="that of an episode")  # one pool of connections for all episodes
MAX_STEPS = 6


async def calculator(context, arguments: str) -> str:
    try:
        return show_number(evaluate(json.loads(arguments)["expression"]))
    except (KeyError, ValueError) as error:
        return f"Error: {error}"


async def solve(task, model_class=OpenAIChatCompletionsModel) -> None:
    client = CLIENT.with_options(base_url=task.base_url, api_key=task.api_key)
    system, *messages = task.messages
    functions = [tool["function"] for tool in task.tools]
    tools = [FunctionTool(f["name"], f["description"], f["parameters"], calculator, False) for f in functions]
    model = model_class(model="policy", openai_client=client)
    agent = Agent(name="solver", instructions=system["content"], model=model, tools=tools)
    try:
        await Runner.run(agent, messages, max_turns=MAX_STEPS)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return  # no answer within the steps, or a call of a tool that there is not


async def solve_with_responses(task) -> None:
    await solve(task, OpenAIResponsesModel)


if __name__ == "__main__":
    with open(os.environ["PRACTICUM_TASK_FILE"]) as file:
        asyncio.run(solve(SimpleNamespace(**json.load(file))))
