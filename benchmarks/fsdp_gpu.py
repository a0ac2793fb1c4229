"""FSDP2 on one GPU: the losses, memory and time of a sharded learner against those of a plain one.

    python benchmarks/fsdp_gpu.py [--updates 10] [--seconds 190] [--out FILE.json] [--tiny]

* `plain`: a model of SmolLM2-135M's shape with random weights, trained on fixed samples; `sharded`: under `fully_shard`
  with one rank over NCCL, so that hooks, gathered layers, master copies and the sharded optimizer are those of several
  ranks; `offloaded`: with weights and moments in host memory. Each in float32 and in bfloat16.
* `two`: two ranks on the same GPU over gloo, which NCCL refuses; half of the samples each.

* `again`: the plain learner once more, alone, for its time: `plain` runs in both precisions at once, because the
  first use of a kernel compiles it, which in float32 takes longest.

Every case is a process of its own, and writes every update at once: one that is cut off has those before. At the end
the sharded weights are gathered and compared with the plain ones. Cases for which `--seconds` leaves no time are named.
`--tiny` runs on a CPU with gloo: it shows that the script works, and its figures mean nothing.
"""

from __future__ import annotations

from gpu_legs import needs

needs.prepare()

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from gpu_legs.common import TINY, Size, make_model
from gpu_legs.memory import make_samples

from practicum.models import loader
from practicum.models.loader import LoadedModel
from practicum.training import ranks
from practicum.training.learner import OptimizerSettings
from practicum.training.objective import Objective
from practicum.training.trainable_policy import ShardingSettings, TrainablePolicy

SAMPLE_TOKENS, LEARNING_RATE = 8192, 1e-4
CASES = {"plain": 1, "sharded": 1, "two": 2, "offloaded": 1, "again": 1}
"""Cases, and their ranks."""
PLAIN = ("plain", "again")
DTYPES = ("bfloat16", "float32")
MIN_SECONDS = 15.0
"""Seconds below which a case is not begun."""


