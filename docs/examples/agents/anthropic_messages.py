"""An agent with Anthropic's client and its messages API: it solves word problems with a calculator."""

import asyncio
import json
import os
from types import SimpleNamespace

import anthropic

from practicum.tools.calculator import evaluate, show_number

CLIENT = anthropic.AsyncAnthropic(api_key="that of an episode")  # one pool of connections for all episodes
MAX_STEPS = 6


def calculator(arguments: dict) -> str:
    try:
        return show_number(evaluate(arguments["expression"]))
    except (KeyError, ValueError) as error:
        return f"Error: {error}"


async def solve(task) -> None:
    client = CLIENT.with_options(base_url=task.anthropic_base_url, api_key=task.api_key)
    system, *messages = task.messages
    functions = [tool["function"] for tool in task.tools]
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]
    for _ in range(MAX_STEPS):
        answer = await client.messages.create(
            model="policy", system=system["content"], messages=messages, tools=tools, max_tokens=1000
        )
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return  # the last reply is the answer
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": calculator(c.input)} for c in calls]
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]


if __name__ == "__main__":
    with open(os.environ["PRACTICUM_TASK_FILE"]) as file:
        asyncio.run(solve(SimpleNamespace(**json.load(file))))
