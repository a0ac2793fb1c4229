"""FSDP2 on one GPU: the losses, memory and time of a sharded learner against those of a plain one.

    python benchmarks/fsdp_gpu.py [--updates 10] [--out FILE.json] [--tiny]

* `plain`: a model of SmolLM2-135M's shape with random weights, trained on fixed samples; `sharded`: under `fully_shard`
  with one rank over NCCL, so that hooks, gathered layers, master copies and the sharded optimizer are those of several
  ranks; `offloaded`: with weights and moments in host memory. Each in float32 and in bfloat16.
* `two`: two ranks on the same GPU over gloo, which NCCL refuses; half of the samples each.

Every case is a process of its own. At the end the sharded weights are gathered and compared with the plain ones.
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
from dataclasses import replace
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

SAMPLE_TOKENS, LEARNING_RATE = 16384, 1e-4
CASES = {"plain": 1, "sharded": 1, "offloaded": 1, "two": 2}
"""Cases, and their ranks."""
DTYPES = ("float32", "bfloat16")
TIMEOUT_SECONDS = 180.0


def measure(case: str, dtype: str, updates: int, tiny: bool, weights: Path) -> dict[str, Any]:
    """Train on fixed samples; losses, gradient norms, seconds per update, peak memory."""
    size = replace(TINY if tiny else Size(), dtype=getattr(torch, dtype))
    torch.manual_seed(0)
    loaded = LoadedModel(make_model(size), loader.load_tokenizer("tiny"), "random")
    sharding = None if case == "plain" else ShardingSettings(False, param_offload=case == "offloaded")
    policy = TrainablePolicy(loaded, sharding=sharding)
    policy.reset_optimizer(OptimizerSettings(LEARNING_RATE))
    vocabulary = size.shape["vocab_size"]
    samples = [
        replace(sample, sampling_logprobs=np.full(len(sample.ids), -math.log(vocabulary), np.float32))
        for sample in make_samples(256 if tiny else SAMPLE_TOKENS, vocabulary)
    ]
    total = float(sum(sample.mask.sum() for sample in samples))
    objective = Objective(entropy_coeff=0.0, kl_loss_coef=0.0)
    rows, seconds = [], []
    for _ in range(updates):
        started = time.perf_counter()
        metrics = policy.update(samples, total, objective, LEARNING_RATE)
        if size.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        rows.append([metrics["actor/loss"], metrics["actor/grad_norm"]])
    policy.gather()
    model = policy.unsharded.model if ranks.own_rank() == 0 else None
    result: dict[str, Any] = {"losses": rows, "seconds": sorted(seconds)[len(seconds) // 2]}
    if size.device == "cuda":
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    if model is not None:
        flat_weights = torch.cat([parameter.detach().float().cpu().view(-1) for parameter in model.parameters()])
        if case == "plain":
            torch.save(flat_weights, weights)
        else:
            plain = torch.load(weights, weights_only=True)
            result["weight_difference"] = float((flat_weights - plain).abs().max())
    return result


def run_rank(args: argparse.Namespace) -> None:
    """One rank of a case; the first one prints the result."""
    if args.case != "plain":
        gpu = "cpu:gloo,cuda:gloo" if args.case == "two" else "cpu:gloo,cuda:nccl"
        dist.init_process_group("gloo" if args.tiny else gpu)
    try:
        result = measure(args.case, args.dtype, args.updates, args.tiny, args.weights)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        print("RESULT " + json.dumps(result), flush=True)


def run_case(case: str, dtype: str, args: argparse.Namespace, weights: Path) -> dict[str, Any]:
    """Run the processes of a case; its result, or why there is none."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, __file__, "--case", case, "--dtype", dtype, "--updates", str(args.updates),
               "--weights", str(weights), *(["--tiny"] if args.tiny else [])]  # fmt: skip
    processes = []
    for rank in range(CASES[case]):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(CASES[case]), "LOCAL_RANK": "0",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
    except subprocess.TimeoutExpired:
        outputs = [f"no result in {TIMEOUT_SECONDS:.0f} s"]
    finally:
        for process in processes:
            process.kill()
    for line in outputs[0].splitlines():
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    return {"failed": "\n".join(text[-1500:] for text in outputs)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="+", choices=sorted(CASES), default=list(CASES), help="cases besides `plain`")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        run_rank(args)
        return 0
    results: dict[str, Any] = {"torch": torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            for case in (name for name in CASES if name == "plain" or name in args.only):
                result = results[f"{case}/{dtype}"] = run_case(case, dtype, args, Path(folder) / f"{dtype}.pt")
                plain = results[f"plain/{dtype}"]
                if case != "plain" and "losses" in result and "losses" in plain:
                    pairs = zip(result["losses"], plain["losses"], strict=True)
                    differences = [max(abs(a - b) for a, b in zip(x, y, strict=True)) for x, y in pairs]
                    result["largest_difference"] = max(differences)
                print(case, dtype, json.dumps(result), flush=True)
                if args.out is not None:
                    args.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
