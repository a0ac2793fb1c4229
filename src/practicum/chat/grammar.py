"""Grammars over a tokenizer's ids: which tokens may follow in a reply that must have a response format.

The engine samples among the tokens that a `GrammarMatcher` allows; the learner derives the same sets again from the
response format and the reply's ids (`Grammars.token_masks`), so that both use the same distribution. A set of tokens is
a bit mask: bit i % 32 of the word i // 32 is token i. Ids that the tokenizer does not have are never allowed.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from practicum.chat.response_format import ResponseFormat, grammar_of
from practicum.errors import UserError

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

WordArray = NDArray[np.int32]
MAX_CACHED_GRAMMARS = 256
MAX_CACHED_MASK_BYTES = 256 << 20
"""Bytes of masks of whole replies that are kept: an update reads those of its batch several times."""
MAX_THREADS = 16
"""Threads that compute the masks of whole replies."""


@dataclass(frozen=True, eq=False)
class TokenMasks:
    """The tokens that could be sampled at each position of a sequence: `rows` [T] index `table` [U, words].

    Positions with the row -1 have no restriction. Equal masks are in the table once: within a text of JSON they hardly
    differ.
    """

    rows: NDArray[np.int64]
    table: WordArray

    @classmethod
    def from_masks(cls, masks: WordArray) -> TokenMasks:
        """The masks of every position [T, words], equal ones once."""
        index: dict[bytes, int] = {}
        rows = np.array([index.setdefault(mask.tobytes(), len(index)) for mask in masks], dtype=np.int64)
        table = np.frombuffer(b"".join(index), dtype=np.int32).reshape(len(index), masks.shape[1])
        return cls(rows, table)

    @property
    def num_words(self) -> int:
        return int(self.table.shape[1])

    @property
    def num_bytes(self) -> int:
        return int(self.rows.nbytes + self.table.nbytes)


def format_key(response_format: ResponseFormat) -> str:
    """A response format as text. Keys keep their order: it is the order of an object's properties."""
    return json.dumps(response_format, separators=(",", ":"))


def allows(mask: WordArray, token: int) -> bool:
    """Whether a mask [words] has a token."""
    return token // 32 < len(mask) and bool(int(mask[token // 32]) >> (token % 32) & 1)


def unpack_masks(masks: WordArray, vocabulary: int) -> NDArray[np.bool_]:
    """Masks [B, words] as booleans [B, vocabulary]."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=min(vocabulary, 32 * masks.shape[1]), bitorder="little")
    if bits.shape[1] < vocabulary:
        bits = np.pad(bits, ((0, 0), (0, vocabulary - bits.shape[1])))
    return bits.view(np.bool_)


class GrammarMatcher:
    """The state of a grammar after the tokens of one reply so far."""

    def __init__(self, grammars: Grammars, matcher: LLMatcher) -> None:
        self.grammars, self.matcher = grammars, matcher
        self.pending: int | None = None
        """A token that was sampled and is not consumed yet: the next masks are computed beside the model's step."""
        self.finished = False
        """Whether the reply has ended: nothing is computed for it any more."""
        self.error = ""


