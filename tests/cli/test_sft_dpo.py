"""`practicum sft` and `practicum dpo`: defaults of the papers, resumed exactly, adapters written."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from practicum.cli.main import main
from practicum.config.dpo import DPOConfig
from practicum.config.sft import SFTConfig
from practicum.training import dpo as dpo_module
from practicum.training import sft as sft_module
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


SMALL = ["training.bf16=false", "training.warmup_steps=2", "--lr", "1e-2", "--batch_size", "2",
         "--gradient_accumulation_steps", "8"]  # fmt: skip


def test_the_defaults_that_affine_and_halo_document() -> None:
    training = SFTConfig().training
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
    other = DPOConfig()
    assert (other.training.beta, other.training.learning_rate, other.training.num_epochs) == (0.1, 5e-5, 2)
    assert other.training.lora_dropout == 0.0  # its log-probs are computed without dropout


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
    assert (tmp_path / "sft" / "adapter_model.safetensors").read_bytes() == (
        tmp_path / "sft" / "model" / "adapter_model.safetensors"
    ).read_bytes()  # where HALO's commands look


def test_every_command_takes_what_sft_writes_by_default(
    demonstrations: Path, attempts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter, by the folder of its run: collected with, trained further in three ways, evaluated."""
    sft, level = str(tmp_path / "sft"), ["--env", "math", "--env-arg", "levels=[1]", "--tasks", "2"]
    few = ["--epochs", "1", "training.bf16=false", "training.save_steps=-1"]
    assert main(["sft", "--episodes", str(demonstrations), "--out", sft, "--lora_r", "4", *few]) == 0
    commands = [
        ["collect", *level, "--policy", sft, "--max-tokens", "4", "--max-turns", "1", "--out", str(tmp_path)],
        ["eval", *level, "--policy", sft, "--max-tokens", "4", "--max-turns", "1"],
        ["sft", "--episodes", str(demonstrations), "--model", sft, "--out", str(tmp_path / "again"), *few],
        ["dpo", "--episodes", str(attempts), "--model", f"{sft}/model", "--out", str(tmp_path / "dpo"), *few],
        ["train", f"actor_rollout_ref.model.path={sft}", "trainer.total_training_steps=1", "data.train_batch_size=2",
         "agent.num_chains=2", "algorithm.adv_estimator=grpo", "agent.max_turns=1", "trainer.val_before_train=false",
         "actor_rollout_ref.rollout.response_length=4", f"trainer.default_local_dir={tmp_path}"],
    ]  # fmt: skip
    for command in commands:
        assert main(command) == 0, (command, capsys.readouterr().err)
    trained = list(tmp_path.glob("practicum/*/model"))
    assert (trained[0] / "adapter_config.json").is_file()
    for more, message in ((["--full"], "is an adapter"), (["--lora_r", "8"], "training.lora_r is for a new adapter")):
        assert (
            main(["sft", "--episodes", str(demonstrations), "--model", sft, "--out", str(tmp_path / "x"), *more]) == 2
        )
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("adapter", [["--lora_r", "4"], ["--full"]])
def test_a_stage_cut_short_and_resumed_equals_a_whole_one(
    adapter: list[str], demonstrations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout included: what is dropped depends on the update's number alone."""

    def arguments(out: str) -> list[str]:
        world = ["--episodes", str(demonstrations), "--out", str(tmp_path / out)]
        return ["sft", *world, *SMALL, *adapter, "--epochs", "2", "training.save_steps=2", "training.eval_steps=3"]

    assert main(arguments("whole")) == 0
    update = sft_module.sft_update
    calls = 0

    def dying(*rest: object) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("the power went")
        return update(*rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sft_module, "sft_update", dying)
    with pytest.raises(RuntimeError):
        main(arguments("cut"))
    monkeypatch.undo()
    assert Checkpoints(tmp_path / "cut").steps()[-1] in (2, 3)
    assert main(arguments("cut")) == 0
    assert (tmp_path / "whole" / "metrics.jsonl").read_bytes() == (tmp_path / "cut" / "metrics.jsonl").read_bytes()
    name = "model.safetensors" if adapter == ["--full"] else "adapter_model.safetensors"
    first, second = (load_file(tmp_path / run / "model" / name) for run in ("whole", "cut"))
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_out_of_memory_says_what_to_lower(
    demonstrations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sft_module, "sft_update", lambda *rest: torch.empty(1 << 55))
    assert main(["sft", "--episodes", str(demonstrations), "--out", str(tmp_path / "sft"), *SMALL]) == 2
    error = capsys.readouterr().err
    assert "Out of memory" in error
    assert "lower training.batch_size" in error
    assert (tmp_path / "sft" / "config.yaml").exists()
    (version,) = json.loads((tmp_path / "sft" / "version.json").read_text())
    assert version["practicum"]
    assert version["commit"] is None or len(version["commit"]) == 40


def test_rows_with_a_response_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{n}?", "response": str(n)}) + "\n" for n in range(4)))
    command = ["sft", "--dataset_path", str(rows), "--out", str(tmp_path / "sft"), "--epochs", "1", "data.val_share=0"]
    assert main([*command, "--full"]) == 0, capsys.readouterr().err
    assert main([*command, "--lr", "0"]) == 2
    assert "training.learning_rate=0.0: it must be above 0" in capsys.readouterr().err


def test_preferences_from_episodes(attempts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--episodes", str(attempts), "--out", str(tmp_path / "dpo"), "training.bf16=false", "--lr", "5e-3",
                 "--epochs", "6", "--batch_size", "2", "--gradient_accumulation_steps", "4"]  # fmt: skip
    assert main(["dpo", *arguments]) == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in (tmp_path / "dpo" / "metrics.jsonl").read_text().splitlines()]
    assert json.loads((tmp_path / "dpo" / "adapter_config.json").read_text())["lora_dropout"] == 0
    assert lines[0]["dpo/loss"] == pytest.approx(0.693147, abs=1e-5)
    assert lines[-1]["dpo/loss"] < 0.5
    assert lines[-1]["dpo/reward_margin"] > lines[1]["dpo/reward_margin"]


