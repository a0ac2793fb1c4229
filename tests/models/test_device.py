"""Where a model lies: names, what `auto` stands for, and what is said of a device that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from practicum.config.resolve import resolve_train
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.models.loader import Device
from practicum.rollout_settings import RolloutSettings
from practicum.training import build, build_supervised, settings
from practicum.training.checkpoint import check_continuation
from practicum.training.dry_run import summarize
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.trainable_policy import TrainablePolicy


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_without_a_gpu(no_gpu: None) -> None:
    assert loader.resolve_device() == Device("cpu", torch.float32)
    assert loader.resolve_device().batch_size == 64
    assert loader.resolve_device("cpu", "bf16") == Device("cpu", torch.bfloat16)


def test_auto_with_a_gpu(gpus: None) -> None:
    assert loader.resolve_device() == Device("cuda", torch.bfloat16)
    assert loader.resolve_device().batch_size == 256
    assert loader.resolve_device("cuda:1", "float32") == Device("cuda:1", torch.float32)
    assert loader.resolve_device("cpu") == Device("cpu", torch.float32)
    with pytest.raises(UserError, match="--device=cuda:2, but the GPUs here are cuda:0 to cuda:1; choose one of them."):
        loader.resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("cuda", "auto", "--device=cuda, but no CUDA GPU is to be seen here; set it to cpu (or auto)."),
        ("cuda:0", "auto", "--device=cuda:0, but no CUDA GPU"),
        ("cudda", "auto", "--device=cudda is no device. Did you mean 'cuda'? Choose auto, cpu, cuda or cuda:N."),
        ("cpu", "bfloat61", "--dtype=bfloat61 is not a dtype of weights. Did you mean 'bfloat16'?"),
        ("cpu", "float16", "--dtype=float16 is not a dtype of weights."),
        ("cpu", "int8", "--dtype=int8 is not a dtype of weights."),
    ],
)
def test_errors_are_one_sentence(name: str, dtype: str, message: str, no_gpu: None) -> None:
    with pytest.raises(UserError) as raised:
        loader.resolve_device(name, dtype)
    assert message in str(raised.value)


def test_keys_of_train(no_gpu: None) -> None:
    config = resolve_train(["trainer.total_training_steps=1"]).config
    assert settings.resolve_device(config) == Device()
    assert (config.trainer.device, config.actor_rollout_ref.model.dtype) == ("cpu", "float32")
    assert settings.max_num_seqs(config, Device()) == 64
    for override, text in (
        ("trainer.device=cuda", "trainer.device=cuda, but no CUDA GPU is to be seen here; set it to cpu (or auto)."),
        ("trainer.device=gpu", "trainer.device=gpu is no device."),
        ("actor_rollout_ref.model.dtype=half", "actor_rollout_ref.model.dtype=half is not a dtype of weights."),
    ):
        with pytest.raises(UserError) as raised:
            settings.find_device(resolve_train([override]).config)
        assert text in str(raised.value)


def test_on_a_gpu_a_step_is_larger(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    config = resolve_train(["trainer.total_training_steps=1"]).config
    device = settings.find_device(config)
    assert settings.max_num_seqs(config, device) == 256
    assert "device: cuda (a card), bfloat16" in summarize(config)
    assert any("at most 16384 tokens" in line for line in summarize(config))
    config.actor_rollout_ref.rollout.max_num_seqs = 16
    assert settings.max_num_seqs(config, device) == 16
    config.trainer.n_gpus_per_node = 0
    assert settings.find_device(config) == Device()
    config.trainer.device = "cuda"
    with pytest.raises(UserError, match="trainer.device=cuda and trainer.n_gpus_per_node=0 do not go together"):
        settings.find_device(config)


def test_keys_of_imitation(gpus: None) -> None:
    config = build_supervised.SFTConfig()
    assert build_supervised.resolve_device(config) == Device("cuda", torch.bfloat16)
    assert config.model.device == "cuda"
    config.training.bf16 = False
    assert build_supervised.resolve_device(config) == Device("cuda", torch.float32)
    config.model.device = "cpu"
    assert build_supervised.resolve_device(config) == Device()
    config.model.device = "cuuda"
    with pytest.raises(UserError, match="model.device=cuuda is no device. Did you mean 'cuda'?"):
        build_supervised.resolve_device(config)


def test_a_run_is_not_continued_on_another_device(tmp_path: Path, no_gpu: None) -> None:
    """`auto` is written down as what it was."""
    words = [
        f"trainer.default_local_dir={tmp_path}",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
    ]
    config = resolve_train([*words, "algorithm.adv_estimator=grpo", "trainer.logger=[]"]).config
    run = build.build_run(config)
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    moved = resolve_train([*words, "algorithm.adv_estimator=grpo", "trainer.logger=[]"]).config
    moved.trainer.device, moved.actor_rollout_ref.model.dtype = "cuda", "bfloat16"
    with pytest.raises(UserError, match="holds a run with actor_rollout_ref.model.dtype=float32, not bfloat16"):
        check_continuation(moved, settings.run_folder(moved))


def test_only_a_gpu_changes_what_a_result_is(gpus: None) -> None:
    assert RolloutSettings(environment="math", policy="tiny", device="cpu").device_record() == {}
    assert RolloutSettings(environment="math", policy="tiny").device_record() == {"device": "cuda", "dtype": "bfloat16"}
    assert RolloutSettings(environment="math", policy="expert").device_record() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_have_the_precision_of_their_model(dtype: torch.dtype, tmp_path: Path) -> None:
    loaded = lora.add_adapter(loader.load("tiny", dtype), lora.LoRASettings(4))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    loader.save(loaded, tmp_path / "adapter")
    again = lora.load_adapter(loader.load("tiny", dtype), tmp_path / "adapter")
    assert {parameter.dtype for parameter in again.model.parameters()} == {dtype}


def test_pieces_on_a_cpu_stay_small() -> None:
    assert TrainablePolicy(loader.load("tiny")).limits == MicroBatchLimits()
