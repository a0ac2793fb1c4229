"""Small external agents, as a user would write them: one loop over each API, with a calculator of their own."""

from __future__ import annotations

import json
from typing import Any

import httpx

from practicum import registry
from practicum.serving.external_agent import ExternalTask

[CALCULATOR] = registry.tools("calculator")


async def calculate(name: str, arguments: dict[str, Any]) -> str:
    if name != "calculator":
        return f"Error: there is no tool '{name}'. Did you mean 'calculator'?"
    return (await CALCULATOR.call(arguments)).text


async def chat(task: ExternalTask, stream: bool = False, raising: bool = False) -> None:
    """The chat completions API."""
    messages: list[Any] = list(task.messages)
    async with httpx.AsyncClient(base_url=task.base_url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        for _ in range(6):
            body = {"model": "gpt-4o", "messages": messages, "tools": task.tools, "stream": stream, "temperature": 0.3}
            answer = await client.post("/chat/completions", json=body)
            if answer.status_code == 409:
                assert answer.headers["x-should-retry"] == "false", "official clients repeat a conflict by themselves"
                if raising:
                    answer.raise_for_status()
                return
            message = joined(answer.text) if stream else answer.json()["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls") or ()
            if not calls:
                return
            for call in calls:
                function = call["function"]
                result = await calculate(function["name"], json.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


async def raising_chat(task: ExternalTask) -> None:
    """An agent that does not expect to be refused."""
    await chat(task, raising=True)


async def streaming_chat(task: ExternalTask) -> None:
    await chat(task, stream=True)


def joined(text: str) -> dict[str, Any]:
    """The message of a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    for line in text.splitlines():
        if line.startswith("data: {"):
            delta = json.loads(line[6:])["choices"][0]["delta"]
            message["content"] += delta.get("content") or ""
            message["tool_calls"] += [{k: v for k, v in c.items() if k != "index"} for c in delta.get("tool_calls", ())]
    return message


async def responses(task: ExternalTask) -> None:
    """The responses API, with the whole history in each request."""
    system = [message["content"] for message in task.messages if message["role"] == "system"]
    items: list[Any] = [message for message in task.messages if message["role"] != "system"]
    tools = [{"type": "function", **tool["function"]} for tool in task.tools]
    async with httpx.AsyncClient(base_url=task.base_url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        for _ in range(6):
            body = {"model": "m", "instructions": "\n".join(system), "input": items, "tools": tools, "store": False}
            answer = await client.post("/responses", json=body)
            if answer.status_code == 409:
                return
            output = answer.json()["output"]
            items += output
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return
            for call in calls:
                result = await calculate(call["name"], json.loads(call["arguments"]))
                items.append({"type": "function_call_output", "call_id": call["call_id"], "output": result})


async def messages_api(task: ExternalTask) -> None:
    """Anthropic's messages API."""
    system = "\n".join(message["content"] for message in task.messages if message["role"] == "system")
    messages: list[Any] = [message for message in task.messages if message["role"] != "system"]
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (tool["function"] for tool in task.tools)
    ]
    async with httpx.AsyncClient(base_url=task.anthropic_base_url, timeout=60) as client:
        client.headers["x-api-key"] = task.api_key
        for _ in range(6):
            body = {"model": "m", "system": system, "messages": messages, "tools": tools, "max_tokens": 1000}
            answer = await client.post("/v1/messages", json=body)
            if answer.status_code == 409:
                return
            content = answer.json()["content"]
            messages.append({"role": "assistant", "content": content})
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return
            results = []
            for call in calls:
                text = await calculate(call["name"], call["input"])
                results.append({"type": "tool_result", "tool_use_id": call["id"], "content": text})
            messages.append({"role": "user", "content": results})


async def rewarding(task: ExternalTask) -> None:
    """One call, with a reward for it and one for the episode."""
    async with httpx.AsyncClient(timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        body = {"model": "m", "messages": task.messages}
        answer = (await client.post(f"{task.base_url}/chat/completions", json=body)).json()
        posted = {"reward": 0.25, "response_id": answer["id"], "components": {"form": 0.25}}
        assert (await client.post(f"{task.episode_url}/reward", json=posted)).status_code == 200
        last = await client.post(f"{task.episode_url}/reward", json={"reward": 0.5, "success": False})
        assert last.status_code == 200
        wrong = await client.post(f"{task.episode_url}/reward", json={"reward": 1, "response_id": "chatcmpl-0"})
        assert wrong.status_code == 400


async def choosing(task: ExternalTask) -> float:
    """Asks for three replies and goes on from the last one; its reward is 1."""
    async with httpx.AsyncClient(base_url=task.base_url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        body = {"model": "m", "messages": task.messages, "n": 3}
        choices = (await client.post("/chat/completions", json=body)).json()["choices"]
        messages = [*task.messages, choices[2]["message"], {"role": "user", "content": "Are you sure?"}]
        await client.post("/chat/completions", json={"model": "m", "messages": messages})
    return 1.0


async def voting(task: ExternalTask) -> float:
    """Asks three times, one request after the other, and uses all replies."""
    async with httpx.AsyncClient(base_url=task.base_url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        for _ in range(3):
            await client.post("/chat/completions", json={"model": "m", "messages": task.messages})
    return 1.0


async def silent(task: ExternalTask) -> None:
    """Calls the model and reports nothing."""
    async with httpx.AsyncClient(timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        await client.post(f"{task.base_url}/chat/completions", json={"model": "m", "messages": task.messages})


def idle(task: ExternalTask) -> str:
    """Answers without the model."""
    return "12"


async def delegating(task: ExternalTask) -> float:
    """Asks the manager and gives its word to the worker; rewarded by the length of the worker's reply."""
    async with httpx.AsyncClient(base_url=task.base_url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        replies = []
        for role, messages in (("manager", task.messages), ("worker", None)):
            request_messages = messages or [{"role": "user", "content": f"Add 3: {replies[0]}"}]
            answer = await client.post("/chat/completions", json={"model": role, "messages": request_messages})
            replies.append(answer.json()["choices"][0]["message"]["content"] or "")
    return float(len(replies[1]) % 7)


async def editing(task: ExternalTask) -> float:
    """Changes what the model said before it asks again, and then goes on; rewarded by the length of the last reply."""
    async with httpx.AsyncClient(base_url=task.base_url, timeout=60) as client:
        client.headers["authorization"] = f"Bearer {task.api_key}"
        messages: list[Any] = list(task.messages)
        for turn in range(3):
            answer = await client.post("/chat/completions", json={"model": "m", "messages": messages})
            reply = answer.json()["choices"][0]["message"]
            messages += [{**reply, "content": "Edited."} if turn == 0 else reply, {"role": "user", "content": "And?"}]
    return float(len(reply["content"] or "") % 7)
