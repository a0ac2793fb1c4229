"""What the GPU benchmarks do around their measurements: it must hold where time on a card is short."""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
TRAINING = """
import gpu_training
late = gpu_training.run_process(["--tiny", "--only", "math"], 0.05)
wrong = gpu_training.run_process(["--tiny", "--case", "nonsense"], 100)
results["training"] = [late, wrong, gpu_training.read_results(folder / "math")]
packed = gpu_training.pack(folder / "math", folder / "packed")
gpu_training.MAX_PACK_BYTES = 100
parts = gpu_training.pack(folder / "math", folder / "parts")
results["packed"] = [[str(file) for file in files] for files in (packed, parts)]
"""
FAKE_VLLM = """
import os
from types import SimpleNamespace
__version__ = "0"
class SamplingParams(SimpleNamespace):
    pass
class LLM:
    def __init__(self, **arguments):
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
            raise RuntimeError("no such kernel")
    def generate(self, prompts, sampling, use_tqdm):
        reply = SimpleNamespace(token_ids=[1] * sampling.max_tokens, logprobs=[{}] * sampling.max_tokens)
        return [SimpleNamespace(outputs=[reply]) for _ in prompts[:4]]
"""
PROFILE = """
import asyncio, threading, time
from gpu_legs import needs
needs.prepare()
from gpu_legs import profile
over = threading.Event()
threading.Thread(target=over.wait, name="waiting").start()
async def do():
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        pass
host = asyncio.run(profile.on_host(do, 2))["host"]
over.set()
busiest = max(host["MainThread"], key=lambda one: one["ms"])
results["profile"] = [profile.busy_seconds([(0, 2), (1, 3), (5, 6)]), sorted(host), busiest]
"""
AFFINE = """
from types import SimpleNamespace
import affine_gpu, torch
from practicum.pipeline import stages
configs = {name: affine_gpu.config_of(name, folder / "affine", False) for name in affine_gpu.SIZES}
assert all(stages.environments(config) == [name] for name, config in configs.items())
assert len({config.output_dir for config in configs.values()}) == 8
worlds = affine_gpu.SIZES
assert all(stages.demonstrations(configs[name])[name] == world.demonstrations for name, world in worlds.items())
assert all(stages.rl_config(config).algorithm.adv_estimator == "grpo" for config in configs.values())

model = torch.nn.Linear(1, 1, bias=False)
run = SimpleNamespace(state=SimpleNamespace(step=0, best_step=0, best_value=0.2),
                      policy=SimpleNamespace(loaded=SimpleNamespace(model=model)))
best = affine_gpu.BestWeights("val/success/mean", 1)
best.keep(run)
for step, value in enumerate([0.1, 0.6, None, 0.5], 1):
    run.state.step = step
    model.weight.data.fill_(step)
    best.offer(run, step, {} if value is None else {"val/success/mean": value})
best.restore(run)
results["affine"] = [model.weight.item(), best.record()]
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process of its own found: the benchmarks set up their surroundings when they are imported."""
    folder = tmp_path_factory.mktemp("benchmarks")
    practice = folder / "math" / "rl-training"
    practice.mkdir(parents=True)
    (practice / "timing.jsonl").write_text('{"step": 1, "timing/rollout": 2.0}\n{"step": 2, "timing/rollout": 3.0}\n')
    (practice / "metrics.jsonl").write_text('{"step": 1, "success/mean": 0.25}\n{"step": 2, "succ')
    for name in ("model/model.safetensors", "global_step_2/state.json", "start/tokenizer.json", "start/a.safetensors"):
        (practice / name).parent.mkdir(exist_ok=True)
        (practice / name).write_text("{}")
    head = (
        "import json, sys\nfrom pathlib import Path\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\nfolder, results = Path({str(folder)!r}), {{}}\n"
    )
    code = f"{head}{TRAINING}{PROFILE}{AFFINE}\nprint('RESULTS' + json.dumps(results))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout.partition("RESULTS")[2])
    return output


def test_a_training_case_is_ended_when_its_time_is_up_and_what_it_wrote_is_gathered(results: dict[str, Any]) -> None:
    late, wrong, row = results["training"]
    assert late.startswith("ended from outside")
    assert wrong == "exit code 1"
    assert row["finished"] is False
    assert row["rl"]["steps"] == 2
    assert row["rl"]["seconds"]["rollout"] == 5.0
    assert row["rl"]["curves"] == {"success/mean": [[1, 0.25]]}


def test_a_packed_case_has_no_weights_and_no_large_file(results: dict[str, Any]) -> None:
    full, parts = ([Path(name) for name in names] for names in results["packed"])
    (archive,) = full
    with tarfile.open(archive) as opened:
        files = sorted(member.name for member in opened if member.isfile())
    assert files == [f"math/rl-training/{name}" for name in ("metrics.jsonl", "start/tokenizer.json", "timing.jsonl")]
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) == 100
    with tarfile.open(fileobj=io.BytesIO(b"".join(part.read_bytes() for part in parts))) as opened:
        assert sorted(member.name for member in opened if member.isfile()) == files


def test_profile_counts_overlapping_kernels_once_and_sees_every_thread(results: dict[str, Any]) -> None:
    busy, threads, busiest = results["profile"]
    assert busy == 4
    assert {"MainThread", "waiting"} <= set(threads)
    assert busiest["function"].startswith("do ")


def test_each_affine_environment_has_a_pipeline_of_its_own_and_the_best_weights_come_back(
    results: dict[str, Any],
) -> None:
    weight, record = results["affine"]
    assert weight == 2.0
    assert record["best_step"] == 2
    assert record["validations"] == [[0, 0.2], [1, 0.1], [2, 0.6], [4, 0.5]]


def test_vllm_is_started_again_with_less_and_runs_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a package of vLLM's name whose engine starts in the second attempt only."""
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    gpu_vllm, common, clock = map(importlib.import_module, ("gpu_vllm", "gpu_legs.common", "gpu_legs.clock"))
    monkeypatch.setattr(gpu_vllm, "TINY_CELLS", ((4, 20, 8), (6, 20, 8)))
    monkeypatch.setitem(gpu_vllm.KV_GIB, "small", 1)
    peer = gpu_vllm.VLLMPeer(sys.executable, "small", common.SMALL, tmp_path)
    try:
        gpu_vllm.wait_for_peers({"small": peer}, clock.Clock(1), 60)
        assert peer.info["settings"] == gpu_vllm.ATTEMPTS[1][0]
        shape = common.SMALL | {"model_type": "qwen2"}
        gpu_vllm.measure_shape("small", shape, peer, common.TINY, tmp_path, clock.Clock(1))
    finally:
        peer.stop()
    complete, truncated = json.loads((tmp_path / "small.json").read_text())["cells"]
    assert complete["cell"] == [4, 20, 8]
    assert len(complete["seconds"]["vLLM"]) == 3 == len(complete["seconds"]["ours"])
    assert complete["against vLLM"] == pytest.approx(complete["ours, tokens/s"] / complete["vLLM, tokens/s"])
    assert "instead of 48 tokens" in truncated["error"]  # of its six requests the engine answered four
    assert "no such kernel" in (tmp_path / "small.txt").read_text()
