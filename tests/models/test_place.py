"""Where a model lies: names, what `auto` stands for, and what is said of a device that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from practicum import config as configuration
from practicum import experiment, stages
from practicum.cli import collect, eval
from practicum.cli.options import place_settings
from practicum.errors import UserError
from practicum.models import loader, lora, place
from practicum.models.place import Place
from practicum.training.apprentice import Apprentice
from practicum.training.batch import Cut


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_auto_without_a_gpu(no_gpu: None) -> None:
    assert place.find() == Place("cpu", torch.float32)
    assert place.find().sequences == 64
    assert place.find("cpu", "bf16") == Place("cpu", torch.bfloat16)


def test_auto_with_a_gpu(gpus: None) -> None:
    assert place.find() == Place("cuda", torch.bfloat16)
    assert place.find().sequences == 256
    assert place.find("cuda:1", "float32") == Place("cuda:1", torch.float32)
    assert place.find("cpu") == Place("cpu", torch.float32)
    with pytest.raises(UserError, match="--device=cuda:2, but the GPUs here are cuda:0 to cuda:1; choose one of them."):
        place.find("cuda:2")


@pytest.mark.parametrize(
    ("device", "dtype", "said"),
    [
        ("cuda", "auto", "--device=cuda, but no CUDA GPU is to be seen here; set it to cpu (or auto)."),
        ("cuda:0", "auto", "--device=cuda:0, but no CUDA GPU"),
        ("cudda", "auto", "--device=cudda is no device. Did you mean 'cuda'? Choose auto, cpu, cuda or cuda:N."),
        ("cpu", "bfloat61", "--dtype=bfloat61 is no precision of weights. Did you mean 'bfloat16'?"),
        ("cpu", "float16", "--dtype=float16 is no precision of weights."),
    ],
)
def test_one_sentence(device: str, dtype: str, said: str, no_gpu: None) -> None:
    with pytest.raises(UserError) as raised:
        place.find(device, dtype)
    assert said in str(raised.value)


def test_keys_of_train(no_gpu: None) -> None:
    config = configuration.resolve(["trainer.total_training_steps=1"])
    assert experiment.settle_place(config) == Place()
    assert (config.trainer.device, config.actor_rollout_ref.model.dtype) == ("cpu", "float32")
    assert experiment.sequences(config, Place()) == 64
    for override, said in (
        ("trainer.device=cuda", "trainer.device=cuda, but no CUDA GPU is to be seen here; set it to cpu (or auto)."),
        ("trainer.device=gpu", "trainer.device=gpu is no device."),
        ("actor_rollout_ref.model.dtype=half", "actor_rollout_ref.model.dtype=half is no precision of weights."),
    ):
        with pytest.raises(UserError) as raised:
            experiment.find_place(configuration.resolve([override]))
        assert said in str(raised.value)


def test_on_a_gpu_a_step_is_larger(gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    config = configuration.resolve(["trainer.total_training_steps=1"])
    where = experiment.find_place(config)
    assert experiment.sequences(config, where) == 256
    assert "device: cuda (a card), bfloat16" in experiment.derived(config)
    assert any("pieces of at most 16384 tokens" in line for line in experiment.derived(config))
    config.actor_rollout_ref.rollout.max_num_seqs = 16
    assert experiment.sequences(config, where) == 16
    config.trainer.n_gpus_per_node = 0
    assert experiment.find_place(config) == Place()
    config.trainer.device = "cuda"
    with pytest.raises(UserError, match="trainer.device=cuda and trainer.n_gpus_per_node=0 do not go together"):
        experiment.find_place(config)


def test_keys_of_imitation(gpus: None) -> None:
    config = stages.SFTConfig()
    assert stages.settle_place(config) == Place("cuda", torch.bfloat16)
    assert config.model.device == "cuda"
    config.training.bf16 = False
    assert stages.settle_place(config) == Place("cuda", torch.float32)
    config.model.device = "cpu"
    assert stages.settle_place(config) == Place()
    config.model.device = "cuuda"
    with pytest.raises(UserError, match="model.device=cuuda is no device. Did you mean 'cuda'?"):
        stages.settle_place(config)


def test_a_run_does_not_go_on_elsewhere(tmp_path: Path, no_gpu: None) -> None:
    """`auto` is written down as what it was."""
    words = [
        f"trainer.default_local_dir={tmp_path}",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
    ]
    config = configuration.resolve([*words, "algorithm.adv_estimator=grpo", "trainer.logger=[]"])
    run = experiment.build_run(config)
    (run.folder / "metrics.jsonl").write_text('{"step": 1}\n')
    elsewhere = configuration.resolve([*words, "algorithm.adv_estimator=grpo", "trainer.logger=[]"])
    elsewhere.trainer.device, elsewhere.actor_rollout_ref.model.dtype = "cuda", "bfloat16"
    with pytest.raises(UserError, match="holds a run with actor_rollout_ref.model.dtype=float32, not bfloat16"):
        experiment.check_continuation(elsewhere, experiment.run_folder(elsewhere))


def test_only_a_gpu_changes_what_a_result_is(gpus: None) -> None:
    flags = ["--env", "math", "--policy", "tiny"]
    for parser in (collect.make_parser(), eval.make_parser()):
        assert place_settings(parser.parse_args([*flags, "--device", "cpu"])) == {}
        assert place_settings(parser.parse_args(flags)) == {"device": "cuda", "dtype": "bfloat16"}
        assert place_settings(parser.parse_args(["--env", "math", "--policy", "expert"])) == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_have_the_precision_of_their_model(dtype: torch.dtype, tmp_path: Path) -> None:
    loaded = lora.add_adapter(loader.load("tiny", dtype), lora.LoRASettings(4))
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    loader.save(loaded, tmp_path / "adapter")
    again = lora.load_adapter(loader.load("tiny", dtype), tmp_path / "adapter")
    assert {parameter.dtype for parameter in again.model.parameters()} == {dtype}


def test_pieces_on_a_cpu_stay_small() -> None:
    assert Apprentice(loader.load("tiny")).cut == Cut()
