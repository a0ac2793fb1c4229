"""What Ray costs and what it brings: steps with a rollout worker against none, and two workers against one.

    python benchmarks/ray_scaling.py [--repeats 2] [--steps 5] [--only overhead scaling] [--out FILE.json]

* `overhead`: GRPO steps on a model of SmolLM2-135M's shape with random weights (8 tasks, 8 chains, 32 tokens, one turn,
  float32, CPU). One rollout worker has the cores to itself while it generates, as the one process has; what is left is
  the way of the weights (540 MB per step, with checksums and canary), of the episodes, and Ray.
* `scaling`: episodes of `tiny` in an environment that computes in Python (0.2 s of processor time each), with one
  worker and with two; the time of the rollouts. With fewer than four idle cores it says nothing.

Runs alternate; the first step of each run, which starts workers and engines, is not counted. Medians over the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).absolute()
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.training.cluster.lowercase_replies import LowercaseReplies

from practicum.environment import Step

CPU_SECONDS = 0.2
OVERHEAD_LIMIT, SCALING_LIMIT = 0.10, 1.7


class CPUBoundReplies(LowercaseReplies):
    """Computes in Python for a while before it pays for a reply."""

    def _reward(self) -> Step:
        end, value = time.thread_time() + CPU_SECONDS, 1
        while time.thread_time() < end:
            value = value * 6364136223846793005 % 2**64
        return super()._reward()


def write_model(folder: Path) -> None:
    """Write a model of SmolLM2-135M's shape with random weights and the tokenizer of `tiny`."""
    import torch
    from benchmarks.gpu_legs.common import SMOLLM2
    from transformers import LlamaConfig, LlamaForCausalLM

    from practicum.models import loader

    torch.manual_seed(0)
    loader.load_tokenizer("tiny").save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(**SMOLLM2)).save_pretrained(folder)


def command(folder: Path, name: str, steps: int, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "practicum.cli", "train", "algorithm.adv_estimator=grpo",
        "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.device=cpu",
        f"trainer.default_local_dir={folder}", f"trainer.experiment_name={name}",
        f"trainer.total_training_steps={steps}", *more,
    ]  # fmt: skip


def overhead(folder: Path, name: str, steps: int, num_workers: int) -> list[str]:
    return command(
        folder, name, steps, f"actor_rollout_ref.model.path={folder / 'model'}", "data.train_batch_size=8",
        f"agent.environment={ROOT / 'tests' / 'training' / 'cluster' / 'lowercase_replies.py'}:LowercaseReplies",
        "agent.max_turns=1", "agent.num_chains=8", "actor_rollout_ref.rollout.response_length=32",
        "actor_rollout_ref.actor.optim.lr=1e-6", f"actor_rollout_ref.rollout.num_workers={num_workers}",
    )  # fmt: skip


def scaling(folder: Path, name: str, steps: int, num_workers: int) -> list[str]:
    return command(
        folder, name, steps, f"agent.environment={HERE}:CPUBoundReplies", "agent.max_turns=1",
        "data.train_batch_size=8", "agent.num_chains=4", "actor_rollout_ref.rollout.response_length=8",
        f"actor_rollout_ref.rollout.num_workers={num_workers}",
    )  # fmt: skip


CASES: dict[str, tuple[Any, tuple[int, int], str]] = {
    "overhead": (overhead, (0, 1), "timing/step"),
    "scaling": (scaling, (1, 2), "timing/rollout"),
}
"""By case: the command, the two numbers of workers, and the time that is compared."""


def run(case: str, folder: Path, repeat: int, steps: int, num_workers: int) -> list[float]:
    """Train once; returns the times of all steps but the first."""
    make, _, metric = CASES[case]
    name = f"{case}-{num_workers}-{repeat}"
    env = {
        **os.environ, "RAY_ADDRESS": "local",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }  # fmt: skip
    done = subprocess.run(make(folder, name, steps, num_workers), env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    lines = (folder / "practicum" / name / "timing.jsonl").read_text().splitlines()
    return [json.loads(line)[metric] for line in lines[1:]]


def measure(case: str, folder: Path, steps: int, repeats: int) -> dict[str, Any]:
    """Both numbers of workers in turn; their medians, and the ratio."""
    numbers = CASES[case][1]
    times: dict[int, list[float]] = {num_workers: [] for num_workers in numbers}
    for repeat in range(repeats):
        for num_workers in numbers if repeat % 2 == 0 else reversed(numbers):
            times[num_workers] += run(case, folder, repeat, steps, num_workers)
    first, second = (statistics.median(times[num_workers]) for num_workers in numbers)
    result = {"median_seconds": {str(num_workers): statistics.median(times[num_workers]) for num_workers in numbers}}
    seconds = {str(num_workers): [round(one, 4) for one in times[num_workers]] for num_workers in numbers}
    if case == "overhead":
        ratio = second / first - 1
        return {**result, "overhead": ratio, "within_limit": ratio <= OVERHEAD_LIMIT, "seconds": seconds}
    return {**result, "speedup": first / second, "within_limit": first / second >= SCALING_LIMIT, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="ray-scaling-") as name:
        folder = Path(name)
        if "overhead" in args.only:
            write_model(folder / "model")
        for case in args.only:
            results[case] = measure(case, folder, args.steps, args.repeats)
            print(json.dumps({case: results[case]}), flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
