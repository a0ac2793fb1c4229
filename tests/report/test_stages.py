"""Stages in their order, the words of an episode, and the tokenizer that its ids are from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from practicum.environment import Message
from practicum.models import loader
from practicum.report.comparisons import PairCache, compare_parts
from practicum.report.document import document
from practicum.report.episode import view
from practicum.report.row_text import MAX_QUESTION_CHARACTERS, row_text
from practicum.report.run_view import RunView
from practicum.report.runs import find_runs
from practicum.report.series import MAX_POINTS, Series
from practicum.report.stage_order import stage_key
from practicum.report.tokens import Tokenizers
from practicum.task import Task
from tests.report.report_files import embedded_data, make_episode, write_run


def test_stages_are_ordered_by_training_and_numbers_by_value() -> None:
    names = ["rl-at-240", "rl-at-60", "dpo", "sft", "base", "other"]
    assert sorted(names, key=stage_key) == ["base", "sft", "dpo", "rl-at-60", "rl-at-240", "other"]


def test_every_pair_of_stages_is_compared_once_and_corrected_over_all(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """So neither the number of comparisons nor a verdict depends on the baseline that a reader chooses."""
    for stage, solved in (("base", 1), ("sft", 10), ("rl", 20)):
        write_run(tmp_path / "run" / stage / "examination", [[float(n < solved)] for n in range(20)], tokenizer)
    (tmp_path / "run" / "plan.json").write_text("{}")
    data = embedded_data(document(find_runs([tmp_path]))[0])
    base, sft, rl = "run · base", "run · sft", "run · rl"
    assert [line["label"] for line in data["runs"][0]["table"]] == [base, sft, rl]
    by_labels = {
        (comparison["baseline"]["label"], comparison["trained"]["label"]): comparison
        for comparison in data["comparisons"]
    }
    assert set(by_labels) == {(a, b) for a in (base, sft, rl) for b in (base, sft, rl) if a != b}
    assert {comparison["comparisons"] for comparison in by_labels.values()} == {3}
    for first, second in ((base, sft), (base, rl), (sft, rl)):
        forward, back = by_labels[first, second], by_labels[second, first]
        assert (forward["verdict"], back["verdict"]) == ("better", "worse")
        assert forward["p"] == back["p"] >= forward["changes"][0]["p"] == back["changes"][0]["p"]
        assert (forward["gained"], forward["lost"]) == (back["lost"], back["gained"])
        low, high = (forward["changes"][0][name] for name in ("low", "high"))
        assert (back["changes"][0]["low"], back["changes"][0]["high"]) == (-high, -low)
        assert "after Holm over 3" in forward["sentence"]


def test_a_server_compares_no_pair_twice_and_drops_removed_runs(tmp_path: Path) -> None:
    for name in "abc":
        write_run(tmp_path / name, [[float(n % 2)] for n in range(6)])
    views = [RunView(run) for run in find_runs([tmp_path])]
    for run in views:
        run.refresh()
        assert list(run.index.read_all())
    parts, cache = [part for run in views for part in run.parts()], PairCache()
    first = compare_parts(parts, cache)
    results = {key: result for key, (_, _, result) in cache.items()}
    assert len(first) == 6
    assert len(results) == 3
    assert compare_parts(parts, cache) == first
    assert all(cache[key][2] is result for key, result in results.items())
    assert len(compare_parts(parts[:2], cache)) == 2
    assert len(cache) == 1


def test_runs_found_in_a_folder_are_in_the_order_of_their_stages(tmp_path: Path) -> None:
    for stage in ("rl", "base", "sft"):
        write_run(tmp_path / stage, [[1.0]])
    assert [run.name for run in find_runs([tmp_path])] == ["base", "sft", "rl"]
    assert [run.name for run in find_runs([tmp_path / "rl", tmp_path / "sft"])] == ["rl", "sft"]


def test_a_row_has_question_target_answer_and_tools() -> None:
    episode = make_episode("t", 0, 0.0, reply="it is 5")
    turn = episode.turns[0]
    failed = replace(turn, messages=(Message("tool", "Error: no number", name="calculator"),))
    episode = replace(
        episode,
        task=Task("t", "math", "test", {"question": "What\nis  2+2?" + "x" * 999, "answer": 4}),
        turns=(turn, failed),
    )
    text = row_text(episode)
    assert text.question.startswith("What is 2+2?xxx")
    assert len(text.question) == MAX_QUESTION_CHARACTERS
    assert (text.target, text.answer) == ("4", "it is 5")
    assert text.tools == {"calculator": (2, 1)}


def test_ids_of_collected_episodes_are_shown_as_text(tokenizer: PreTrainedTokenizerBase) -> None:
    """They record the hash of the vocabulary, and a model that may be a folder which is gone."""
    recorded = {"model": "/gone/model", "tokenizer": loader.tokenizer_hash(tokenizer)}
    record = view(make_episode("t", 0, 1.0, tokenizer, provenance=recorded), Tokenizers())
    assert "".join(record["turns"][0]["spans"][-1]["texts"]) == "the answer is 4"
    other = {"model": "/gone/model", "tokenizer": "0123456789abcdef"}
    assert view(make_episode("t", 0, 1.0, tokenizer, provenance=other), Tokenizers())["tokenizer"] is None


@given(st.integers(MAX_POINTS, 5 * MAX_POINTS))
def test_intervals_of_merged_steps_are_narrower_by_the_root_of_their_number(count: int) -> None:
    series, repeated = Series(), Series(independent=False)
    for step in range(1, count + 1):
        series.add(step, 0.5, 0.4, 0.7)
        repeated.add(step, 0.5, 0.4, 0.7)
    _, mean, low, high = series.points[0]
    assert mean == pytest.approx(0.5)
    assert (mean - low, high - mean) == pytest.approx((0.1 / series.stride**0.5, 0.2 / series.stride**0.5))
    assert repeated.points[0][2:] == pytest.approx((0.4, 0.7))
