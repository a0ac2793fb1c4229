"""Chat rendering, one turn at a time: the next prompt is the ids of the conversation so far plus those of what is new.

Sampled text is never tokenised again. For any Jinja chat template the text between two replies is found by rendering a
placeholder conversation whose reply is a marker, and taking what follows the marker. Reasoning between <think> and
</think> is stripped by ids: what stays of a reply are the tokens that were sampled.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.normalizers import NFC
from transformers import PreTrainedTokenizerBase, TokenizersBackend

from practicum.chat.grammar import Grammars
from practicum.chat.templates import TEMPLATES
from practicum.environment import Message
from practicum.errors import UserError, did_you_mean
from practicum.trajectory import Origin, Span

LONG_TEXT = 1 << 14
"""Characters from which on a text is encoded without the GIL; below, waking other threads costs more than it saves."""
THOUGHTS_POLICIES = ("keep", "strip")
"""Values of `agent.thoughts`."""
REASONING_OPEN, REASONING_CLOSE = "<think>", "</think>"


def check_thoughts(policy: str) -> str:
    """Return a value of `agent.thoughts` that is known; raise UserError for another."""
    if policy not in THOUGHTS_POLICIES:
        raise UserError(f"Unknown agent.thoughts '{policy}'.{did_you_mean(policy, THOUGHTS_POLICIES)}")
    return policy


def split_reasoning(text: str) -> tuple[str, str] | None:
    """Return the reasoning and the rest of a reply; None where a <think> is not closed."""
    before, closed, after = text.partition(REASONING_CLOSE)
    if closed:
        return before.replace(REASONING_OPEN, "", 1).strip(), after.lstrip()
    return None if text.lstrip().startswith(REASONING_OPEN) else ("", text)


def strip_reasoning(renderer: Renderer, ids: Sequence[int]) -> tuple[int, ...]:
    """Return a reply's ids after its reasoning; all of them where there is none."""
    if REASONING_CLOSE not in renderer.decode(ids):
        return tuple(ids)
    low, high = 1, len(ids)  # the length of the shortest prefix that contains </think>
    while low < high:
        middle = (low + high) // 2
        if REASONING_CLOSE in renderer.decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    while low < len(ids) - 1 and not renderer.decode(ids[low : low + 1]).strip():
        low += 1  # blank lines after it
    return tuple(ids[low:])


REPLY = "\u2402practicum-reply\u2403"
MARKER = "\u2402practicum-content\u2403"
"""Markers in place of a reply and of a message's content, by which the template's own text is found."""
MAX_CACHED_RENDERINGS, MAX_CACHED_IDS = 1024, 20_000
"""Renderings that the cache keeps, and the ids of the longest that it takes."""
MAX_CACHED_FRAMES = 64
"""Cached texts that the template puts around contents; there are as many as kinds of observations."""
_VISIBLE = (*range(33, 127), *range(161, 173), *range(174, 256))
_INVISIBLE = sorted({*range(256)} - {*_VISIBLE})
BYTE_OF_CHARACTER = (
    dict.fromkeys(range(256), "\u2402") | {byte: byte for byte in _VISIBLE}
    | {256 + index: byte for index, byte in enumerate(_INVISIBLE)}
)  # fmt: skip
"""GPT-2's alphabet, in which byte-level tokenizers write: a visible character for every byte. Invisible characters
stand for no byte; they map to a character that is not Latin-1."""

Spans = tuple[Span, ...]
_BEGIN, _END = itemgetter(0), itemgetter(1)


def check_template(template: str | None) -> None:
    """Refuse a name that is no chat template."""
    if template is not None and template not in TEMPLATES:
        raise UserError(f"Unknown chat template '{template}'.{did_you_mean(template, TEMPLATES)}")


