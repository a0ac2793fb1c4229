"""Tokens in, tokens out: the next prompt is the ids held plus the ids of what is new."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase, TokenizersBackend

from practicum.chat.renderer import MAX_CACHED_FRAMES, Renderer
from practicum.environment import Message
from practicum.errors import UserError
from practicum.models import loader
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


LLAMA2_STYLE = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- ' ' + m.content + ' <|im_end|>' }}"
    "{%- else %}{{- '[INST] ' + m.content + ' [/INST]' }}{%- endif %}{%- endfor %}"
)
"""Closes a reply with a space before its end token, as Llama-2 did."""

OWN_TEXT = {"qwen-style": QWEN_STYLE, "llama-2-style": LLAMA2_STYLE}


@pytest.fixture(params=["own", "chatml", "llama-3", *OWN_TEXT])
def styled(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase, llama_tokenizer: PreTrainedTokenizerBase
) -> Renderer:
    if request.param in OWN_TEXT:
        changed = copy.deepcopy(tokenizer)
        changed.chat_template = OWN_TEXT[request.param]
        return Renderer(changed)
    if request.param == "llama-3":
        return Renderer(llama_tokenizer, "llama-3")
    return Renderer(tokenizer, None if request.param == "own" else request.param)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_increments_spell_the_whole_conversation(styled: Renderer, data: st.DataObject) -> None:
    """Text of the ids held == the template's own rendering of the whole conversation, at every turn."""
    opening = [Message("system", data.draw(REPLY)), Message("user", data.draw(REPLY))]
    conversation, ids = list(opening), [i for span in styled.start(opening) for i in span.ids]
    for _ in range(data.draw(st.integers(1, 3))):
        reply = data.draw(REPLY)
        ids += styled.encode_reply(reply)
        role = data.draw(st.sampled_from(["tool", "user"]))
        new = [Message(role, data.draw(REPLY)) for _ in range(data.draw(st.integers(1, 2)))]
        before = list(ids)
        spans = styled.extend(ids, new)
        ids += [i for span in spans for i in span.ids]
        assert ids[: len(before)] == before
        conversation += [Message("assistant", reply), *new]
    spelled = styled.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    expected = styled.render_text(conversation, ())
    if styled.template == LLAMA2_STYLE:  # the policy writes its reply without the blanks this template sets around it
        spelled, expected = (re.sub(r" (<\|im_end\|>)|(\[/INST\]) ", r"\1\2", text) for text in (spelled, expected))
    assert spelled == expected


def test_a_cut_reply_is_closed_by_the_template(styled: Renderer) -> None:
    full = styled.encode_reply("abc")
    cut = [i for span in styled.extend(full[:-1], [Message("user", "go on")]) for i in span.ids]
    ended = [i for span in styled.extend(full, [Message("user", "go on")]) for i in span.ids]
    at = cut.index(styled.close_id)
    assert at <= 1
    assert cut[at + 1 :] == ended


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=REPLY | st.sampled_from(["user", "system", "i", "assistant", "<|im_end|>"]))
@example("user")
@example("i")
def test_origins_cover_the_contents_and_nothing_else(styled: Renderer, content: str) -> None:
    """Also where a content is a word of the template itself."""
    spans = styled.start([Message("system", "You help."), Message("user", content)])
    assert {span.origin for span in spans} == {Origin.TEMPLATE, Origin.OBSERVATION}
    observed = [styled.tokenizer.decode(list(s.ids)) for s in spans if s.origin is Origin.OBSERVATION]
    assert observed[0].strip() == "You help."
    assert observed[-1].strip() == content.strip() or "\ufffd" in observed[-1]


def test_tools_are_listed_in_the_system_message(renderer: Renderer) -> None:
    spans = renderer.start([Message("system", "S"), Message("user", "U")], [calculator.schema])
    text = renderer.tokenizer.decode([i for span in spans for i in span.ids])
    assert "calculator(expression): Work out an arithmetic expression." in text


def test_a_template_that_hides_the_tools_is_refused(styled: Renderer) -> None:
    messages = [Message("system", "S"), Message("user", "U")]
    if "tools" in styled.template:
        assert styled.start(messages, [calculator.schema]) != styled.start(messages)
    else:
        with pytest.raises(UserError, match="does not show tools"):
            styled.start(messages, [calculator.schema])