def measure(case: str, dtype: str, updates: int, tiny: bool, weights: Path, tell: Callable[..., None]) -> None:
    """Train on fixed samples; tells losses, gradient norms, seconds per update, peak memory."""
    size = replace(TINY if tiny else Size(), dtype=getattr(torch, dtype))
    torch.manual_seed(0)
    loaded = LoadedModel(make_model(size), loader.load_tokenizer("tiny"), "random")
    sharding = None if case in PLAIN else ShardingSettings(False, param_offload=case == "offloaded")
    policy = TrainablePolicy(loaded, sharding=sharding)
    policy.reset_optimizer(OptimizerSettings(LEARNING_RATE))
    vocabulary = size.shape["vocab_size"]
    samples = [
        replace(sample, sampling_logprobs=np.full(len(sample.ids), -math.log(vocabulary), np.float32))
        for sample in make_samples(256 if tiny else SAMPLE_TOKENS, vocabulary)
    ]
    total = float(sum(sample.mask.sum() for sample in samples))
    objective = Objective(entropy_coeff=0.0, kl_loss_coef=0.0)
    tell(loaded=True)
    rows, seconds = [], []
    for _ in range(updates):
        started = time.perf_counter()
        metrics = policy.update(samples, total, objective, LEARNING_RATE)
        if size.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        rows.append([metrics["actor/loss"], metrics["actor/grad_norm"]])
        rest = sorted(seconds[1:]) or seconds
        tell(losses=rows, first_seconds=seconds[0], seconds=rest[len(rest) // 2])
        if size.device == "cuda":
            tell(peak_gib=torch.cuda.max_memory_allocated() / 2**30)
    policy.gather()
    model = policy.unsharded.model if ranks.own_rank() == 0 else None
    if model is not None:
        flat_weights = torch.cat([parameter.detach().float().cpu().view(-1) for parameter in model.parameters()])
        if case == "plain":
            torch.save(flat_weights, weights)
        else:
            plain = torch.load(weights, weights_only=True)
            tell(weight_difference=float((flat_weights - plain).abs().max()))


def run_rank(args: argparse.Namespace) -> None:
    """One rank of a case; the first one prints what it measures, as it goes."""
    if args.case not in PLAIN:
        gpu = "cpu:gloo,cuda:gloo" if args.case == "two" else "cpu:gloo,cuda:nccl"
        dist.init_process_group("gloo" if args.tiny else gpu)

    def tell(**values: Any) -> None:
        if os.environ["RANK"] == "0":
            print("RESULT " + json.dumps(values), flush=True)

    try:
        measure(args.case, args.dtype, args.updates, args.tiny, args.weights, tell)
        tell(complete=True)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@dataclass
class RunningCase:
    """The processes of a case, and the files that they write to."""

    case: str
    dtype: str
    processes: list[subprocess.Popen[bytes]]
    outputs: list[Path]

    @classmethod
    def start(cls, case: str, dtype: str, args: argparse.Namespace, folder: Path) -> RunningCase:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        command = [sys.executable, __file__, "--case", case, "--dtype", dtype, "--updates", str(args.updates),
                   "--weights", str(folder / f"{dtype}.pt"), *(["--tiny"] if args.tiny else [])]  # fmt: skip
        running = cls(case, dtype, [], [folder / f"{case}-{dtype}-{rank}.log" for rank in range(CASES[case])])
        for rank, path in enumerate(running.outputs):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(CASES[case]), "LOCAL_RANK": "0",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
            with path.open("wb") as file:
                running.processes.append(subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT))
        return running

    def wait(self, seconds: float) -> dict[str, Any]:
        """What was measured until the end, or until this many seconds have passed."""
        end = time.monotonic() + seconds
        while any(process.poll() is None for process in self.processes) and time.monotonic() < end:
            if any(process.poll() for process in self.processes):  # the others would wait for the one that failed
                end = min(end, time.monotonic() + 5.0)
            time.sleep(0.1)
        cut_off = any(process.poll() is None for process in self.processes)
        for process in self.processes:
            process.kill()
            process.wait()
        result: dict[str, Any] = {}
        texts = [path.read_text(errors="replace") for path in self.outputs]
        for line in texts[0].splitlines():
            if line.startswith("RESULT "):
                result |= json.loads(line.removeprefix("RESULT "))
        if "complete" not in result:
            result["failed"] = "cut off" if cut_off else "ended"
            result["output"] = ["\n".join(other_lines(text))[-1500:] for text in texts]
        return result


def other_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("RESULT ")]


def compare(result: dict[str, Any], plain: dict[str, Any]) -> None:
    """Add the largest difference of a loss or a gradient norm from the plain learner's, over the updates of both."""
    pairs = list(zip(result.get("losses", []), plain.get("losses", []), strict=False))
    if pairs:
        result["compared_updates"] = len(pairs)
        result["largest_difference"] = max(abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=190.0, help="for all cases together")
    others = [case for case in CASES if case != "plain"]
    parser.add_argument("--only", nargs="+", choices=others, default=others, help="cases besides `plain`")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        run_rank(args)
        return 0
    results: dict[str, Any] = {"torch": torch.__version__}
    end = time.monotonic() + args.seconds

    def note(case: str, dtype: str, result: dict[str, Any]) -> None:
        results[f"{case}/{dtype}"] = result
        if case != "plain":
            compare(result, results[f"plain/{dtype}"])
        print(case, dtype, json.dumps(result), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for running in [RunningCase.start("plain", dtype, args, folder) for dtype in args.dtypes]:
            note("plain", running.dtype, running.wait(0.6 * (end - time.monotonic())))
        for dtype in args.dtypes:
            for case in args.only:
                if (left := end - time.monotonic()) < MIN_SECONDS:
                    note(case, dtype, {"failed": "not begun: no time left"})
                else:
                    note(case, dtype, RunningCase.start(case, dtype, args, folder).wait(left))
    return 0


if __name__ == "__main__":
    sys.exit(main())
