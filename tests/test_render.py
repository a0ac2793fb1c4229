"""Tokens in, tokens out: the next prompt is the ids held plus the ids of what is new."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from practicum.environment import Message
from practicum.errors import UserError
from practicum.render import TEMPLATES, Renderer
from practicum.tools.calculator import calculator
from practicum.trajectory import Origin

QWEN_STYLE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Consecutive tool answers share one user turn, as in Qwen's templates: the hardest shape for increments."""

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\u2402\u2403"), min_size=1, max_size=30)
REPLY = TEXT.filter(lambda text: text == text.strip() and "<|" not in text)


def renderer_for(name: str, tokenizer: PreTrainedTokenizerBase) -> Renderer:
    if name in TEMPLATES:
        return Renderer(tokenizer, name)
    original = tokenizer.chat_template
    try:
        tokenizer.chat_template = QWEN_STYLE if name == "qwen-style" else original
        return Renderer(tokenizer)
    finally:
        tokenizer.chat_template = original


STYLES = ["own", "qwen-style", *TEMPLATES]


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_increments_spell_the_whole_conversation(
    style: str, tokenizer: PreTrainedTokenizerBase, data: st.DataObject
) -> None:
    """Text of the ids held == the template's own rendering of the whole conversation, at every turn."""
    renderer = renderer_for(style, tokenizer)
    opening = [Message("system", data.draw(REPLY)), Message("user", data.draw(REPLY))]
    conversation, held = list(opening), [i for span in renderer.start(opening) for i in span.ids]
    for _ in range(data.draw(st.integers(1, 3))):
        reply = data.draw(REPLY)
        held += renderer.encode_reply(reply)
        role = data.draw(st.sampled_from(["tool", "user"]))
        new = [Message(role, data.draw(REPLY)) for _ in range(data.draw(st.integers(1, 2)))]
        before = list(held)
        spans = renderer.extend(held, new)
        held += [i for span in spans for i in span.ids]
        assert held[: len(before)] == before
        conversation += [Message("assistant", reply), *new]
    spelled = tokenizer.decode(held, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert spelled == renderer._apply(conversation, ())


@pytest.mark.parametrize("style", STYLES)
def test_a_cut_reply_is_closed_by_the_template(style: str, tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = renderer_for(style, tokenizer)
    whole = renderer.encode_reply("abc")
    cut = renderer.extend(whole[:-1], [Message("user", "go on")])
    ended = renderer.extend(whole, [Message("user", "go on")])
    flat = [i for span in cut for i in span.ids]
    assert flat[0] == renderer.close_id
    assert flat[1:] == [i for span in ended for i in span.ids]


@settings(max_examples=60, deadline=None)
@given(content=REPLY)
def test_origins_cover_the_message_and_nothing_is_sampled(tokenizer: PreTrainedTokenizerBase, content: str) -> None:
    renderer = Renderer(tokenizer)
    spans = renderer.start([Message("system", "You help."), Message("user", content)])
    assert {span.origin for span in spans} == {Origin.TEMPLATE, Origin.OBSERVATION}
    seen = "".join(tokenizer.decode(list(span.ids)) for span in spans if span.origin is Origin.OBSERVATION)
    assert "".join(f"You help.{content}".split()) in "".join(seen.split()) or "\ufffd" in seen


def test_tools_are_listed_in_the_system_message(renderer: Renderer) -> None:
    spans = renderer.start([Message("system", "S"), Message("user", "U")], [calculator.schema])
    text = renderer.tokenizer.decode([i for span in spans for i in span.ids])
    assert "calculator(expression): Work out an arithmetic expression." in text


def test_the_end_token_is_not_part_of_a_reply(renderer: Renderer) -> None:
    assert renderer.decode(renderer.encode_reply("four")) == "four"
    assert renderer.close_id in renderer.end_ids


def test_unknown_template_names_the_nearest(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(UserError, match="chatml"):
        Renderer(tokenizer, "chatm")


def test_a_template_that_drops_replies_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    original = tokenizer.chat_template
    try:
        tokenizer.chat_template = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
        with pytest.raises(UserError, match="drops an assistant's reply"):
            Renderer(tokenizer)
    finally:
        tokenizer.chat_template = original
