"""An agent with OpenAI's client and its chat completions API: it solves word problems with a calculator."""

import asyncio
import json
import os
from types import SimpleNamespace

import openai

from practicum.tools.calculator import evaluate, show_number

CLIENT = openai.AsyncOpenAI(api_key="that of an episode")  # one pool of connections for all episodes
MAX_STEPS = 6


def calculator(arguments: dict) -> str:
    try:
        return show_number(evaluate(arguments["expression"]))
    except (KeyError, ValueError) as error:
        return f"Error: {error}"


async def solve(task) -> None:
    client = CLIENT.with_options(base_url=task.base_url, api_key=task.api_key)
    messages = list(task.messages)
    for _ in range(MAX_STEPS):
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=task.tools)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return  # the last reply is the answer
        for call in message.tool_calls:
            result = calculator(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    with open(os.environ["PRACTICUM_TASK_FILE"]) as file:
        asyncio.run(solve(SimpleNamespace(**json.load(file))))
