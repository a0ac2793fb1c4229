"""Advantages that a run left beside its episodes: shown as they were, and never made up where they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from practicum.data.run_folder import advantages_path
from practicum.report.comparisons import compare_parts
from practicum.report.highlights import highlights
from practicum.report.index import FIELDS
from practicum.report.run_parts import parts_of_run
from practicum.report.run_view import RunView
from practicum.report.runs import RunFolder
from practicum.report.tokens import Tokenizers
from practicum.training.rollout_source import EpisodeSaver
from tests.report.report_files import make_episode

REWARDS = (1.0, 0.0, 0.0, 1.0)


def keep(folder: Path, step: int, rows: Sequence[Sequence[float]], tokenizer: PreTrainedTokenizerBase) -> None:
    """A group as a run keeps it; `rows` are its episodes' advantages, one per token or one for all."""
    group = [make_episode("task-0", index, reward, tokenizer) for index, reward in enumerate(REWARDS)]
    size = len(group[0].turns[0].spans[-1].ids)
    arrays = [np.array(row if len(row) > 1 else [row[0]] * size) for row in rows]
    saver = EpisodeSaver(folder, "flow_grpo")
    saver.set_advantages([group], [arrays])
    saver.save_group(step)


def read(folder: Path) -> RunView:
    view = RunView(RunFolder("run", folder))
    list(view.index.read_all())
    return view


def test_one_number_for_all_tokens(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    keep(tmp_path, 4, [[0.75], [-0.25], [-0.25], [-0.25]], tokenizer)  # not what the rewards alone would give
    view = read(tmp_path)
    assert [row.record()[FIELDS.index("credit")] for row in view.index.rows] == [0.75, -0.25, -0.25, -0.25]
    record = view.episode(view.index.rows[0], Tokenizers())
    assert record["estimator"] == "flow_grpo"
    assert not any("advantages" in span for turn in record["turns"] for span in turn["spans"])


def test_a_number_for_each_token(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    size = len(make_episode("task-0", 0, 1.0, tokenizer).turns[0].spans[-1].ids)
    values = [float(index) for index in range(size)]
    keep(tmp_path, 1, [values] * 4, tokenizer)
    view = read(tmp_path)
    assert view.index.rows[0].advantage == pytest.approx(np.mean(values))
    spans = view.episode(view.index.rows[0], Tokenizers())["turns"][0]["spans"]
    assert [span.get("advantages") for span in spans] == [None, None, values]


def test_an_episode_without_advantages_says_so(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    keep(tmp_path, 1, [[1.0]] * 4, tokenizer)
    for path in tmp_path.rglob("*.advantages.json"):
        path.unlink()
    view = read(tmp_path)
    assert [row.advantage for row in view.index.rows] == [None] * 4
    assert view.episode(view.index.rows[0], Tokenizers())["estimator"] is None
    assert not view.index.unreadable


@pytest.mark.parametrize(
    "record",
    [
        b"{",
        b"\xff\xfe",
        b"[1]",
        b'{"format": "other", "advantages": 1, "estimator": "grpo"}',
        b'{"format": "practicum advantages 1", "advantages": "<script>", "estimator": "grpo"}',
        b'{"format": "practicum advantages 1", "advantages": [1, "x"], "estimator": "grpo"}',
        b'{"format": "practicum advantages 1", "advantages": ' + b"9" * 400 + b', "estimator": "grpo"}',
    ],
)
def test_damaged_advantages_are_listed_and_the_episode_is_shown(
    record: bytes, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    keep(tmp_path, 1, [[1.0]] * 4, tokenizer)
    episode = sorted(tmp_path.rglob("*.jsonl"))[0]
    advantages_path(episode).write_bytes(record)
    view = read(tmp_path)
    assert [row.advantage for row in view.index.rows] == [None, 1.0, 1.0, 1.0]
    assert [Path(entry.path).name for entry in view.index.unreadable] == [advantages_path(episode).name]
    assert "fault" not in view.episode(view.index.rows[0], Tokenizers())


@pytest.mark.parametrize("values", [[float("nan"), 1.0], [1.0, 2.0], [float("inf")]])
def test_unusual_advantages_stay_valid_json(
    values: list[float], tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Numbers that are none, and a list that is not as long as the episode."""
    keep(tmp_path, 1, [[1.0]] * 4, tokenizer)
    episode = sorted(tmp_path.rglob("*.jsonl"))[0]
    record: dict[str, Any] = {"format": "practicum advantages 1", "estimator": "\x1b[31m", "advantages": values}
    advantages_path(episode).write_text(json.dumps(record))
    view = read(tmp_path)
    episode_record = view.episode(view.index.rows[0], Tokenizers())
    assert "\x1b" not in json.dumps([row.record() for row in view.index.rows] + [episode_record], allow_nan=False)
    assert episode_record["estimator"] == "\\x1b[31m"


def test_groups_of_several_steps_have_no_success_rate(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Each step had another policy: a rate over them would be nobody's."""
    for run in ("a", "b"):
        for step in (1, 2, 4):
            keep(tmp_path / run, step, [[0.5]] * 4, tokenizer)
    rows = {run: read(tmp_path / run).index.rows for run in ("a", "b")}
    parts = [part for run, run_rows in rows.items() for part in parts_of_run(run, run, run_rows)]
    assert [(line["part"], line["episodes"], line["kept"], line["success_rate"]) for line in
            (part.record() for part in parts)] == [("groups", 12, True, None)] * 2  # fmt: skip
    assert compare_parts(parts) == []
    assert highlights(rows["a"])["worst"]