@dataclass(eq=False)
class Grammars:
    """The grammars of response formats for one tokenizer; `end_ids` may be sampled where a reply is complete."""

    tokenizer: PreTrainedTokenizerBase
    end_ids: tuple[int, ...]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    """Held for look-ups only, so that no thread waits for the compilation of another format."""
    _compile_lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _tokenizer: LLTokenizer | None = field(default=None, init=False, repr=False)
    _executor: LLExecutor | None = field(default=None, init=False, repr=False)
    _matchers: OrderedDict[str, LLMatcher] = field(default_factory=OrderedDict, init=False, repr=False)
    _masks: OrderedDict[tuple[str, tuple[int, ...]], TokenMasks] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    _mask_bytes: int = field(default=0, init=False, repr=False)

    @property
    def num_words(self) -> int:
        """Words of a mask."""
        return -(-len(self.tokenizer) // 32)

    def is_compiled(self, response_format: ResponseFormat) -> bool:
        """Whether `matcher` returns at once."""
        return format_key(response_format) in self._matchers

    def matcher(self, response_format: ResponseFormat) -> GrammarMatcher:
        """Return a matcher at the beginning of a reply; a format that is not valid is a UserError."""
        return GrammarMatcher(self, self._compiled(format_key(response_format), response_format).deep_copy())

    def compute_masks(self, matchers: Sequence[tuple[GrammarMatcher, int]], masks: WordArray) -> None:
        """Consume what is pending and write the mask of each matcher to its row of `masks` [B, words].

        In this thread: a call takes a few microseconds, and handing the batch to other threads takes longer than that.
        """
        address, num_bytes = masks.ctypes.data, masks.strides[0]
        for state, row in matchers:
            matcher, token, state.pending = state.matcher, state.pending, None
            if state.error:
                continue
            if token is None or matcher.consume_token(token):
                matcher.unsafe_compute_mask_ptr(address + row * num_bytes, num_bytes)
            if matcher.is_error():
                state.error = _first_line(matcher.get_error())

    def token_masks(self, replies: Sequence[tuple[ResponseFormat, tuple[int, ...]]]) -> list[TokenMasks]:
        """Return the masks of whole replies, one row per id; an id that its mask does not have is a UserError."""
        keys = [(format_key(response_format), ids) for response_format, ids in replies]
        formats = {key: response_format for key, (response_format, _) in zip(keys, replies, strict=True)}
        result = {key: self._masks[key] for key in formats if key in self._masks}
        missing = [key for key in formats if key not in result]
        if missing:
            lengths = [len(ids) for _, ids in missing]
            starts = np.cumsum([0, *lengths])
            masks = np.zeros((int(starts[-1]), self.num_words), dtype=np.int32)
            jobs = [
                (self._compiled(key[0], formats[key]).deep_copy(), int(start), list(key[1][:-1]))
                for key, start in zip(missing, starts, strict=False)
            ]
            self.executor.unsafe_compute_mask_ptr_with_draft_token(
                jobs, masks.ctypes.data, masks.strides[0], len(masks)
            )
            for key, start, length in zip(missing, starts, lengths, strict=False):
                own = masks[start : start + length]
                _check_reply(own, key[1])
                result[key] = self._remember(key, TokenMasks.from_masks(own))
        return [result[key] for key in keys]

    def _remember(self, key: tuple[str, tuple[int, ...]], masks: TokenMasks) -> TokenMasks:
        self._masks[key] = masks
        self._mask_bytes += masks.num_bytes
        while self._mask_bytes > MAX_CACHED_MASK_BYTES and len(self._masks) > 1:
            self._mask_bytes -= self._masks.popitem(last=False)[1].num_bytes
        return masks

    @property
    def executor(self) -> LLExecutor:
        """llguidance's threads, no more than this process has cores."""
        if self._executor is None:
            from llguidance import LLExecutor

            self._executor = LLExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0))))
        return self._executor

    def _compiled(self, key: str, response_format: ResponseFormat) -> LLMatcher:
        from llguidance import LLMatcher
        from llguidance.hf import from_tokenizer

        if (matcher := self._cached(key)) is not None:
            return matcher
        with self._compile_lock:
            if (matcher := self._cached(key)) is not None:  # another thread compiled it meanwhile
                return matcher
            if self._tokenizer is None:
                tokenizer: Any = self.tokenizer
                self._tokenizer = from_tokenizer(tokenizer, len(tokenizer), list(self.end_ids))
            response_format = self._with_added_tokens(response_format)
            matcher = LLMatcher(self._tokenizer, grammar_of(response_format), log_level=0)
            if matcher.is_error():
                raise UserError(f"The response format cannot be used: {_first_line(matcher.get_error())}")
            with self._lock:
                self._matchers[key] = matcher
                if len(self._matchers) > MAX_CACHED_GRAMMARS:
                    self._matchers.popitem(last=False)
            return matcher

    def _cached(self, key: str) -> LLMatcher | None:
        """The compiled grammar of a format, which becomes the one that was used last; the first is removed first."""
        with self._lock:
            if key in self._matchers:
                self._matchers.move_to_end(key)
            return self._matchers.get(key)

    def _with_added_tokens(self, response_format: ResponseFormat) -> ResponseFormat:
        """The response format in which literals of a Lark grammar that are added tokens are written as tokens.

        llguidance never reads the text of an added token (`<tool_call>`) as text, and fails in the middle of a reply
        where a grammar demands it. So anywhere else than as a literal of its own such a text is a UserError.
        """
        names = [token.content for token in self.tokenizer.added_tokens_decoder.values()]
        if isinstance(grammar := response_format.get("grammar"), str):
            for name in names:
                grammar = grammar.replace(json.dumps(name, ensure_ascii=False), name)
            response_format = {**response_format, "grammar": grammar}
            names = [name for name in names if f'"{name}' in grammar or f'{name}"' in grammar]
        text = json.dumps(response_format, ensure_ascii=False)
        for name in names:
            if name in text:
                raise UserError(
                    f"The response format contains '{name}', which is a token of its own; write it as a literal of a "
                    'Lark grammar ({"type": "grammar"}).'
                )
        return response_format


def _check_reply(masks: WordArray, ids: Sequence[int]) -> None:
    for position, (mask, token) in enumerate(zip(masks, ids, strict=True)):
        if not allows(mask, token):
            raise UserError(
                f"Token {position} of a reply ({token}) is not allowed by its response format: the reply was sampled "
                "with another tokenizer, or with another version of llguidance; collect it again."
            )


def _first_line(text: str) -> str:
    """The first line of a message, ending in one full stop."""
    return text.strip().partition("\n")[0].rstrip(".") + "."
