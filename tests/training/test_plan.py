"""`practicum plan`: its estimates against what was measured, and what it prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.models import loader
from practicum.models.decoder import Shape, peak_flops, update_flops
from practicum.training.plan import HARDWARE, MODEL_SIZES, StepWorkload, estimate, known_size
from practicum.training.plan_points import POINTS, MeasuredPoint, estimate_point

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.model}-{point.hardware}-{point.name}")
def test_estimates_are_near_what_was_measured(point: MeasuredPoint) -> None:
    result = estimate_point(point)
    assert result.time_error is not None
    assert abs(result.time_error) < 0.4
    assert result.memory_error is None or abs(result.memory_error) < 0.25


def test_the_points_are_the_recorded_results() -> None:
    points = {(point.model, point.name): point for point in POINTS}
    legs = json.loads((RESULTS / "gpu.json").read_text())["legs"]
    step = next(row for row in legs["step"] if row["side"] == "practicum")
    grpo = points["smollm2", "GRPO step, 32 × 8 × 128"]
    assert grpo.seconds == pytest.approx(step["seconds"], rel=1e-3)
    assert grpo.peak_bytes == pytest.approx(step["peak GiB"] * 2**30, rel=1e-3)
    for row, model in zip(legs["memory"], ("qwen2.5-3b", "qwen2.5-7b"), strict=True):
        point = points[model, "update, LoRA, 16,384 tokens"]
        assert point.seconds == pytest.approx(row["tokens"] / row["tokens/s"], rel=1e-3)
        assert point.peak_bytes == pytest.approx(row["measured peak GiB"] * 2**30, rel=1e-3)
    for row in legs["engine, 2026-11-19"]:
        if not row["mixed"]:
            chains = f", {row['chains']} per prompt" * (row["chains"] > 1)
            point = points["smollm2", f"engine, {row['batch']:,} × 200 × 128{chains}"]
            assert point.seconds == pytest.approx(row["seconds"], rel=1e-3)
    for row in json.loads((RESULTS / "gpu_session.json").read_text())["cases"]["table"]["figures"]:
        rows, prompt, reply = row["cell"]
        point = points[row["shape"].lower(), f"engine, {rows:,} × {prompt:,} × {reply}"]
        assert point.seconds == pytest.approx(sum(run["seconds"] for run in row["runs"]) / 2, rel=1e-3)
        if rows == 64:
            point = points[row["shape"].lower(), "decode step, 64 rows"]
            assert point.seconds == pytest.approx(sum(run["decode"] for run in row["runs"]) / 2 / 127, rel=2e-3)
    cpu = json.loads((RESULTS / "rl_step_cpu.json").read_text())["results"]
    for row in cpu:
        model, _, prompts = row["case"].partition(", ")
        point = points[model, f"GRPO step, {prompts}"]
        assert point.seconds == pytest.approx(row["seconds"]["practicum"], rel=1e-3)
        assert point.peak_bytes == pytest.approx(row["peak over imports MiB"]["practicum"] * 2**20, rel=1e-3)


def test_the_size_of_a_model() -> None:
    loaded = loader.load_tiny(0)
    size = Shape.of_config(loaded.model.config.to_dict())
    assert replace(size, context=0) == MODEL_SIZES["tiny"]  # the table has no lengths
    assert size.weights == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert known_size("Qwen/Qwen2.5-32B-Instruct") == MODEL_SIZES["qwen2.5-32b"]
    assert known_size("HuggingFaceTB/SmolLM2-1.7B") == MODEL_SIZES["smollm2-1.7b"]
    assert known_size("somebody/else") is None


def test_flops_of_an_update() -> None:
    size = MODEL_SIZES["tiny"]
    assert update_flops(size, 10, 0) == 60 * size.layers * size.layer_weights
    assert update_flops(size, 0, 3) == 18 * size.head_weights
    assert update_flops(size, 10, 3, adapter_weights=100) < update_flops(size, 10, 3)
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("Intel") is None


def test_more_ranks_take_less_time_and_no_less_memory() -> None:
    size, hardware = MODEL_SIZES["qwen2.5-32b"], HARDWARE["h200"]
    work = StepWorkload(512, 8, 512, 512, lora_rank=16, checkpointing=True, max_num_seqs=16)
    single, many = estimate(size, hardware, work), estimate(size, hardware, work, 512, 64)
    assert many.seconds["update"] < single.seconds["update"] / 400
    assert many.memory["weights"] == single.memory["weights"]
    assert many.sharded_memory["weights"] == single.memory["weights"] / 512
    assert many.seconds["sum of gradients"] > 0


def test_keys_and_values_have_the_memory_of_the_requests_that_run() -> None:
    """Pages, as the engine has on a GPU: a prompt's are shared, and no more than its bound is used."""
    size, hardware = MODEL_SIZES["qwen2.5-7b"], HARDWARE["h200"]
    work = StepWorkload(8, 8, 640, 384)
    per_token = 4 * size.layers * size.kv_width
    assert estimate(size, hardware, work).memory["KV cache"] == per_token * (8 * 640 + 64 * 384)
    assert estimate(size, hardware, replace(work, max_num_seqs=16)).memory["KV cache"] == per_token * (
        2 * 640 + 16 * 384 + 6 * 640  # the prompts that do not run are kept
    )
    large = replace(work, groups=1024, max_num_seqs=8192)
    bounded = estimate(size, hardware, replace(large, kv_bytes=2.0**30))
    assert bounded.memory["KV cache"] == 2.0**30
    assert bounded.seconds["rollout"] > 2 * estimate(size, hardware, large).seconds["rollout"]


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "recipe=rubric-reinforce", "trainer.nnodes=64", "trainer.n_gpus_per_node=8"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "64 × 8 H200 (assumed; change with --hardware)" in " ".join(text.split())
    assert "does not fit" in text
    assert "enable_gradient_checkpointing=true" in text  # one episode of 12,800 tokens
    assert main([*command, "actor_rollout_ref.model.enable_gradient_checkpointing=true"]) == 0
    assert "does not fit" not in capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert main([*command, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ranks"] == 512
    assert values["total_bytes"] == pytest.approx(sum(values["memory"].values()))
    assert main([*command, "--hardware", "h100"]) == 0
    text = capsys.readouterr().out
    assert "assumed" not in text
    assert "rollout workers" not in text
    assert main(["plan", "trainer.device=cpu", "actor_rollout_ref.rollout.num_workers=2"]) == 0
    text = capsys.readouterr().out
    assert "CPU (assumed; change with --hardware)" in text
    assert "Nor are rollout workers" in text
    assert main(["plan", "--points"]) == 0
    assert "qwen2.5-7b, h200" in capsys.readouterr().out
    assert main(["plan", "actor_rollout_ref.model.path=somebody/else"]) == 2
    assert "is not known here" in capsys.readouterr().err
    assert main(["plan", "--hardware", "h20"]) == 2
    assert "Did you mean 'h200'" in capsys.readouterr().err
