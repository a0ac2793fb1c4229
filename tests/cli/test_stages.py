"""`practicum sft` and `practicum dpo`: defaults of the papers, resumed exactly, adapters written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from practicum import stages
from practicum.cli.main import main
from practicum.overrides import read_overrides
from practicum.training.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demonstrations")
    assert main(["collect", "--env", "math", "--env-arg", "levels=[1]", "--tasks", "30", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of which some are better than others: an expert's and a random policy's, of the same tasks."""
    out = tmp_path_factory.mktemp("attempts")
    for policy in ("expert", "random"):
        arguments = ["collect", "--env", "math", "--env-arg", "levels=[1]", "--policy", policy, "--tasks", "12",
                     "--out", str(out), "--run-id", policy]  # fmt: skip
        assert main(arguments) == 0
    return out


SMALL = ["training.bf16=false", "training.warmup_steps=2", "--lr", "1e-2"]


def test_the_papers_defaults() -> None:
    config, _ = read_overrides(stages.SFTConfig, [])
    training = config.training
    assert (training.lora_r, training.lora_alpha, training.lora_dropout) == (64, 128.0, 0.05)
    assert (training.num_epochs, training.batch_size, training.gradient_accumulation_steps) == (3, 2, 8)
    assert (training.learning_rate, training.warmup_steps, training.weight_decay) == (2e-5, 100, 0.01)
    assert (training.scheduler_type, training.min_lr_ratio, training.bf16, training.fp16) == (
        "cosine",
        0.1,
        True,
        False,
    )
    assert (training.gradient_checkpointing, training.save_steps, training.save_total_limit) == (True, 1000, 3)
    other, _ = read_overrides(stages.DPOConfig, [])
    assert (other.training.beta, other.training.learning_rate, other.training.num_epochs) == (0.1, 5e-5, 2)


def test_an_adapter_is_trained_and_written(
    demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sft", "--episodes", str(demonstrations), "--out", str(tmp_path / "sft"), "--lora_r", "8", *SMALL,
                 "training.save_steps=2", "training.eval_steps=2"]  # fmt: skip
    assert main(arguments) == 0
    assert "parameters are trained" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 6  # 27 of 30 tasks, 16 a batch, three epochs
    assert lines[-1]["actor/loss"] < lines[0]["actor/loss"]
    assert lines[-1]["eval/loss"] < lines[1]["eval/loss"]
    assert "eval/perplexity" in lines[-1]
    assert (tmp_path / "sft" / "model" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("adapter", [[], ["--full"]])
def test_a_stage_cut_short_and_resumed_equals_a_whole_one(
    adapter: list[str], demonstrations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout included: what is dropped depends on the update's number alone."""

    def arguments(out: str) -> list[str]:
        world = ["--episodes", str(demonstrations), "--out", str(tmp_path / out)]
        return ["sft", *world, "--lora_r", "4", *SMALL, *adapter, "training.save_steps=2", "training.eval_steps=3"]

    assert main(arguments("whole")) == 0
    update = stages.sft.update
    calls = 0

    def dying(*rest: object) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("the power went")
        return update(*rest)  # type: ignore[arg-type]

    monkeypatch.setattr(stages.sft, "update", dying)
    with pytest.raises(RuntimeError):
        main(arguments("cut"))
    monkeypatch.undo()
    assert Checkpoints(tmp_path / "cut").steps()[-1] in (2, 3)
    assert main(arguments("cut")) == 0
    assert (tmp_path / "whole" / "metrics.jsonl").read_bytes() == (tmp_path / "cut" / "metrics.jsonl").read_bytes()
    name = "model.safetensors" if adapter else "adapter_model.safetensors"
    one, two = (load_file(tmp_path / run / "model" / name) for run in ("whole", "cut"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_preferences_from_episodes(attempts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--episodes", str(attempts), "--out", str(tmp_path / "dpo"), "training.bf16=false", "--lr", "5e-3",
                 "--epochs", "6", "training.gradient_accumulation_steps=4", "training.lora_dropout=0"]  # fmt: skip
    assert main(["dpo", *arguments]) == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "dpo" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["dpo/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert lines[-1]["dpo/loss"] < 0.5
    assert lines[-1]["dpo/reward_margin"] > lines[1]["dpo/reward_margin"]


def test_what_cannot_be_done_is_said(demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["sft", "--episodes", str(demonstrations), "--out", str(tmp_path / "x")]
    for more, says in (
        (["training.fp16=true"], "use training.bf16=true"),
        (["model.load_in_8bit=true"], "needs a CUDA GPU"),
        (["model.load_in_8bit=true", "model.load_in_4bit=true"], "exclude each other"),
        (["data.val_share=1.5"], "val_share"),
        (["training.scheduler_type=cosin"], "Did you mean 'cosine'"),
    ):
        assert main([*base, *more]) == 2
        assert says in capsys.readouterr().err
    assert main([*base, *SMALL, "--full", "--epochs", "1"]) == 0
    assert main([*base, *SMALL, "--full", "--epochs", "2"]) == 2
    assert "holds a run with training.num_epochs=1" in capsys.readouterr().err
