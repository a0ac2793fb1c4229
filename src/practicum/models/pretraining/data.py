"""Generated conversations as tokens: endless documents from a seed, and rows of fixed length packed from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerFast

from practicum.models.pretraining.kinds import KINDS, Turns
from practicum.models.pretraining.words import Words

START_ID, END_ID = 1, 2
"""`<|im_start|>` and `<|im_end|>`."""
WHOLE_TEXT_SHARE = 0.15
"""Documents trained on all of their tokens, not on the assistant's only: prompts repeat themselves, too."""
CHUNK_DOCUMENTS = 512


class TokenizedConversation(NamedTuple):
    """One conversation as tokens. `trained` marks the tokens that the loss counts; `answer` the last reply's."""

    kind: str
    ids: np.ndarray[Any, np.dtype[np.uint16]]
    trained: np.ndarray[Any, np.dtype[np.bool_]]
    answer_start: int


class PackedRows(NamedTuple):
    """Documents side by side in rows of one length: arrays (rows, length). `document` counts them within a row, from 1;
    0 is padding. `trained` marks tokens to be predicted."""

    ids: np.ndarray[Any, np.dtype[np.uint16]]
    document: np.ndarray[Any, np.dtype[np.uint8]]
    trained: np.ndarray[Any, np.dtype[np.bool_]]


def vocabulary_words(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Pieces of the vocabulary that are words or parts of words."""
    pieces = {token.lstrip("Ġ") for token in tokenizer.get_vocab()}
    return sorted(piece for piece in pieces if len(piece) > 1 and piece.isascii() and piece.isalpha())


def render(turns: Turns) -> str:
    """The text of a conversation in the chat template of `tiny`."""
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)


def documents(
    tokenizer: PreTrainedTokenizerFast, seed: str | int, longest: int, kinds: Sequence[str] = tuple(KINDS)
) -> Iterator[TokenizedConversation]:
    """Endless documents of at most `longest` tokens; the same ones for the same seed."""
    rng = Random(f"pretraining text {seed}")
    words = Words(rng, vocabulary_words(tokenizer))
    shares = [KINDS[name][0] for name in kinds]
    encoder = tokenizer.backend_tokenizer
    header = tokenizer("assistant\n", add_special_tokens=False)["input_ids"]
    while True:
        chosen = rng.choices(kinds, shares, k=CHUNK_DOCUMENTS)
        texts = [render(KINDS[name][1](words)) for name in chosen]
        for name, encoding in zip(chosen, encoder.encode_batch_fast(texts, add_special_tokens=False), strict=True):
            ids = np.array(encoding.ids, np.uint16)
            if len(ids) <= longest:
                yield _document(name, ids, header, rng.random() < WHOLE_TEXT_SHARE)


def _document(kind: str, ids: np.ndarray[Any, Any], header: list[int], whole_text: bool) -> TokenizedConversation:
    """Mark the assistant's tokens, from after its header up to and including `<|im_end|>`."""
    starts, ends = np.flatnonzero(ids == START_ID), np.flatnonzero(ids == END_ID)
    trained = np.full(len(ids), whole_text)
    answer_start = 0
    for start, end in zip(starts, ends, strict=True):
        content = start + 1 + len(header)
        if ids[start + 1 : content].tolist() == header:
            trained[content : end + 1] = True
            answer_start = int(content)
    trained[0] = False
    return TokenizedConversation(kind, ids, trained, answer_start)


def pack(stream: Iterator[TokenizedConversation], rows: int, length: int) -> PackedRows:
    """Fill rows with documents: each goes into the first open row that has space; a row is closed when nearly full."""
    packed = PackedRows(
        np.zeros((rows, length), np.uint16), np.zeros((rows, length), np.uint8), np.zeros((rows, length), np.bool_)
    )
    open_rows = dict.fromkeys(range(min(rows, 16)), (0, 0))  # tokens and documents so far
    unopened = len(open_rows)
    while open_rows:
        item = next(stream)
        size = len(item.ids)
        index = next((row for row, (used, _) in open_rows.items() if used + size <= length), None)
        if index is None:  # close the fullest; the document is dropped, which is rare and does no harm
            index = max(open_rows, key=lambda row: open_rows[row][0])
            size = 0
        used, count = open_rows[index]
        if size:
            packed.ids[index, used : used + size] = item.ids
            packed.document[index, used : used + size] = count + 1
            packed.trained[index, used : used + size] = item.trained
            open_rows[index] = (used + size, count + 1)
        if not size or used + size > length - 24 or count + 1 == 255:
            del open_rows[index]
            if unopened < rows:
                open_rows[unopened] = (0, 0)
                unopened += 1
    return packed
