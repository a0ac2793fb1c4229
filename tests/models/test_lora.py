"""Adapters: PEFT's own files, PEFT's own numbers, and weights that stay frozen beneath."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from practicum.cli.main import main
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.training.learner import OptimizerSettings
from practicum.training.objective import CROSS_ENTROPY
from practicum.training.trainable_policy import TrainablePolicy

from ..training.test_learner import make_samples

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainablePolicy, Path]:
    """An adapter after a few updates, and its folder."""
    policy = TrainablePolicy(lora.add_adapter(loader.load("tiny"), lora.LoRASettings(8, 16.0)))
    policy.reset_optimizer(OptimizerSettings())
    for _ in range(4):
        policy.update(make_samples(6, 1), 7.0, CROSS_ENTROPY, 1e-2)
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    policy.save(folder)
    return policy, folder


def test_training_changes_the_adapter_and_not_the_base_weights(trained: tuple[TrainablePolicy, Path]) -> None:
    policy, _ = trained
    fresh = loader.load("tiny").model.state_dict()
    for name, value in policy.loaded.model.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(value, fresh[name.replace(".base_layer", "")]), name
    moved = [v for n, v in policy.loaded.model.state_dict().items() if "lora_B" in n]
    assert all(value.abs().max() > 0 for value in moved)


def test_plain_peft_loads_it_and_gives_the_same_logits(trained: tuple[TrainablePolicy, Path]) -> None:
    policy, folder = trained
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in folder.iterdir()}
    base = AutoModelForCausalLM.from_pretrained(loader.model_folder("tiny"), dtype=torch.float32)
    plain = peft.PeftModel.from_pretrained(base, str(folder)).eval()
    ids = torch.tensor([[5, 9, 20, 7, 33, 8]])
    with torch.no_grad():
        expected = plain(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    actual = torch.tensor(policy.score([5], [9, 20, 7, 33, 8]))
    assert torch.allclose(actual, expected, atol=1e-5)


def test_true_counts() -> None:
    """r·(inputs + outputs) for each projection: Qwen3-4B's shapes at r = 64 give 132.1 M, not 40 M."""
    shapes = {"q": (2560, 4096), "k": (2560, 1024), "v": (2560, 1024), "o": (4096, 2560),
              "gate": (2560, 9728), "up": (2560, 9728), "down": (9728, 2560)}  # fmt: skip
    assert 36 * sum(64 * (a + b) for a, b in shapes.values()) == 132_120_576
    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1)  # fmt: skip
    loaded = loader.LoadedModel(LlamaForCausalLM(config), None, "x")  # type: ignore[arg-type]
    loaded = lora.add_adapter(loaded, lora.LoRASettings(4, targets=PROJECTIONS))
    trainable, total = lora.parameter_counts(loaded)
    each = 4 * ((16 + 16) + 2 * (16 + 8) + (16 + 16) + 2 * (16 + 24) + (24 + 16))
    assert trainable == 2 * each
    assert total == trainable + sum(p.numel() for n, p in loaded.model.named_parameters() if "lora_" not in n)


def test_the_same_seed_gives_the_same_adapter_and_keeps_the_global_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = lora.add_adapter(loader.load("tiny"), lora.LoRASettings(4), seed=3)
    assert torch.equal(torch.rand(3), expected)
    second = lora.add_adapter(loader.load("tiny"), lora.LoRASettings(4), seed=3)
    actual, other = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(actual[name], other[name]) for name in actual)


@pytest.mark.parametrize("settings", [lora.LoRASettings(4, dora=True), lora.LoRASettings(4, rslora=True)])
def test_dora_and_rslora_pass_through(settings: lora.LoRASettings, tmp_path: Path) -> None:
    policy = TrainablePolicy(lora.add_adapter(loader.load("tiny"), settings))
    policy.reset_optimizer(OptimizerSettings())
    policy.update(make_samples(4, 2), 7.0, CROSS_ENTROPY, 1e-2)
    policy.save(tmp_path / "adapter")
    again = TrainablePolicy(lora.load_adapter(loader.load("tiny"), tmp_path / "adapter"))
    assert again.score([5], [9, 20, 7]) == pytest.approx(policy.score([5], [9, 20, 7]), abs=1e-5)


def test_merged_weights_give_the_same_logprobs(trained: tuple[TrainablePolicy, Path], tmp_path: Path) -> None:
    policy, folder = trained
    assert main(["merge", "--model", "tiny", "--adapter", str(folder), "--out", str(tmp_path / "full")]) == 0
    merged = TrainablePolicy(loader.load(str(tmp_path / "full")))
    assert merged.score([5], [9, 20, 7]) == pytest.approx(policy.score([5], [9, 20, 7]), abs=1e-4)
    assert main(["merge", "--model", "tiny", "--adapter", str(folder), "--out", str(tmp_path / "full")]) == 2


def test_what_is_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not an adapter"):
        lora.load_adapter(loader.load("tiny"), tmp_path)
    with pytest.raises(UserError, match="rank must be at least 1"):
        lora.LoRASettings(0)
    with pytest.raises(UserError, match="LoRA targets"):
        lora.add_adapter(loader.load("tiny"), lora.LoRASettings(4, targets=("nothing",)))


def test_a_damaged_adapter_gives_a_one_sentence_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "adapter"
    loader.save(lora.add_adapter(loader.load("tiny"), lora.LoRASettings(4)), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))
    with pytest.raises(UserError, match=r"does not fit this model: its weights have other shapes .*\.$"):
        lora.load_adapter(loader.load("tiny"), folder)
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["merge", "--model", "tiny", "--adapter", str(folder), "--out", str(tmp_path / "merged")]) == 2
    assert f"The weights of adapter '{folder}' are damaged" in capsys.readouterr().err
