"""Our templates write, token for token, what the models' own published templates write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from practicum.chat.renderer import Renderer
from practicum.chat.templates import TEMPLATES
from practicum.models import loader

trl = pytest.importorskip("trl", reason="TRL ships the templates that the models' authors publish")
PUBLISHED = Path(trl.__file__).parent / "chat_templates"

SYSTEM = {"role": "system", "content": "Be brief; use the tool's answer."}
USER = {"role": "user", "content": "What is 2+3?\nShow it."}
REPLY = {"role": "assistant", "content": "Five.  "}
MORE = {"role": "user", "content": "  And doubled?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "2+3"}}}]}  # fmt: skip
CALL_AS_TEXT = {
    "role": "assistant",
    "content": '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2+3"}}\n</tool_call>',
}
ANSWER, SECOND = {"role": "tool", "content": "5"}, {"role": "tool", "content": "7 é"}
TOOLS = [{"type": "function", "function": {"name": "calculator", "description": "Works out <b>sums</b>.",
          "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}}]  # fmt: skip

PLAIN = [[USER], [SYSTEM, USER], [SYSTEM, USER, REPLY, MORE], [USER, REPLY, MORE]]
WITH_TOOLS = [
    ([SYSTEM, USER], [SYSTEM, USER]),
    ([USER], [USER]),
    ([SYSTEM, USER, CALL, ANSWER], [SYSTEM, USER, CALL_AS_TEXT, ANSWER]),
    ([SYSTEM, USER, CALL, ANSWER, SECOND, REPLY, MORE], [SYSTEM, USER, CALL_AS_TEXT, ANSWER, SECOND, REPLY, MORE]),
]


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerBase:
    """A real tokenizer that has every family's special tokens."""
    tokenizer = loader.load_tokenizer("tiny")
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.bos_token = "<|begin_of_text|>"
    return tokenizer


def ids(tokenizer: PreTrainedTokenizerBase, template: str, messages: Any, tools: Any = None) -> list[int]:
    text = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    results: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return results


@pytest.mark.parametrize("messages", PLAIN)
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("qwen2.5", "qwen2_5.jinja"),
        ("qwen2.5-vl", "qwen2_5_vl.jinja"),
        ("qwen3", "qwen3.jinja"),
        ("llama-3", "llama3.jinja"),
    ],
)
def test_conversations(words: PreTrainedTokenizerBase, name: str, file: str, messages: Any) -> None:
    published = (PUBLISHED / file).read_text()
    assert ids(words, TEMPLATES[name], messages) == ids(words, published, messages)


@pytest.mark.parametrize(("structured", "textual"), WITH_TOOLS)
@pytest.mark.parametrize(("name", "file"), [("qwen2.5", "qwen2_5.jinja"), ("qwen3", "qwen3.jinja")])
def test_tools(words: PreTrainedTokenizerBase, name: str, file: str, structured: Any, textual: Any) -> None:
    """Published templates write a call from its parts, ours writes the reply that held it: the same tokens."""
    published = (PUBLISHED / file).read_text()
    assert ids(words, TEMPLATES[name], textual, TOOLS) == ids(words, published, structured, TOOLS)


@pytest.mark.parametrize("messages", PLAIN)
def test_smollm2_against_the_models_own(messages: Any) -> None:
    tokenizer = loader.load_tokenizer("smollm2")
    assert ids(tokenizer, TEMPLATES["smollm2"], messages) == ids(tokenizer, tokenizer.chat_template, messages)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "llama-3"])
def test_every_template_can_be_taken_apart_and_shows_tools(name: str, words: PreTrainedTokenizerBase) -> None:
    from practicum.environment import Message

    renderer = Renderer(words, name)
    started = renderer.start([Message("system", "Help."), Message("user", "Hi")], TOOLS)
    ids = [i for span in started for i in span.ids] + list(renderer.encode_reply("Yes."))
    extended = renderer.extend(ids, [Message("tool", "5", name="calculator")])
    text = words.decode([*ids, *(i for span in extended for i in span.ids)])
    assert "calculator" in text
    assert text.count("<|im_end|>") == text.count("<|im_start|>") - 1  # the generation prompt stays open
