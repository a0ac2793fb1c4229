"""Rows of text as samples: an assistant's words are trained and nothing else; what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from practicum.chat.renderer import Renderer
from practicum.cli.main import main
from practicum.data.store import read_episodes
from practicum.errors import UserError
from practicum.training.micro_batches import sft_samples
from practicum.training.text_dataset import read_demonstration_rows


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    arguments = ["collect", "--env", "math", "--env-arg", "levels=[2]", "--policy", "expert", "--tasks", "12"]
    assert main([*arguments, "--tokenizer", "tiny", "--out", str(folder)]) == 0
    return folder


def rows_file(folder: Path, *rows: object) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_exported_conversations_come_back_id_for_id(episodes: Path, tmp_path: Path, renderer: Renderer) -> None:
    assert main(["export", "--input-dir", str(episodes), "--format", "sft", "--output-dir", str(tmp_path)]) == 0
    expected = {sample.ids: sample for sample in sft_samples(list(read_episodes(episodes)))}
    results = [sample for _, sample in read_demonstration_rows(tmp_path / "sft.jsonl", renderer)]
    assert len(results) == len(expected)
    for sample in results:
        assert np.array_equal(sample.mask, expected[sample.ids].mask)
        assert np.array_equal(sample.weights, expected[sample.ids].weights)


def test_rows_of_actions_train_the_action_alone(tmp_path: Path, renderer: Renderer) -> None:
    path = rows_file(tmp_path, {"prompt": "What is 2 + 2?", "action": "4", "task_id": "t"})
    ((task, sample),) = read_demonstration_rows(path, renderer)
    assert task == "t"
    trained = [token for token, target in zip(sample.ids, sample.mask, strict=True) if target]
    assert trained == list(renderer.encode_reply("4"))


def test_a_reply_may_be_left_out_of_training(tmp_path: Path, renderer: Renderer) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bad", "train": False},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "good"},
    ]
    ((_, sample),) = read_demonstration_rows(rows_file(tmp_path, {"messages": messages}), renderer)
    assert renderer.decode([t for t, target in zip(sample.ids, sample.mask, strict=True) if target]) == "good"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"prompt": "x"}, "line 1 lacks 'action'"),
        ({"prompt": "x", "action": "  "}, "line 1: 'action' must be a text that is not empty"),
        ({"messages": "hello"}, "line 1: 'messages' must be a list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "message 1 needs a 'role'"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1: 'content' must be a text"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no reply of an assistant"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "nothing before it"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]},
            "message 2: 'content' must be a text that is not empty",
        ),
        ({"messages": [{"role": "user", "content": "x", "train": True}]}, "true for an assistant's replies only"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "tools": "all"},
            "'tools' must be a list",
        ),
    ],
)
def test_errors_name_file_line_and_field(tmp_path: Path, renderer: Renderer, row: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_demonstration_rows(rows_file(tmp_path, row), renderer)


def test_sft_from_rows(episodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--input-dir", str(episodes), "--format", "sft", "--output-dir", str(tmp_path)]) == 0
    arguments = ["sft", "--model", "tiny", "--dataset_path", str(tmp_path / "sft.jsonl"), "--full", "--lr", "1e-3",
                 "--epochs", "2", "--hardware", "24gb", "--out", str(tmp_path / "out"), "training.bf16=false",
                 "training.warmup_steps=0"]  # fmt: skip
    assert main([*arguments, "training.gradient_accumulation_steps=2"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["actor/loss"] < lines[0]["actor/loss"]
    assert (tmp_path / "out" / "model" / "config.json").is_file()
    capsys.readouterr()
    both = [
        "sft",
        "--episodes",
        str(episodes),
        "--dataset_path",
        str(tmp_path / "sft.jsonl"),
        "--out",
        str(tmp_path / "x"),
    ]
    assert main(both) != 0
    assert "either data.episodes" in capsys.readouterr().err
    assert main(["sft", "--dry-run", "--hardware", "toaster"]) != 0
    assert "Unknown hardware 'toaster'" in capsys.readouterr().err