def test_a_template_of_another_family_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    """Llama-3's closing token is no token of this tokenizer: taking its first piece would end replies anywhere."""
    with pytest.raises(UserError, match="no special token"):
        Renderer(tokenizer, "llama-3")


def test_a_model_s_own_end_tokens_count(tokenizer: PreTrainedTokenizerBase) -> None:
    assert 0 in Renderer(tokenizer, end_ids=(0,)).end_ids


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


@pytest.fixture(scope="module", params=["tiny", "llama", "smollm2"])
def any_tokenizer(
    request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase, llama_tokenizer: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    if request.param != "smollm2":
        return tokenizer if request.param == "tiny" else llama_tokenizer
    try:
        return loader.load_tokenizer("smollm2")
    except UserError as error:
        pytest.skip(str(error))


MARKS = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|im", "\n", "  ", "e\u0301", "\U0001f600", "\0"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(MARKS | st.text(st.characters(codec="utf-8"), max_size=12), max_size=8))
@example(pieces=[])
def test_text_becomes_the_ids_and_offsets_that_hugging_face_gives(
    any_tokenizer: PreTrainedTokenizerBase, pieces: list[str]
) -> None:
    text = "".join(pieces)
    requests = any_tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert Renderer(any_tokenizer, "chatml").encode(text) == (requests["input_ids"], requests["offset_mapping"])


def test_what_others_set_on_the_tokenizer_does_not_matter(tokenizer: PreTrainedTokenizerBase) -> None:
    changed = copy.deepcopy(tokenizer)
    renderer, text = Renderer(changed), "one two three four five <|im_end|>"
    ids, offsets = renderer.encode(text)
    changed(text, truncation=True, max_length=2)
    assert renderer.encode(text) == (ids, offsets)
    changed(text, padding="max_length", max_length=40)
    assert renderer.encode(text) == (ids, offsets)
    changed(text, split_special_tokens=True)
    assert renderer.encode(text) == (ids, offsets)
    changed.split_special_tokens = True
    assert renderer.encode(text)[0] == changed(text, add_special_tokens=False)["input_ids"] != ids


def test_a_tokenizer_that_does_more_than_its_backend_is_asked_itself(tokenizer: PreTrainedTokenizerBase) -> None:
    class Shouting(TokenizersBackend):  # type: ignore[misc]
        def _encode_plus(self, text: str, **settings: object) -> object:
            return super()._encode_plus(text.replace("hush", "HUSH"), **settings)

    loud = Shouting(tokenizer_object=copy.deepcopy(tokenizer.backend_tokenizer), eos_token="<|im_end|>")
    loud.chat_template = tokenizer.chat_template
    assert Renderer(loud).encode("hush")[0] == Renderer(tokenizer).encode("HUSH")[0]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_ids_become_the_text_that_hugging_face_gives(
    any_tokenizer: PreTrainedTokenizerBase, data: st.DataObject
) -> None:
    """Broken characters, special tokens and numbers that no token has included."""
    ids = data.draw(st.lists(st.integers(0, 300) | st.integers(0, len(any_tokenizer) + 9), max_size=16))
    renderer = Renderer(any_tokenizer, "chatml")
    renderer.end_ids = ()
    requests = any_tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert renderer.decode(ids) == requests


def test_the_template_around_observations_is_rendered_once(styled: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    num_rendered = 0
    render = styled.tokenizer.apply_chat_template

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal num_rendered
        num_rendered += 1
        return render(*arguments, **options)

    monkeypatch.setattr(styled.tokenizer, "apply_chat_template", count)
    observations = [(Message("user", f"thing {number}"), Message("user", "x" * number)) for number in range(5)]
    extended = [styled.extend([1], messages) for messages in observations]
    assert num_rendered == 5 + 1
    for number in range(MAX_CACHED_FRAMES + 5):  # so many kinds of observations push the first one out of the cache
        styled.extend([1], [Message("user", "y")] * (number + 1))
    assert [styled.extend([1], messages) for messages in observations] == extended
