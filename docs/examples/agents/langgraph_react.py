"""An agent with LangGraph and LangChain's OpenAI client: it solves word problems with a calculator."""

import asyncio
import json
import os
from types import SimpleNamespace

import httpx
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent

from practicum.tools.calculator import evaluate, show_number

CLIENT = httpx.AsyncClient(timeout=600)  # one pool of connections for all episodes
MAX_STEPS = 12


async def calculator(expression: str = "") -> str:
    try:
        return show_number(evaluate(expression))
    except ValueError as error:
        return f"Error: {error}"


async def solve(task) -> None:
    model = ChatOpenAI(model="policy", base_url=task.base_url, api_key=task.api_key, http_async_client=CLIENT)
    functions = [tool["function"] for tool in task.tools]
    tools = [
        StructuredTool(name=f["name"], description=f["description"], args_schema=f["parameters"], coroutine=calculator)
        for f in functions
    ]
    try:
        await create_react_agent(model, tools).ainvoke({"messages": task.messages}, {"recursion_limit": MAX_STEPS})
    except GraphRecursionError:
        return  # it went on calculating: there is no answer


if __name__ == "__main__":
    with open(os.environ["PRACTICUM_TASK_FILE"]) as file:
        asyncio.run(solve(SimpleNamespace(**json.load(file))))
