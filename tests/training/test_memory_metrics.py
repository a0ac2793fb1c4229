"""Memory of every step: of the process, and on a GPU what tensors have, what torch has taken, and the most so far."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from practicum.cli.main import main
from practicum.training.monitor.loggers import memory_metrics

GPU_METRICS = {"memory/gpu_allocated_mb", "memory/gpu_reserved_mb", "memory/gpu_peak_mb"}
SIZES = [
    "recipe=math-tiny", "trainer.total_training_steps=2", "data.train_batch_size=2", "agent.num_chains=2",
    "agent.max_tokens_per_turn=8", "agent.max_turns=2", "trainer.test_freq=-1", "trainer.val_before_train=false",
    "trainer.logger=[]",
]  # fmt: skip


def train(folder: Path, device: str) -> list[dict[str, float]]:
    assert main(["train", *SIZES, f"trainer.device={device}", f"trainer.default_local_dir={folder}"]) == 0
    (timing,) = folder.rglob("timing.jsonl")
    return [json.loads(line) for line in timing.read_text().splitlines()]


def check_gpu(step: dict[str, float]) -> None:
    assert 0 < step["memory/gpu_allocated_mb"] <= step["memory/gpu_peak_mb"] <= 80_000
    assert step["memory/gpu_allocated_mb"] <= step["memory/gpu_reserved_mb"]


def test_on_a_cpu_there_is_the_memory_of_the_process(tmp_path: Path) -> None:
    for step in train(tmp_path, "cpu"):
        assert 50 < step["memory/rss_mb"] < 50_000
        assert torch.cuda.is_available() or not GPU_METRICS & set(step)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_every_step_says_what_is_allocated_and_reserved(tmp_path: Path) -> None:
    for step in train(tmp_path, "cuda"):
        check_gpu(step)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_what_is_allocated_follows_what_tensors_have() -> None:
    before = memory_metrics()
    block = torch.empty(25_000_000, dtype=torch.float32, device="cuda")  # 100 MB
    after = memory_metrics()
    assert 99 <= after["memory/gpu_allocated_mb"] - before["memory/gpu_allocated_mb"] <= 110
    del block
    assert memory_metrics()["memory/gpu_allocated_mb"] < after["memory/gpu_allocated_mb"]
    assert memory_metrics()["memory/gpu_peak_mb"] >= after["memory/gpu_allocated_mb"]
