"""What Ray costs and what it brings: steps with a rollout worker against none, and two workers against one.

    python benchmarks/ray_scaling.py [--rounds 3] [--steps 5] [--only overhead scaling] [--out FILE.json]
    python benchmarks/ray_scaling.py --only shared_gpu [--out FILE.json]

* `overhead`: GRPO steps on a model of SmolLM2-135M's shape with random weights (8 tasks, 8 chains, 32 tokens, one turn,
  float32, CPU). One rollout worker has the cores to itself while it generates, as the one process has; what is left is
  the way of the weights (540 MB per step, with checksums and canary), of the episodes, and Ray.
* `scaling`: episodes of `tiny` in an environment that computes in Python (0.2 s of processor time each), with one
  worker and with two; the time of the rollouts. Busy cores make it smaller.
* `shared_gpu`, only where it is named: 512 episodes of three turns on a GPU (SmolLM2-135M's shape, random weights, 16
  tokens per turn), by one process and by four workers that share its GPU; the time of the rollouts.

A round is a run with either number of workers, in turn the one and the other first. The first step of a run, which
starts workers and engines, is not counted; of the others the median is. The time of the rollouts alone is kept too:
the way of the weights is part of it, and the learner's update is the same on both sides. The result is the median of
the rounds' ratios, so that a machine that is slower for a while does not count for one side only. Processor time per
step is that of all processes of a run, Ray's own too. With `--out FILE` that exists, its rounds are kept and more are
added.
"""

from __future__ import annotations

import argparse
import contextlib
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

from benchmarks.gpu_legs import needs

needs.prepare()

import psutil
from tests.training.cluster.lowercase_replies import LowercaseReplies

from practicum.environment import Action, Message, Observation, Step

CPU_SECONDS = 0.2
OVERHEAD_LIMIT, SCALING_LIMIT = 0.10, 1.7


class CPUBoundReplies(LowercaseReplies):
    """Computes in Python for a while before it pays for a reply."""

    def _reward(self) -> Step:
        end, value = time.thread_time() + CPU_SECONDS, 1
        while time.thread_time() < end:
            value = value * 6364136223846793005 % 2**64
        return super()._reward()


class ThreeTurns(LowercaseReplies):
    """Answers two replies with a sentence, and pays for the third."""

    async def step(self, action: Action) -> Step:
        turns = len(self.trajectory_so_far().turns)
        if turns == 3:
            return self._reward()
        return Step(observation=Observation((Message("user", f"{turns} of 3 replies were read; go on."),)))


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


def shared_gpu(folder: Path, name: str, steps: int, num_workers: int) -> list[str]:
    share = ["actor_rollout_ref.rollout.gpus_per_worker=0.25"] if num_workers else []
    return command(
        folder, name, steps, f"actor_rollout_ref.model.path={folder / 'model'}", "trainer.device=cuda",
        f"agent.environment={HERE}:ThreeTurns", "agent.max_turns=3", "data.train_batch_size=64", "agent.num_chains=8",
        "actor_rollout_ref.rollout.response_length=16", "agent.concurrency=512",
        f"actor_rollout_ref.rollout.num_workers={num_workers}", *share,
    )  # fmt: skip


CASES: dict[str, tuple[Any, tuple[int, int], str]] = {
    "overhead": (overhead, (0, 1), "timing/step"),
    "scaling": (scaling, (1, 2), "timing/rollout"),
    "shared_gpu": (shared_gpu, (0, 4), "timing/rollout"),
}
"""By case: the command, the two numbers of workers, and the time that is compared."""


def processor_seconds(root: psutil.Process, seconds: dict[int, float]) -> float:
    """Processor time of a process and all below it so far; `seconds` has those that have ended too."""
    with contextlib.suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
    return sum(seconds.values())


def run(case: str, folder: Path, number: int, steps: int, num_workers: int) -> dict[str, Any]:
    """Train once; the seconds of all steps but the first, and processor seconds per step."""
    make, _, metric = CASES[case]
    name = f"{case}-{num_workers}-{number}"
    env = {
        **os.environ, "RAY_ADDRESS": "local",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }  # fmt: skip
    timing = folder / "practicum" / name / "timing.jsonl"
    seconds: dict[int, float] = {}
    marks: list[float] = []
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(make(folder, name, steps, num_workers), env=env, cwd=folder, stdout=log, stderr=log)
        root = psutil.Process(started.pid)
        while started.poll() is None:
            now = processor_seconds(root, seconds)
            done = len(timing.read_text().splitlines()) if timing.is_file() else 0
            marks += [now] * (done - len(marks))
            time.sleep(0.1)
    if started.returncode:
        raise SystemExit(f"{name} failed:\n{(folder / f'{name}.log').read_text()[-3000:]}")
    lines = [json.loads(line) for line in timing.read_text().splitlines()[1:]]
    return {
        "seconds": [round(line[metric], 4) for line in lines],
        "rollout_seconds": [round(line["timing/rollout"], 4) for line in lines],
        "processor_seconds": round((marks[-1] - marks[0]) / (len(marks) - 1), 4) if len(marks) > 1 else None,
    }


def summarise(case: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over the rounds of seconds and of the ratio."""
    first, second = map(str, CASES[case][1])
    medians = [
        {number: statistics.median(timings[number]["seconds"]) for number in (first, second)} for timings in rounds
    ]
    ratios = [
        timings[second] / timings[first] if case == "overhead" else timings[first] / timings[second]
        for timings in medians
    ]
    used = [timings[second]["processor_seconds"] / timings[first]["processor_seconds"] for timings in rounds
            if timings[first]["processor_seconds"] and timings[second]["processor_seconds"]]  # fmt: skip
    ratio = statistics.median(ratios)
    result = {
        "median_seconds": {
            number: statistics.median(timings[number] for timings in medians) for number in (first, second)
        },
        "ratios": [round(value, 4) for value in ratios],
        "processor_ratios": [round(value, 4) for value in used],
    }
    if case == "overhead":
        return {**result, "overhead": ratio - 1, "within_limit": ratio - 1 <= OVERHEAD_LIMIT}
    return {**result, "speedup": ratio, "within_limit": ratio >= SCALING_LIMIT}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=["overhead", "scaling"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    before = args.out is not None and args.out.is_file()
    results: dict[str, Any] = json.loads(args.out.read_text()) if before else {"cores": os.cpu_count()}
    with tempfile.TemporaryDirectory(prefix="ray-scaling-") as name:
        folder = Path(name)
        if {"overhead", "shared_gpu"} & set(args.only):
            write_model(folder / "model")
        for case in args.only:
            rounds = results.get(case, {}).get("rounds", [])
            for number in range(len(rounds), len(rounds) + args.rounds):
                numbers = CASES[case][1]
                timings: dict[str, Any] = {"load": os.getloadavg()[0]}
                for num_workers in numbers if number % 2 == 0 else reversed(numbers):
                    timings[str(num_workers)] = run(case, folder, number, args.steps, num_workers)
                rounds = [*rounds, timings]
                results[case] = {**summarise(case, rounds), "rounds": rounds}
                if args.out is not None:
                    args.out.write_text(json.dumps(results, indent=1) + "\n")
            print(json.dumps({case: results[case]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
