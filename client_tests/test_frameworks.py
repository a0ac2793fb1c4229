"""One agent with a tool in each framework, as its documentation shows it; the tiny model may answer anything."""

from __future__ import annotations

import asyncio
import os


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_openai_agents() -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        model = kind(model="tiny", openai_client=AsyncOpenAI())
        settings = ModelSettings(max_tokens=400, extra_body={"stop": ["e", "a", " "]})  # an untrained model goes on
        agent = Agent(
            name="a", instructions="Be brief.", model=model, tools=[function_tool(add)], model_settings=settings
        )
        result = asyncio.run(Runner.run(agent, "How much is 3+4?", max_turns=4))
        assert isinstance(result.final_output, str)


def test_openai_agents_with_a_forced_tool() -> None:
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    received = []

    def small(a: bool) -> str:
        """Say yes or no."""
        received.append(a)
        return "done"

    settings = ModelSettings(max_tokens=60, tool_choice="required")
    model = OpenAIChatCompletionsModel(model="tiny", openai_client=AsyncOpenAI())
    agent = Agent(name="a", model=model, tools=[function_tool(small)], model_settings=settings)
    asyncio.run(Runner.run(agent, "x", max_turns=3))
    assert received, "the framework resets the choice after the first call"


def test_langgraph() -> None:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model="tiny", max_tokens=40), [tool(add)])
    result = agent.invoke({"messages": [("user", "How much is 3+4?")]})
    assert result["messages"][-1].type == "ai"


def test_pydantic_ai() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.settings import ModelSettings

    for name in ("openai-chat:tiny", "openai-responses:tiny", "anthropic:tiny"):
        agent = Agent(name, tools=[add], model_settings=ModelSettings(max_tokens=40))
        assert isinstance(agent.run_sync("How much is 3+4?").output, str)


def test_autogen() -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    info = ModelInfo(vision=False, function_calling=True, json_output=True, family="unknown", structured_output=True)
    client = OpenAIChatCompletionClient(
        model="tiny", base_url=os.environ["OPENAI_BASE_URL"], model_info=info, max_tokens=40
    )
    result = asyncio.run(AssistantAgent("a", client, tools=[add]).run(task="How much is 3+4?"))
    assert result.messages
