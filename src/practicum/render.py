"""Chat rendering, one turn at a time: the next prompt is the ids already held plus the ids of what is new.

Sampled text is never tokenised again. For any Jinja chat template the text between two replies is
found by rendering a stand-in conversation whose reply is a marker, and taking what follows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from practicum.environment import Message
from practicum.errors import UserError, nearest
from practicum.trajectory import Origin, Span

MARKER = "\u2402practicum-reply\u2403"

CHATML = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- if loop.first and tools %}"
    "{%- if m.role != 'system' %}{{- raise_exception('tools need a system message') }}{%- endif %}"
    "{{- '\n\nTools:' }}{%- for tool in tools %}{{- '\n' + (tool.function | tojson) }}{%- endfor %}"
    '{{- \'\nTo call one: <tool_call>{"name": ..., "arguments": ...}</tool_call>\' }}'
    "{%- endif %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""ChatML with the tools listed below the system message."""

LLAMA3 = (
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}"
    "{{- m.content | trim }}"
    "{%- if loop.first and tools %}"
    "{{- '\n\nTools:' }}{%- for tool in tools %}{{- '\n' + (tool.function | tojson) }}{%- endfor %}"
    '{{- \'\nTo call one: <tool_call>{"name": ..., "arguments": ...}</tool_call>\' }}'
    "{%- endif %}"
    "{{- '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
"""Llama-3's headers, with tools listed the same way."""

TEMPLATES = {"chatml": CHATML, "llama-3": LLAMA3}


class Renderer:
    """Messages to spans of ids, for one tokenizer and one template (by name; None = the model's own)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> None:
        if template is not None and template not in TEMPLATES:
            raise UserError(f"Unknown chat template '{template}'.{nearest(template, TEMPLATES)}")
        text = TEMPLATES[template] if template else tokenizer.chat_template
        if not text:
            raise UserError("This model has no chat template of its own; choose one, e.g. template=chatml.")
        self.tokenizer = tokenizer
        self.template: str = text
        self.close_id: int = self._encode(self._after_reply([Message("user", "x")]))[0][0]
        """The token that the template closes a reply with."""
        ends = {self.close_id} if tokenizer.eos_token_id is None else {self.close_id, tokenizer.eos_token_id}
        self.end_ids: tuple[int, ...] = tuple(sorted(ends))
        """Tokens that end a reply: the tokenizer's own and the template's."""

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[Span, ...]:
        """The first prompt."""
        text = self._apply(messages, tools)
        return self._spans(text, messages)

    def extend(self, held: Sequence[int], messages: Sequence[Message]) -> tuple[Span, ...]:
        """What follows the ids held (which end in a reply): the turn's closing, new messages, the next opening."""
        spans = self._spans(self._after_reply(messages), messages)
        if held and spans and spans[0].ids and held[-1] == spans[0].ids[0] and held[-1] in self.end_ids:
            # The policy sampled the closing token itself; the template must not add it twice.
            first = Span(spans[0].origin, spans[0].ids[1:])
            spans = ((first,) if first.ids else ()) + spans[1:]
        return spans

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """Ids of a reply that something other than a model wrote, closed by the end token."""
        return (*self._encode(text)[0], self.close_id)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a reply, without its end token."""
        kept = list(ids)
        while kept and kept[-1] in self.end_ids:
            kept.pop()
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _after_reply(self, messages: Sequence[Message]) -> str:
        text = self._apply([Message("user", "x"), Message("assistant", MARKER), *messages], ())
        _, found, tail = text.partition(MARKER)
        if not found or MARKER in tail:
            raise UserError("This chat template rewrites or drops an assistant's reply; choose another template.")
        return tail

    def _apply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        rows = [{"role": m.role, "content": m.content, **({"name": m.name} if m.name else {})} for m in messages]
        text = self.tokenizer.apply_chat_template(
            rows,
            tools=[dict(tool) for tool in tools] or None,
            chat_template=self.template,
            add_generation_prompt=True,
            tokenize=False,
        )
        return str(text)

    def _encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return coded["input_ids"], coded["offset_mapping"]

    def _spans(self, text: str, messages: Sequence[Message]) -> tuple[Span, ...]:
        ids, offsets = self._encode(text)
        ranges, position = [], 0
        for message in messages:
            content = message.content if message.content in text[position:] else message.content.strip()
            start = text.find(content, position) if content else -1
            if start >= 0:
                position = start + len(content)
                ranges.append((start, position))
        origins = []
        cursor = 0
        for begin, end in offsets:
            while cursor < len(ranges) and ranges[cursor][1] <= begin:
                cursor += 1
            inside = cursor < len(ranges) and begin < ranges[cursor][1] and end > ranges[cursor][0]
            origins.append(Origin.OBSERVATION if inside else Origin.TEMPLATE)
        spans: list[Span] = []
        start = 0
        for stop in range(1, len(ids) + 1):
            if stop == len(ids) or origins[stop] is not origins[start]:
                spans.append(Span(origins[start], tuple(ids[start:stop])))
                start = stop
        return tuple(spans)
