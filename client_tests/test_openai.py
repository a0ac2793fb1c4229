"""OpenAI's own client: chat, completions, responses, streamed and not, tools, structured outputs, errors."""

from __future__ import annotations

import json

import openai
import pytest
from pydantic import BaseModel

STOPS = ["e", "a", " "]
"""An untrained model hardly ever ends a reply by itself."""
MESSAGES = [{"role": "user", "content": "How much is 3+4?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": [1, 2]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


class Answer(BaseModel):
    right: bool
    size: int


@pytest.fixture
def client() -> openai.OpenAI:
    return openai.OpenAI(max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert client.models.list().data[0].id == "tiny"
    assert client.models.retrieve("tiny").owned_by == "practicum"


def test_chat_and_its_stream(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 3, "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(**options)
    text, logprobs, usage = "", [], None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            logprobs += choice.logprobs.content if choice.logprobs else []
        usage = chunk.usage or usage
    assert text == answer.choices[0].message.content
    assert [one.logprob for one in logprobs] == [one.logprob for one in answer.choices[0].logprobs.content]
    assert usage.completion_tokens == answer.usage.completion_tokens


def test_the_helper_for_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, stop=STOPS, seed=1) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_forced_tools(client: openai.OpenAI, choice: object) -> None:
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, tools=[TOOL], tool_choice=choice, seed=2)
    [call] = answer.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert arguments["a"] <= 99
    assert arguments["b"] in (1, 2)
    messages = [*MESSAGES, answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    assert client.chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=8).choices


def test_structured_outputs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Answer, seed=1)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    response = client.responses.parse(model="tiny", input="x", text_format=Answer)
    assert isinstance(response.output_parsed, Answer)


def test_responses_and_their_stream(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="Hello", max_output_tokens=10)
    second = client.responses.create(model="tiny", input="More", max_output_tokens=10, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    with client.responses.stream(model="tiny", input="Hello", extra_body={"stop": STOPS}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text is not None
    tool = {"type": "function", "name": "add", "parameters": TOOL["function"]["parameters"], "strict": True}
    forced = client.responses.create(model="tiny", input="Add.", tools=[tool], tool_choice="required")
    assert forced.output[0].type == "function_call"
    with client.responses.stream(model="tiny", input="Add.", tools=[tool], tool_choice="required") as stream:
        calls = [event for event in stream if event.type == "response.function_call_arguments.done"]
    assert json.loads(calls[0].arguments)["b"] in (1, 2)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=4, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    ids = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4, stream=True)
    assert list(ids)[-1].choices[0].finish_reason in ("stop", "length")


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="tiny", messages=MESSAGES, logit_bias={"5": 1})
    assert (error.value.param, error.value.code) == ("logit_bias", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=MESSAGES)
