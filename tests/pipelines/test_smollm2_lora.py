"""A real model through an adapter: one epoch over 200 demonstrations, and the adapter is plain PEFT's."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch

from practicum.cli.main import main
from practicum.models import loader, lora


@pytest.mark.slow
def test_an_epoch_over_200_demonstrations(tmp_path: Path) -> None:
    shown, out = tmp_path / "shown", tmp_path / "out"
    collect = ["collect", "--env", "math", "--env-arg", "levels=[1,2]", "--policy", "expert", "--tasks", "200"]
    assert main([*collect, "--tokenizer", "smollm2", "--template", "chatml", "--out", str(shown)]) == 0
    train = ["sft", "--model", "smollm2", "--episodes", str(shown), "--out", str(out), "--epochs", "1", "--lr", "3e-4",
             "--lora_r", "16", "--lora_alpha", "32", "--warmup", "2", "training.bf16=false",
             "training.gradient_checkpointing=false", "training.eval_steps=6"]  # fmt: skip
    assert main(train) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["actor/loss"] for line in lines if "actor/loss" in line]
    assert len(losses) == -(-180 // 16)
    assert losses[-1] < 0.5 * losses[0]

    adapter = out / "model"
    assert (adapter / "adapter_config.json").is_file()
    assert (adapter / "adapter_model.safetensors").is_file()
    ids = torch.randint(0, 40_000, (2, 50), generator=torch.Generator().manual_seed(0))
    plain = peft.PeftModel.from_pretrained(loader.load("smollm2").model, str(adapter)).eval()
    loaded = lora.load_adapter(loader.load("smollm2"), adapter)
    assert loaded.adapter is not None
    base = loader.load("smollm2").model
    with torch.no_grad():
        expected, result, beneath = plain(ids).logits, loaded.adapter(ids).logits, base(ids).logits
    assert torch.equal(result, expected)
    assert (expected - beneath).abs().max() > 0.1
    trainable, total = lora.parameter_counts(loaded)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; {trainable:,} of {total:,} parameters")
