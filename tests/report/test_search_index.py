"""Every word of a question, reply, tool call, tool result and error finds its episodes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from practicum.environment import Action, Message, ToolCall
from practicum.report.search_index import MAX_WORD_CHARACTERS, SearchIndex, words_of
from practicum.trajectory import Trajectory
from tests.report.report_files import make_episode


def unpacked(data: bytes) -> dict[str, list[int]]:
    """What the page's script makes of a packed index."""
    content = zlib.decompress(data, -15)
    (size,) = struct.unpack("<I", content[:4])
    words, planes = content[4 : 4 + size].decode().split("\n")[:-1], content[4 + size :]
    count = len(planes) // 4
    values = [sum(planes[plane * count + index] << 8 * plane for plane in range(4)) for index in range(count)]
    rows_by_word, at = {}, 0
    for word in words:
        rows, row = [], 0
        for distance in values[at + 1 : at + 1 + values[at]]:
            row += distance
            rows.append(row)
        rows_by_word[word], at = rows, at + 1 + values[at]
    return rows_by_word


def long_episode() -> Trajectory:
    episode = make_episode("t", 0, 0.0, reply="at last")
    (turn,) = episode.turns
    call = ToolCall("web_search", {"query": "Zanzibar's harbour"})
    early = replace(turn, reply="lorem " * 500 + "Ornithopter", action=Action("x", "x", (call,)))
    answer = Message("tool", "Error: no connection to Ouagadougou", name="web_search")
    messages = (Message("system", "Instructions"), Message("user", "Q"))
    return replace(
        episode,
        turns=(replace(early, messages=messages), replace(turn, restart=False, messages=(answer,))),
        error="the judge raised KeyError",
    )


def test_words_of_questions_replies_calls_results_and_errors_are_found() -> None:
    index = SearchIndex()
    index.add(0, words_of(make_episode("other", 0, 1.0)))
    index.add(1, words_of(long_episode()))
    for word in ("ornithopter", "zanzibar's", "web_search", "ouagadougou", "keyerror", "last", "thopt"):
        assert index.rows_with(word) == {1}, word
    assert index.rows_with("what") == {0, 1}
    assert index.rows_with("instructions") == set()  # all episodes have these


def test_a_text_in_a_long_word_is_found() -> None:
    word = "".join(f"{n:05d}" for n in range(200))
    index = SearchIndex()
    index.add(7, words_of(make_episode("t", 0, 1.0, reply=word)))
    for start in range(0, len(word) - MAX_WORD_CHARACTERS // 2, 37):
        assert index.rows_with(word[start : start + MAX_WORD_CHARACTERS // 2]) == {7}


@given(st.lists(st.sets(st.sampled_from(["a", "b", "ü", "日本", "x\u2060y"])), max_size=9))
def test_the_packed_index_has_the_same_rows(rows: list[set[str]]) -> None:
    index = SearchIndex()
    for row, words in enumerate(rows):
        index.add(300 * row, words)
    expected = {word: [300 * n for n, words in enumerate(rows) if word in words] for word in set().union(*rows)}
    assert unpacked(index.packed()) == expected


def test_removed_rows_are_no_longer_found() -> None:
    index = SearchIndex()
    for row, words in enumerate((["a", "b"], ["b"], ["c", "b"])):
        index.add(row, words)
    index.renumber({0: 0, 2: 1})
    assert unpacked(index.packed()) == {"a": [0], "b": [0, 1], "c": [1]}
