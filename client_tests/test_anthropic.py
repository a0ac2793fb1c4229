"""Anthropic's own client: messages, streamed and not, forced tools, token counts, errors."""

from __future__ import annotations

import anthropic
import pytest

MESSAGES = [{"role": "user", "content": "How much is 3+4?"}]
TOOL = {
    "name": "add",
    "description": "Add.",
    "input_schema": {
        "type": "object",
        "properties": {"b": {"enum": [1, 2]}},
        "required": ["b"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client() -> anthropic.Anthropic:
    return anthropic.Anthropic(max_retries=0)


def test_messages_and_their_stream(client: anthropic.Anthropic) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "system": "Be brief."}
    answer = client.messages.create(**options)
    assert answer.stop_reason in ("end_turn", "max_tokens")
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(block.text for block in final.content) == text
    assert final.usage.output_tokens <= 12
    counted = client.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be brief.")
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_forced_tools(client: anthropic.Anthropic, choice: dict[str, str]) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 100, "tools": [TOOL], "tool_choice": choice}
    answer = client.messages.create(**options)
    assert answer.stop_reason == "tool_use"
    [call] = [block for block in answer.content if block.type == "tool_use"]
    assert call.input["b"] in (1, 2)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "7"}
    following = [*MESSAGES, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(model="tiny", messages=following, max_tokens=5, tools=[TOOL]).id
    with client.messages.stream(**options) as stream:
        assert stream.get_final_message().content[-1].input["b"] in (1, 2)


def test_errors_are_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="stop"):
        client.messages.create(model="tiny", messages=MESSAGES, max_tokens=5, stop_sequences=["x" * 99])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="none", messages=MESSAGES, max_tokens=5)