class Renderer:
    """Messages to spans of ids, for one tokenizer and one template (by name; None = the model's own).

    `end_ids` are tokens beyond the tokenizer's and the template's own that a model may end a reply with.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template: str | None = None, end_ids: Sequence[int] = ()
    ) -> None:
        check_template(template)
        text = TEMPLATES[template] if template else tokenizer.chat_template
        if not text:
            raise UserError("This model has no chat template of its own; choose one, e.g. template=chatml.")
        self.tokenizer = tokenizer
        self._fast = tokenizer.backend_tokenizer if _uses_backend_only(type(tokenizer)) else None
        self._token_bytes: _TokenBytes | None = None
        if self._fast is not None and type(self._fast.decoder) is ByteLevel:
            self._token_bytes = _TokenBytes(self._fast)
        self.template: str = text
        self._cache: OrderedDict[tuple[str, tuple[Message, ...], str], tuple[Span, ...]] = OrderedDict()
        self._cache_lock = threading.Lock()  # a server renders long prompts in threads
        self._frames: dict[tuple[Message, ...], str] = {}
        self._tools_shown = False
        self._images_shown: bool | None = None
        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        closing = self.encode(self._after_reply([Message("user", "x")]))[0]
        close_id = next((token for token in closing if token in special), None)
        if close_id is None:
            raise UserError(
                "This chat template closes a reply with text that the model's tokenizer has no special token for; "
                "use the model's own template, or one made for this tokenizer."
            )
        self.close_id: int = close_id
        """The token with which the template closes a reply."""
        own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
        self.end_ids: tuple[int, ...] = tuple(sorted({close_id, *own, *end_ids}))
        """Tokens that end a reply."""
        self.grammars = Grammars(tokenizer, self.end_ids)
        """The grammars of replies that must have a response format."""

    def start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[Span, ...]:
        """Return the spans of the first prompt."""
        return self._cached("start", messages, tools, lambda: self._start(messages, tools))

    def _cached(
        self, kind: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], render: Callable[[], Spans]
    ) -> Spans:
        """Return a rendering from the cache, or render it: the attempts at one task begin with the same messages."""
        key = (kind, tuple(messages), json.dumps(list(map(dict, tools)), default=str) if tools else "")
        with self._cache_lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        spans = render()
        if sum(len(span.ids) for span in spans) <= MAX_CACHED_IDS:
            with self._cache_lock:
                self._cache[key] = spans
                if len(self._cache) > MAX_CACHED_RENDERINGS:
                    self._cache.popitem(last=False)
        return spans

    def _start(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Spans:
        text = self.render_text(messages, tools)
        if tools and not self._tools_shown:
            if text == self.render_text(messages, ()):
                raise UserError(
                    "This chat template does not show tools to the model; choose one that does, e.g. template=chatml."
                )
            self._tools_shown = True
        return self._spans(text, self.render_text(_marked(messages), tools), messages)

    def extend(self, context_ids: Sequence[int], messages: Sequence[Message]) -> tuple[Span, ...]:
        """Return the spans that follow `context_ids`, which end in a reply: the reply's closing, the new messages, the
        opening of the next reply."""
        spans = self._cached("extend", messages, (), lambda: self._following(messages))
        if context_ids and context_ids[-1] == self.close_id:
            # The policy sampled the closing token itself; the template must not add it twice.
            return _without_closing(spans, self.close_id)
        return spans

    def _following(self, messages: Sequence[Message]) -> Spans:
        marked = tuple(_marked(messages))
        frame = self._frames.get(marked)  # observations differ, the template's text around them hardly ever
        if frame is None:
            if len(self._frames) >= MAX_CACHED_FRAMES:
                self._frames.clear()
            frame = self._frames[marked] = self._after_reply(marked)
        return self._spans(self._after_reply(messages), frame, messages)

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """Return the ids of a reply that no model sampled, closed by the end token."""
        return (*self.encode(text)[0], self.close_id)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a reply, without its end token."""
        kept = list(ids)
        while kept and kept[-1] in self.end_ids:
            kept.pop()
        if self._token_bytes is not None:  # the same result as below, without a look at every character
            return b"".join(map(self._token_bytes.__getitem__, kept)).decode(errors="replace")
        if self._fast is not None:  # the same result as below, without a look at every id
            return str(self._fast.decode(kept, skip_special_tokens=False))
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @property
    def token_bytes(self) -> Mapping[int, bytes] | None:
        """The bytes of every token, where the text of ids is that of their bytes; None for other tokenizers."""
        return self._token_bytes

    def _after_reply(self, messages: Sequence[Message]) -> str:
        text = self.render_text([Message("user", "x"), Message("assistant", REPLY), *messages], ())
        _, marker, tail = text.partition(REPLY)
        if not marker or REPLY in tail:
            raise UserError("This chat template rewrites or drops an assistant's reply; choose another template.")
        return tail

    def render_text(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of a conversation under the template, with the opening of the next reply."""
        if self._images_shown is None and any(m.images for m in messages):
            self._images_shown = self._shows_images()
        if not self._images_shown and any(m.images for m in messages):
            raise UserError(
                "This chat template cannot show images; choose text observations (for gui: observe=text), "
                "or the tokenizer of a vision model."
            )
        rows = [{"role": m.role, "content": _parts(m), **({"name": m.name} if m.name else {})} for m in messages]
        return self._fill(rows, tools)

    def _shows_images(self) -> bool:
        """Whether an image changes what the template writes, and a list of one text part does not."""
        text = {"type": "text", "text": "x"}
        try:
            plain, as_parts, with_image = (
                self._fill([{"role": "user", "content": content}], ())
                for content in ("x", [text], [text, {"type": "image"}])
            )
        except (TypeError, ValueError, TemplateError):
            return False
        return plain == as_parts != with_image

    def _fill(self, rows: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        text = self.tokenizer.apply_chat_template(
            [dict(row) for row in rows],
            tools=[dict(tool) for tool in tools] or None,
            chat_template=self.template,
            add_generation_prompt=True,
            tokenize=False,
        )
        return str(text)

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the characters (first, end) of each; special tokens in it are recognised."""
        fast = self._fast
        if fast is not None and fast.truncation is None and fast.padding is None:
            # The same result as below, without a batch of one, for which threads are woken and the GIL is released.
            if fast.encode_special_tokens != self.tokenizer.split_special_tokens:
                fast.encode_special_tokens = self.tokenizer.split_special_tokens
            if len(text) > LONG_TEXT:  # other threads go on meanwhile
                [encoding] = fast.encode_batch([text], add_special_tokens=False)
            else:
                encoding = fast.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets
        coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return coded["input_ids"], coded["offset_mapping"]

    def cannot_fit(self, text: str, num_tokens: int) -> bool:
        """Whether a text has more than `num_tokens` tokens by its length alone; False where it must be tokenized."""
        if len(text) <= num_tokens:
            return False
        longest = self._longest_token
        if longest is None or len(text) <= num_tokens * longest:
            return False
        return len(unicodedata.normalize("NFC", text)) > num_tokens * longest

    @cached_property
    def _longest_token(self) -> int | None:
        """The most characters that a token stands for; None where a token may stand for any number of them."""
        fast = self._fast
        if fast is None or self._token_bytes is None or not isinstance(fast.normalizer, NFC | None):
            return None
        if any(token.lstrip or token.rstrip for token in fast.get_added_tokens_decoder().values()):
            return None
        return max(map(len, fast.get_vocab()))  # a byte is one character there, so a token is never shorter

    def _spans(self, text: str, marked: str, messages: Sequence[Message]) -> tuple[Span, ...]:
        """Return the ids of a text as spans, split where template and message contents meet.

        `marked` is the same rendering with a marker for every content: the text between markers is the template's, so a
        content is found by its position and never mistaken for a word of the template.
        """
        ids, offsets = self.encode(text)
        ranges, position = [], 0
        literals = re.split(re.escape(MARKER) + r"\d+;", marked)
        for message, literal in zip(messages, literals, strict=False):
            start = position + len(literal)
            content = message.content
            if not text.startswith(content, start):
                content = content.strip()  # templates may trim
            if content and text.startswith(content, start):
                ranges.append((start, start + len(content)))
                position = start + len(content)
            else:
                position = start
        spans: list[Span] = []
        reached = 0
        for begin, end in ranges:  # a token that is partly content counts as content
            first = max(reached, bisect_right(offsets, begin, key=_END))
            last = bisect_left(offsets, end, lo=first, key=_BEGIN)
            if first == last:
                continue
            if reached < first or not spans:
                spans += _span(Origin.TEMPLATE, ids[reached:first])
                spans += _span(Origin.OBSERVATION, ids[first:last])
            else:
                spans[-1] = Span(Origin.OBSERVATION, (*spans[-1].ids, *ids[first:last]))
            reached = last
        return (*spans, *_span(Origin.TEMPLATE, ids[reached:]))


class _TokenBytes(dict[int, bytes]):
    """The bytes of each token of a byte-level tokenizer, looked up at the first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> bytes:
        text = self._tokenizer.id_to_token(token) or ""  # a model may have more tokens than its tokenizer
        try:
            data = text.translate(BYTE_OF_CHARACTER).encode("latin-1")
        except UnicodeEncodeError:  # not in that alphabet
            data = text.encode()
        self[token] = data
        return data


def _uses_backend_only(kind: type) -> bool:
    """Whether a tokenizer class leaves all work to its backend, as nearly all do."""
    methods = ("__call__", "_encode_plus", "_switch_to_input_mode", "decode", "_decode")
    return issubclass(kind, TokenizersBackend) and all(
        getattr(kind, name, None) is getattr(TokenizersBackend, name, None) for name in methods
    )


def _parts(message: Message) -> str | list[dict[str, str]]:
    """Return a content as templates want it: a text, or a list of parts where there are images."""
    if not message.images:
        return message.content
    return [{"type": "text", "text": message.content}, *({"type": "image"} for _ in message.images)]


def _marked(messages: Sequence[Message]) -> list[Message]:
    return [
        replace(message, content=f"{MARKER}{index};", images=("",) * len(message.images))
        for index, message in enumerate(messages)
    ]


def _span(origin: Origin, ids: Sequence[int]) -> Spans:
    return (Span(origin, tuple(ids)),) if ids else ()


def _without_closing(spans: Sequence[Span], close_id: int) -> tuple[Span, ...]:
    """Return the spans after the first closing token."""
    for index, span in enumerate(spans):
        if close_id in span.ids:
            rest = Span(span.origin, span.ids[span.ids.index(close_id) + 1 :])
            return ((rest,) if rest.ids else ()) + tuple(spans[index + 1 :])
    return tuple(spans)
