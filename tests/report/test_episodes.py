"""Finding runs, listing episodes, what is worth reading, tables and comparisons."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from practicum import __version__
from practicum.data import store
from practicum.environment import Message
from practicum.errors import UserError
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.result import EvalResult, attempt_result
from practicum.evaluation.stats.intervals import jeffreys
from practicum.report.comparisons import compare_parts
from practicum.report.episode import MAX_TURN_CHARACTERS, view
from practicum.report.highlights import highlights, surprisal
from practicum.report.index import EpisodeIndex
from practicum.report.row_text import TEXT_FIELDS, row_text, tool_error_text
from practicum.report.run_parts import parts_of_run
from practicum.report.run_view import RunView
from practicum.report.runs import RunFolder, find_runs, runs_below
from practicum.report.tokens import Tokenizers, tokenizer_file
from practicum.task import content_hash
from practicum.trajectory import Outcome
from practicum.utils.escape import encode
from practicum.utils.terminal import escape_invisible
from tests.report.report_files import (
    make_episode,
    write_damaged_episodes,
    write_hostile_episodes,
    write_run,
    write_training,
)


def read_index(folder: Path) -> EpisodeIndex:
    index = EpisodeIndex(folder)
    list(index.read_all())
    return index


def texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, names included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def test_runs_are_found_by_what_lies_in_them(tmp_path: Path) -> None:
    write_training(tmp_path / "a" / "one", 2)
    write_run(tmp_path / "b" / "one", [[1.0]])
    write_run(tmp_path / "quick" / "rl" / "examination", [[1.0]])
    (tmp_path / "quick" / "plan.json").write_text("{}")
    (tmp_path / "a" / "one" / "global_step_3").mkdir()
    assert [run.folder.relative_to(tmp_path).as_posix() for run in runs_below(tmp_path)] == ["a/one", "b/one", "quick"]
    assert len({run.key for run in runs_below(tmp_path)}) == 3
    assert [run.name for run in find_runs([tmp_path / "b", tmp_path / "b" / "one"])] == ["one"]


def test_a_training_and_the_evaluation_of_the_same_name_are_two_runs(tmp_path: Path) -> None:
    for case in ("a", "b"):
        (tmp_path / case / "rl").mkdir(parents=True)
        (tmp_path / case / "rl" / "metrics.jsonl").touch()
        (tmp_path / case / "rl.run").mkdir()
        (tmp_path / case / "rl.run" / "panel.json").touch()
        (tmp_path / case / "rl.json").touch()
    names = [run.name for run in find_runs([tmp_path])]
    assert sorted(names) == ["a/rl", "a/rl.json", "b/rl", "b/rl.json"]


def test_a_folder_without_a_run_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no run in"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="There is no run '.*nowhere'; give the folder"):
        find_runs([tmp_path / "nowhere"])


def test_rows_follow_the_episodes(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_run(tmp_path, [[1.0, 0.0], [0.5]], tokenizer)
    for attempt in (9, 10):
        store.write_episode(tmp_path / "top_episodes" / "step_7", make_episode("task-9", attempt, 1.0))
    index = read_index(tmp_path)
    assert [(row.result.task, row.result.attempt, row.part, row.step) for row in index.rows] == [
        ("task-0", 0, "", None),
        ("task-0", 1, "", None),
        ("task-1", 0, "", None),
        ("task-9", 9, "top_episodes", 7),
        ("task-9", 10, "top_episodes", 7),
    ]
    first = index.rows[0]
    reply_ids = tokenizer.encode("the answer is 4", add_special_tokens=False)
    assert first.result.tokens == len(reply_ids)
    assert first.logprob == pytest.approx(-0.5 * sum(range(len(reply_ids))) / len(reply_ids))
    assert index.rows[3].selected


def test_new_and_deleted_files(tmp_path: Path) -> None:
    write_run(tmp_path, [[1.0], [0.0]])
    index = read_index(tmp_path)
    path = store.write_episode(tmp_path / "top_episodes" / "step_1", make_episode("late", 0, 1.0))
    assert [row.result.task for row in (list(index.read_all()), index.rows)[1]] == ["task-0", "task-1", "late"]
    assert index.generation == 0
    store.episode_path(tmp_path, "task-0", 0).unlink()
    path.unlink()
    path.parent.rmdir()
    index.scan()
    assert [(row.number, row.result.task) for row in index.rows] == [(0, "task-1")]
    assert index.generation == 1


def test_damaged_files_are_listed_and_the_rest_goes_on(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_run(tmp_path, [[1.0]])
    damaged = write_damaged_episodes(tmp_path, tokenizer)
    index = read_index(tmp_path)
    assert [row.result.task for row in index.rows] == ["task-0"]
    assert {entry.path for entry in index.unreadable} == {path.name for path in damaged.values()}
    reasons = {entry.path: entry.reason for entry in index.unreadable}
    assert reasons[damaged["not UTF-8"].name].startswith("line 2 is not UTF-8 text (byte ")
    assert reasons[damaged["cut short"].name] == "the file is cut short"
    assert reasons[damaged["a text as reward"].name] == "a reward is not a number"


def test_hostile_episodes_become_plain_json(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    paths = write_hostile_episodes(tmp_path, tokenizer)
    view = RunView(RunFolder("hostile", tmp_path))
    list(view.index.read_all())
    assert len(view.index.rows) == len(paths)
    assert not view.index.unreadable
    views = [view.episode(row, Tokenizers()) for row in view.index.rows]
    for value in (view.record(), [row.record() for row in view.index.rows], *views):
        for text in texts(json.loads(encode(value), parse_constant=pytest.fail)):
            assert not {"\x1b", "\x9b", "\u202e", "\u2028", "\x00", "\x07"}.intersection(text)
    (long,) = [view for view in views if view["task"]["id"] == "long"]
    assert len(encode(long)) < 3 * MAX_TURN_CHARACTERS
    assert long["turns"][0]["reply"]["left"] > 5_000_000
    rewards = [row.record()[9] for row in view.index.rows]
    assert rewards.count("nan") == 1
    assert sum(row.counted for row in view.index.rows) == len(paths) - 2


def test_invisible_characters_are_shown_as_escapes() -> None:
    assert escape_invisible("a\x1b[31m\x9b\u202eb\n\tc") == "a\\x1b[31m\\x9b\\u202eb\n\tc"


def test_pieces_are_the_text_token_by_token(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces = Tokenizers().get("tiny")
    assert pieces is not None
    text = 'Zoë pays 3 € for ☕ and 🎈, "done".'
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces_found = pieces.split(ids)
    assert "".join(piece for piece, _ in pieces_found) == text
    assert sum(num_ids for _, num_ids in pieces_found) == len(ids)
    assert any(num_ids > 1 for _, num_ids in pieces_found)
    assert pieces.split([10**9, -3])[0] == ("⟨1000000000⟩", 1)


def test_a_tokenizer_is_never_fetched(tmp_path: Path) -> None:
    assert tokenizer_file("somebody/a-model-that-is-nowhere") is None
    assert tokenizer_file("../" * 10 + "etc") is None
    assert tokenizer_file("a\x00b") is None
    (tmp_path / "tokenizer.json").write_text("not a tokenizer")
    assert Tokenizers().get(str(tmp_path)) is None


def test_an_episode_without_its_tokenizer_is_shown_as_messages(tokenizer: PreTrainedTokenizerBase) -> None:
    episode = make_episode("t", 0, 1.0, tokenizer)
    record = view(replace(episode, provenance={"model": "gone/away"}), Tokenizers())
    assert record["tokenizer"] is None
    assert record["turns"][0]["spans"] == []
    assert record["turns"][0]["reply"] == "the answer is 4"
    spans = view(episode, Tokenizers())["turns"][0]["spans"]
    assert [span["origin"] for span in spans] == ["template", "observation", "sampled"]
    assert "".join(spans[2]["texts"]) == "the answer is 4"
    assert spans[2]["logprobs"][:2] == [0.0, -0.5]


def test_a_built_in_tokenizer_reads_the_episodes_of_a_deleted_model(
    tmp_path: Path, llama_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path))
    llama_tokenizer.save_pretrained(tmp_path / f"smollm2-{__version__}")
    names = {"model": "runs/away/start", "tokenizer": content_hash(llama_tokenizer.get_vocab())}
    episode = replace(make_episode("t", 0, 1.0, llama_tokenizer), provenance=names)
    spans = view(episode, Tokenizers())["turns"][0]["spans"]
    assert "".join(spans[2]["texts"]) == "the answer is 4"
    other = replace(episode, provenance=names | {"tokenizer": "0" * 16})
    assert view(other, Tokenizers())["turns"][0]["spans"] == []


def test_surprisal_is_in_bits_given_the_other_attempts(tmp_path: Path) -> None:
    rows = read_index(write_run(tmp_path, [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0]])).rows
    bits = surprisal(rows)
    assert bits[0] == pytest.approx(-math.log2((0 + 1) / (3 + 2)))
    assert bits[1] == pytest.approx(-math.log2((2 + 1) / (3 + 2)))
    assert bits[4] == pytest.approx(-math.log2((1 + 1) / (1 + 2)))
    chosen = highlights(rows, 2)
    assert chosen["surprising"][0] == 0
    assert {rows[n].result.reward for n in chosen["best"]} == {1.0}
    assert {rows[n].result.task for n in chosen["best"]} == {"task-0", "task-1"}
    assert rows[chosen["worst"][0]].result.reward == 0.0
    picked = highlights(rows, 6)
    assert {rows[n].result.reward for n in picked["worst"]} == {0.0}  # no success is among the worst
    assert {rows[n].result.reward for n in picked["best"]} == {1.0}
    assert picked["surprising"] == [0]  # what was likelier than not surprisal nobody


def test_the_table_has_the_rates_of_the_evaluation(tmp_path: Path) -> None:
    write_run(tmp_path, [[1.0], [1.0], [0.0]])
    store.write_episode(tmp_path, replace(make_episode("broke", 0, 0.0), outcome=Outcome.ENV_ERROR, error="gone"))
    store.write_episode(tmp_path / "top_episodes" / "step_1", make_episode("task-0", 1, 1.0))
    lines = [part.record() for part in parts_of_run("k", "run", read_index(tmp_path).rows)]
    rejected, chosen = sorted(lines, key=lambda line: line["kept"])
    interval = jeffreys(2, 3, 0.95)
    assert rejected["success_rate"] == pytest.approx(2 / 3)
    assert (rejected["success_low"], rejected["success_high"]) == pytest.approx((interval.low, interval.high))
    assert rejected["outcomes"] == {"success": 2, "failure": 1, "env_error": 1}
    assert rejected["parts"] == {"answer": pytest.approx(2 / 3), "brevity": 0.25}
    assert chosen["kept"]
    assert chosen["success_rate"] is None


def test_runs_are_compared_on_the_tasks_they_share(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", [[0.0]] * 8 + [[1.0]] * 2)
    second = write_run(tmp_path / "b", [[1.0]] * 9)
    parts = [
        c for name, folder in (("a", first), ("b", second)) for c in parts_of_run(name, name, read_index(folder).rows)
    ]
    comparison, _ = compare_parts(parts)
    sides = []
    for folder in (first, second):
        results = [attempt_result(e) for e in store.read_episodes(folder) if e.task.id != "task-9"]
        sides.append(EvalResult(folder.name, "math", "p", 9, 1, tuple(results)))
    expected = compare_pair(*sides)
    assert comparison["verdict"] == expected.conclusion == "better"
    assert comparison["changes"][0]["p"] == expected.success.p_value
    assert comparison["tasks"] == 9
    assert "9 tasks that both have (of 10 and 9)" in comparison["basis"]


def test_runs_without_a_common_task_are_not_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[0.0]])
    store.write_episode(tmp_path / "b", make_episode("other", 0, 1.0))
    parts = [c for name in "ab" for c in parts_of_run(name, name, read_index(tmp_path / name).rows)]
    assert compare_parts(parts) == []


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ("Error: no article 'red pen' below 3,000.50 EUR", "no article ‘…’ below # EUR"),
        ('Observation: Error: "a" is not one of `b`, “c”\nTraceback line 7', "‘…’ is not one of ‘…’, ‘…’"),
        ("Output:\nError: it isn't there, that's all", "it isn't there, that's all"),
        ("Error", "no text"),
    ],
)
def test_errors_of_one_cause_have_one_text(observation: str, text: str) -> None:
    assert tool_error_text(observation) == text


def test_errors_are_counted_by_tool_and_text_up_to_a_few_texts() -> None:
    episode = make_episode("t", 0, 0.0)
    (turn,) = episode.turns
    errors = [f"Error: cause {name}" for name in "abcdefghij"] + ["Error: cause a", "5"]
    later = tuple(replace(turn, restart=False, messages=(Message("tool", text, name="calculator"),)) for text in errors)
    row = row_text(replace(episode, turns=(turn, *later)))
    assert row.tools == {"calculator": (13, 11)}
    assert row.tool_errors == {
        "calculator": {"other errors": 4, "cause a": 2, **{f"cause {name}": 1 for name in "bcdef"}}
    }
    assert len(row.record()) == len(TEXT_FIELDS)
