"""Full-text search: an inverted index of the words of questions, replies, tool calls, results and errors."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from practicum.report.row_text import question_of, target_of
from practicum.trajectory import Trajectory

MAX_WORD_CHARACTERS = 200
"""A longer word is indexed in overlapping pieces, so that any text of half this length in it is found."""
COMPRESSION_LEVEL = 6


class SearchIndex:
    """The numbers of the rows that have each word, in increasing order. Rows are added one after another."""

    def __init__(self) -> None:
        self._rows: dict[str, array[int]] = {}

    def add(self, row: int, words: Iterable[str]) -> None:
        for word in words:
            rows = self._rows.get(word)
            if rows is None:
                self._rows[word] = array("I", (row,))
            else:
                rows.append(row)

    def rows_with(self, text: str) -> set[int]:
        """The rows with a word in which this text, in lower case and without white space, occurs."""
        row_numbers: set[int] = set()
        for word, rows in self._rows.items():
            if text in word:
                row_numbers.update(rows)
        return row_numbers

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Give the rows new numbers by their old ones; those without a new one are removed."""
        for word in list(self._rows):
            kept = array("I", sorted(numbers[row] for row in self._rows[word] if row in numbers))
            if kept:
                self._rows[word] = kept
            else:
                del self._rows[word]

    def packed(self) -> bytes:
        """The index as the page's script reads it, deflated.

        Its content is the length of the vocabulary in bytes (32 bits, little-endian), the words with a line feed after
        each, and then for each word the number of its rows, the first row and the distances between rows: 32-bit
        numbers, first the low bytes of all of them, then the second ones, and so on, because that compresses well.
        """
        words = sorted(self._rows)
        text = "".join(f"{word}\n" for word in words).encode("utf-8", "replace")
        values = array("I")
        for word in words:
            rows = self._rows[word]
            values.append(len(rows))
            values.extend(np.diff(np.array(rows, np.uint32), prepend=np.uint32(0)).tolist())
        planes = np.array(values, "<u4").view(np.uint8).reshape(-1, 4).T.tobytes()
        packer = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -15)
        return packer.compress(struct.pack("<I", len(text)) + text + planes) + packer.flush()


def words_of(episode: Trajectory) -> set[str]:
    """All words of an episode that can be searched: what is between white space, in lower case.

    A text without white space occurs in an episode exactly where it occurs in one of these.
    """
    return {piece for text in _texts(episode) for word in text.lower().split() for piece in _pieces(word)}


def _texts(episode: Trajectory) -> Iterator[str]:
    """Question, target, every reply and call, what the environment answered, and errors.

    Not what every episode is shown before its question: a word of the instructions would find them all.
    """
    yield question_of(episode)
    yield target_of(episode)
    yield str(episode.error or "")
    for index, turn in enumerate(episode.turns):
        yield turn.reply
        yield str(turn.action.error or "")
        for call in turn.action.calls:
            yield str(call.name)
            yield json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
        for message in turn.messages:
            if message.role == "tool" or (index and not turn.restart and message.role != "system"):
                yield message.content
    for message in episode.closing:
        yield str(message.content)


def _pieces(word: str) -> Iterator[str]:
    for start in range(0, max(1, len(word) - MAX_WORD_CHARACTERS // 2), MAX_WORD_CHARACTERS // 2):
        yield word[start : start + MAX_WORD_CHARACTERS]
