"""Tokens to text and calls: the same parts however the tokens are grouped."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.chat.renderer import Renderer
from practicum.chat.text_stream import TextStream
from practicum.engines.base import Generation, SampledToken
from practicum.models.loader import load_tokenizer
from practicum.serving.reply_reader import ReplyReader
from practicum.serving.turn import CompletionChoice, FunctionCall
from practicum.trajectory import StopReason

RENDERER = Renderer(load_tokenizer("tiny"))
PIECES = (
    "a",
    " ",
    "\n",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {}}',
    "{",
    "<tool",
    "ab",
    "abc",
    "é",
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def read(ids: list[int], sizes: list[int], stops: tuple[str, ...]) -> tuple[list[object], str, str | None]:
    reader, choice, start = ReplyReader(0, RENDERER, stops, True, "call_"), CompletionChoice(0), 0
    for size in [*sizes, len(ids)]:
        choice.add(reader.push([SampledToken(token, 0.0) for token in ids[start : start + size]]))
        start += size
    delta, finish = reader.finish(Generation(tuple(ids), None, StopReason.END, 0, "policy"), 1)
    choice.add(delta)
    assert choice.ids == ids
    return list(choice.parts), finish.reason, finish.stop_string


@given(TEXTS, st.lists(st.integers(0, 4), max_size=20), st.sampled_from([(), ("ab", "bc"), ("abc", "c"), ("\n",)]))
@settings(max_examples=200, deadline=None)
def test_parts_do_not_depend_on_the_grouping(text: str, sizes: list[int], stops: tuple[str, ...]) -> None:
    ids = list(RENDERER.encode_reply(text))
    parts, reason, stop = read(ids, sizes, stops)
    assert (parts, reason, stop) == read(ids, [], stops)
    plain = "".join(part for part in parts if isinstance(part, str))
    assert not any(stop in plain for stop in stops if not any(isinstance(part, FunctionCall) for part in parts))
    if not stops and "<tool_call>" not in text:
        assert plain == text


@given(st.lists(st.integers(0, len(RENDERER.tokenizer) - 1), max_size=30))
@settings(max_examples=200, deadline=None)
def test_streamed_text_is_the_decoded_text(ids: list[int]) -> None:
    stream = TextStream(RENDERER)
    assert "".join(stream.push([token]) for token in ids) + stream.finish() == RENDERER.decode(ids)


class _NoBytes(Renderer):
    """A renderer of a tokenizer whose tokens are not bytes."""

    token_bytes = None  # type: ignore[assignment]


NO_BYTES = _NoBytes(load_tokenizer("tiny"))


@given(st.text(max_size=20))
@settings(max_examples=100, deadline=None)
def test_streamed_text_of_other_tokenizers(text: str) -> None:
    renderer = NO_BYTES
    ids = renderer.encode(text)[0]
    stream = TextStream(renderer)
    assert "".join(stream.push([token]) for token in ids) + stream.finish() == renderer.decode(ids)
