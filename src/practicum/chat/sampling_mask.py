"""The tokens that top-k, top-p and min-p left to sample from, per sampled token, in compact form.

They cannot be found again from other weights than those that sampled, so an episode records them: a ratio of
probabilities has to be one of distributions over the same tokens. The text is, per token, the number of ids and the
differences between the sorted ids, each as a variable-length integer (7 bits per byte), compressed and in base 64.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def encode_kept(sets: Sequence[NDArray[np.integer]]) -> str:
    """Return sorted ids of kept tokens, one array per sampled token, as text."""
    parts: list[NDArray[np.integer]] = []
    for ids in sets:
        parts += [np.array([len(ids)]), np.diff(ids, prepend=0)]
    values = np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)
    return base64.b64encode(zlib.compress(_varints(values), 6)).decode()


def decode_kept(text: str) -> list[Ids]:
    """Return what `encode_kept` was given; raise ValueError where the text is none of its."""
    try:
        values = _integers(zlib.decompress(base64.b64decode(text, validate=True)))
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the kept tokens of a reply cannot be read: {error}") from None
    sets: list[Ids] = []
    start = 0
    while start < len(values):
        count = int(values[start])
        ids = np.cumsum(values[start + 1 : start + 1 + count])
        if count < 1 or len(ids) != count or ids[-1] > 2**31:
            raise ValueError("the kept tokens of a reply cannot be read: they are cut short")
        sets.append(ids)
        start += 1 + count
    return sets


def _varints(values: Ids) -> bytes:
    """Integers below 2**35 as bytes of 7 bits, the lowest first; all but the last of each have the highest bit."""
    groups = np.stack([(values >> shift) & 0x7F for shift in range(0, 35, 7)], 1)
    lengths = np.maximum(1, 5 - np.argmax(groups[:, ::-1] > 0, axis=1))
    lengths[values == 0] = 1
    used = np.arange(5) < lengths[:, None]
    groups[np.arange(5) < lengths[:, None] - 1] |= 0x80
    return bytes(groups[used].astype(np.uint8))


def _integers(data: bytes) -> Ids:
    numbers = np.frombuffer(data, dtype=np.uint8).astype(np.int64)
    if not len(numbers):
        return np.zeros(0, dtype=np.int64)
    ends = np.flatnonzero(numbers < 0x80)
    if not len(ends) or ends[-1] != len(numbers) - 1:
        raise ValueError("it ends within a number")
    starts = np.concatenate([[0], ends[:-1] + 1])
    if int((ends - starts).max()) > 4:
        raise ValueError("a number is too long")
    shifts = 7 * (np.arange(len(numbers)) - np.repeat(starts, ends - starts + 1))
    result: Ids = np.add.reduceat((numbers & 0x7F) << shifts, starts)
    return result


class KeptTokens:
    """The kept tokens of a reply as masks; the table of bits is built when it is read, since it may be large."""

    def __init__(self, sets: Sequence[Ids]) -> None:
        self.sets = sets
        self.rows: NDArray[np.int64] = np.arange(len(sets))

    @property
    def table(self) -> NDArray[np.int32]:
        """The masks [T, words] (`chat/grammar.py`), as wide as the highest id needs."""
        table = np.zeros((len(self.sets), self.num_words), dtype=np.uint32)
        row = np.repeat(self.rows, [len(ids) for ids in self.sets])
        ids = np.concatenate(self.sets) if self.sets else np.zeros(0, dtype=np.int64)
        np.bitwise_or.at(table, (row, ids // 32), np.uint32(1) << (ids % 32).astype(np.uint32))
        return table.view(np.int32)

    @cached_property
    def num_words(self) -> int:
        return 1 + max((int(ids[-1]) // 32 for ids in self.sets), default=0)


def mask_ids(masks: NDArray[np.int32]) -> list[NDArray[np.int32]]:
    """Return the sorted ids of masks [N, words], one array per mask."""
    rows, words = np.nonzero(masks)
    bits = masks[rows, words].view(np.uint32)[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    index, bit = np.nonzero(bits)
    ids = (words[index] * 32 + bit).astype(np.int32)
    return np.split(ids, np.cumsum(np.bincount(rows[index], minlength=len(masks)))[:-1])