def test_what_cannot_be_done_is_said(demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["sft", "--episodes", str(demonstrations), "--out", str(tmp_path / "x")]
    for more, message in (
        (["training.fp16=true"], "use training.bf16=true"),
        (["model.load_in_8bit=true"], "needs a CUDA GPU"),
        (["model.load_in_8bit=true", "model.load_in_4bit=true"], "exclude each other"),
        (["data.val_share=1.5"], "val_share"),
        (["training.scheduler_type=cosin"], "Did you mean 'cosine'"),
        (["--full", "model.adapter_path=somewhere"], "leave one of them out"),
    ):
        assert main([*base, *more]) == 2
        assert message in capsys.readouterr().err
    assert main([*base, *SMALL, "--full", "--epochs", "1"]) == 0
    assert main([*base, *SMALL, "--full", "--epochs", "2"]) == 2
    assert "holds a run with training.num_epochs=1" in capsys.readouterr().err


def test_a_dry_run_refuses_four_bits_on_a_cpu(demonstrations: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sft", "--dry-run", "--episodes", str(demonstrations), "model.device=cpu"]
    assert main([*command, "model.load_in_4bit=true"]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().err
    assert main(command) == 0


def command_line(command: str, data: list[str], out: Path, *more: str) -> list[str]:
    """Four short updates or more, of all weights."""
    plain = ["--full", "training.bf16=false", "--batch_size", "4", "--gradient_accumulation_steps", "1"]
    return [command, *data, "--out", str(out), *plain, "--epochs", "1", *more]


def before_update(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, number: int, act: Callable[[], object]
) -> None:
    """Something happens in the middle of an update."""
    update, calls = getattr(module, name), 0

    def acting(*rest: object) -> dict[str, float]:
        nonlocal calls
        calls += 1
        if calls == number:
            act()
        result: dict[str, float] = update(*rest)
        return result

    monkeypatch.setattr(module, name, acting)


@pytest.mark.parametrize(("command", "number"), [("sft", signal.SIGINT), ("dpo", signal.SIGTERM)])
def test_asked_to_stop_it_finishes_the_update_saves_and_goes_on_later(
    command: str, number: signal.Signals, attempts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = ["--episodes", str(attempts)]
    assert main(command_line(command, data, tmp_path / "whole")) == 0
    before = signal.getsignal(number)
    module, name = (sft_module, "sft_update") if command == "sft" else (dpo_module, "dpo_update")
    before_update(monkeypatch, module, name, 2, lambda: signal.raise_signal(number))
    assert main(command_line(command, data, tmp_path / "cut")) == 130
    monkeypatch.undo()
    assert "Stopping after this step, with a checkpoint" in capsys.readouterr().out
    assert signal.getsignal(number) == before
    assert Checkpoints(tmp_path / "cut").steps() == [2]
    assert main(command_line(command, data, tmp_path / "cut")) == 0
    for file in ("metrics.jsonl", "model/model.safetensors"):
        assert (tmp_path / "cut" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_asked_twice_it_stops_at_once_and_begins_anew(
    demonstrations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ["--episodes", str(demonstrations)]

    def twice() -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    before_update(monkeypatch, sft_module, "sft_update", 2, twice)
    assert main(command_line("sft", data, tmp_path)) == 130
    monkeypatch.undo()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert Checkpoints(tmp_path).steps() == []
    assert main(command_line("sft", data, tmp_path)) == 0
    lines = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == list(range(1, len(lines) + 1))


def test_a_folder_that_is_not_this_runs_own_is_not_written_into(
    demonstrations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command_line("sft", ["--episodes", str(demonstrations)], tmp_path, "training.save_steps=0")
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "already holds a finished run" in capsys.readouterr().err
    (tmp_path / "config.yaml").unlink()
    assert main(arguments) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize("save_steps", [0, 3])
def test_the_best_weights_are_the_result_however_often_it_saves(
    save_steps: int, demonstrations: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    losses = iter([3.0, 1.0, *[2.0] * 9])
    monkeypatch.setattr(sft_module, "evaluation_loss", lambda *_: {"eval/loss": next(losses)})
    more = [f"training.save_steps={save_steps}", "training.eval_steps=1", "training.save_total_limit=1"]
    assert main(command_line("sft", ["--episodes", str(demonstrations)], tmp_path, *more)) == 0
    output = capsys.readouterr().out
    assert "The best weights by eval/loss are those of step 2" in output
    assert "best eval loss 1.0000 at step 2" in output
    kept, last = (load_file(tmp_path / name / "model.safetensors") for name in ("global_step_2/actor", "model"))
    assert all(torch.equal(kept[key], last[key]) for key in kept)


def test_rows_of_three_fields_and_one_longer_than_the_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{n} + 1?", "chosen": str(n + 1), "rejected": "no"} for n in range(8)]
    rows[3]["rejected"] = "no " * 3000
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(command_line("dpo", ["--dataset_path", str(path)], tmp_path / "out")) == 0, capsys.readouterr().err
    assert "1 of 8 pairs are longer than the model's window" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_other_data_is_not_gone_on_with(
    command: str, attempts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, out = tmp_path / "shown", tmp_path / "out"
    shutil.copytree(attempts, shown)
    arguments = command_line(command, ["--episodes", str(shown)], out)
    module, name = (sft_module, "sft_update") if command == "sft" else (dpo_module, "dpo_update")
    before_update(monkeypatch, module, name, 1, lambda: signal.raise_signal(signal.SIGINT))
    assert main(arguments) == 130
    monkeypatch.undo()
    next(path for path in sorted(shown.rglob("*.jsonl")) if "expert" in str(path)).unlink()
    assert main(arguments) == 2
    assert "began with; put that back" in capsys.readouterr().err
    shutil.rmtree(shown)
    shutil.copytree(attempts, shown)
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["training.warmup_steps=5"], "training.warmup_ratio"),
        (["training.eval_steps=5"], "nothing to evaluate on"),
        (["data.val_share=0.5"], "all pairs are trained on"),
        (["data.include_failed=true"], "compared with"),
        (["--dataset_path", "rows.jsonl", "data.pairing=trajectory"], "rows are pairs already"),
        (["--dataset_path", "rows.jsonl", "data.include_held_out=true"], "rows do not say which split"),
    ],
)
def test_what_dpo_would_not_read_is_refused(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dpo", *more, "--dry-run"]) == 2
    assert message in capsys.readouterr().err
