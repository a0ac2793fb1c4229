"""One GPU: engine, learner, whole GRPO step against TRL, agents with tools, memory, a real training.

    python benchmarks/gpu.py [--only engine,context,learner,step,agent,memory,profile,train] [--out FILE.json]
    python benchmarks/gpu.py --needs     what a machine without a package registry needs beside the checkout
    python benchmarks/gpu.py --tiny      every leg on CPU with a tiny model: it works, but its figures mean nothing

A model of SmolLM2-135M's shape, bf16, prompts of 200 tokens, 128 new ones, with log-probs; engine, context, learner and
memory use random weights (their values do not change the time), step and agent SmolLM2's own where they are available.
Medians over repeats after a warm-up. `profile` measures which kernels and functions take the time, `train` is
`benchmarks/gpu_training.py` with its defaults; these two are not among the default legs.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_legs import needs

needs.prepare()

LEGS = ("engine", "context", "learner", "step", "agent", "memory", "profile", "train")
DEFAULT = LEGS[:-2]
STACK_DUMP_SECONDS = 240
"""Seconds after which a leg prints the stacks of its threads: one that hangs on a GPU is hard to inspect."""


def leg_function(name: str) -> Callable[[Any], list[dict[str, Any]]]:
    """Import a leg when it is needed: the others may need packages that are not installed."""
    if name == "train":
        from gpu_training import leg
    elif name == "context":
        from gpu_legs.engine import context_leg as leg
    else:
        import importlib

        leg = importlib.import_module(f"gpu_legs.{name}").leg
    function: Callable[[Any], list[dict[str, Any]]] = leg
    return function


def versions(device: str) -> dict[str, str]:
    import torch
    import transformers

    card = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or "cpu"
    result = {"device": card, "torch": torch.__version__, "transformers": transformers.__version__,
             "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    try:
        import trl
    except ImportError:
        return result
    return result | {"trl": trl.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(DEFAULT), help=f"some of {','.join(LEGS)}")
    parser.add_argument("--batches", help="of the engine leg (default 64,256,1024)")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--split-k", action="store_true", help="let cuBLAS split sums, as it would: what not to costs")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--needs", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.needs:
        print(needs.show())
        return
    chosen = args.only.split(",")
    for name in chosen:
        if name not in LEGS:
            raise SystemExit(f"There is no leg '{name}'; choose among {', '.join(LEGS)}.")
    import torch
    import transformers
    from gpu_legs.common import TINY, Size

    transformers.utils.logging.set_verbosity_error()
    if not args.tiny and not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU (--tiny shows on CPU that it works).")
    size = TINY if args.tiny else Size()
    if args.batches:
        size = replace(size, batches=tuple(map(int, args.batches.split(","))))
    if args.repeats:
        size = replace(size, repeats=args.repeats)
    if args.split_k:
        from practicum.models import loader

        loader.set_batch_invariant_matmul = lambda wanted=True: None
    results: dict[str, list[dict[str, Any]]] = {}
    failed: list[str] = []
    for name in chosen:
        print(f"-- {name}", flush=True)
        started = time.perf_counter()
        faulthandler.dump_traceback_later(STACK_DUMP_SECONDS, repeat=True)
        try:
            results[name] = leg_function(name)(size)
        except (Exception, SystemExit) as error:  # the other legs still run: time on a GPU is scarce
            failed.append(name)
            traceback.print_exc()
            print(f"{name} FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if args.tiny:
                raise
        faulthandler.cancel_dump_traceback_later()
        print(f"   ({time.perf_counter() - started:.0f} s)", flush=True)
        if args.out:  # after every leg: a run that is cut off has its figures
            record = {"versions": versions(size.device), "tiny": args.tiny, "failed": failed, "legs": results}
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
    print("; ".join(f"{key} {value}" for key, value in versions(size.device).items()))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
