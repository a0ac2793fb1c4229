"""Everything that is to be seen on a GPU about the engine, in one call of at most nine minutes.

    python benchmarks/gpu_session.py --out FOLDER [--minutes 9] [--only smollm2,tests,quantised,decode]

* `smollm2`: `gpu.py --only learner,engine,step`, with TRL where its wheels are.
* `tests`: the tests that need a CUDA GPU.
* `table`: tokens/s of Qwen2.5 shapes (random weights, bf16, prompts all different) at four sizes of a batch, whether
  the same seeds gave the same tokens each time, the difference between engine and learner, and which kernel was chosen
  for which product by which times.
* `memory`: 256 requests of 8,000 tokens on a 4 B shape with a bound of 80 GiB on keys and values; the peak.
* `constrained`, `agent`, `matmul`: `constrained_decoding.py --models tiny,SmolLM2-135M`, `gpu.py --only agent`,
  `gpu_matmul.py`.
* `quantised`, `decode`: `gpu_quantised.py`, `gpu_decode.py`.

Each case is a process with a time limit. FOLDER has its figures (NAME.json, written as they come) and its output
(NAME.txt), and session.json has all of them and how each case ended: a call that is cut off loses nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_legs import needs
from gpu_legs.clock import Clock

needs.prepare()
HERE = Path(__file__).resolve().parent
QWEN2 = {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_theta": 1e6, "vocab_size": 151936}
SHAPES: dict[str, dict[str, Any]] = {
    "Qwen2.5-1.5B": QWEN2 | {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "Qwen2.5-0.5B": QWEN2 | {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "Qwen2.5-3B": QWEN2 | {
        "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
        "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "Qwen2.5-7B": QWEN2 | {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 152064,
    },
}  # fmt: skip
QWEN3_4B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 32768, "tie_word_embeddings": True, "rope_theta": 1e6,
}  # fmt: skip
CELLS = ((64, 200, 128), (256, 200, 128), (1024, 200, 128), (256, 1000, 256))
"""Requests, prompt and new tokens."""
LIMITS = {
    "smollm2": 150, "tests": 160, "quantised": 90, "decode": 95,
    "table": 225, "memory": 130, "constrained": 45, "agent": 55, "matmul": 60,
}  # fmt: skip
"""Seconds of each case, at most."""
FIRST_TESTS = (
    "tests/kernels/test_training_kernels.py::test_decode_prefill_and_training_attend_in_one_order_of_keys",
    "tests/engines/local/test_cuda_runner.py::test_engine_and_learner_agree_on_adapters_beside_one_base",
    "tests/engines/local/test_cuda_runner.py::test_constrained_and_filtered_replies_agree_with_the_learner",
    "tests/engines/local/test_cuda_runner.py::test_a_bound_that_is_far_too_small_changes_no_reply",
)
"""Tests that begin, so that a case which runs out of time has them."""
GPU_TESTS = (
    "tests/engines/local/test_cuda_runner.py", "tests/kernels", "tests/models/test_quantisation.py",
    "tests/training/test_memory_metrics.py",
)  # fmt: skip
INTERRUPT_SECONDS = 8
"""Seconds that a case has to print what it has so far, once its time is over."""
NUM_RUNS = 3
"""Runs of a cell of the table; the first one captures graphs and is not counted."""
NUM_COMPARED = 16
"""Replies whose log-probs are computed again by the learner."""


def table(out: Path) -> None:
    """The table, a line per cell; the file is complete after every line."""
    import torch
    from gpu_legs.common import Size, forget_peak, make_renderer, make_wide_model

    rows: list[dict[str, Any]] = []
    for name, shape in SHAPES.items():
        size = Size(shape=shape)
        model = make_wide_model(shape, size)
        for batch, prompt, new in CELLS:
            forget_peak(size)
            rows.append({"shape": name, "cell": [batch, prompt, new]})
            rows[-1] |= measure(replace(size, prompt=prompt, new=new), model, make_renderer(), batch)
            print(json.dumps({key: value for key, value in rows[-1].items() if key != "products"}), flush=True)
            out.write_text(json.dumps(rows, indent=1) + "\n")
        del model
        torch.cuda.empty_cache()


def measure(size: Any, model: Any, renderer: Any, batch: int) -> dict[str, Any]:
    """Tokens/s of the second and third of three runs with the same seeds, and what is to be checked about them."""
    from gpu_legs.common import gib, make_requests, peak_bytes, synchronise

    from practicum.engines.local.cuda_runner import CudaRunner
    from practicum.engines.local.engine import LocalEngine
    from practicum.models.decoder import Decoder

    decoder = Decoder(model)
    engine = LocalEngine(decoder, renderer, max_batch=batch)
    requests = make_requests(size, batch, 1, 0, False)

    async def run() -> list[tuple[dict[str, float], list[Any]]]:
        runs, stats = [], engine.stats
        for index in range(NUM_RUNS):
            engine.weights_changed(index + 1)
            synchronise(size)
            before = (stats.decode_seconds, stats.prefill_seconds)
            started = time.perf_counter()
            replies = list(await asyncio.gather(*map(engine.generate, requests)))
            seconds = time.perf_counter() - started
            parts = {"decode": stats.decode_seconds - before[0], "prefill": stats.prefill_seconds - before[1]}
            runs.append(({"seconds": seconds, **parts}, replies))
        await engine.close()
        return runs

    (_, first), *later = asyncio.run(run())
    assert isinstance(engine.runner, CudaRunner)
    last = later[-1][1]
    tokens = sum(len(reply.ids) for reply in last)
    seconds = statistics.mean(times["seconds"] for times, _ in later)
    first_replies = [(reply.ids, reply.logprobs) for reply in first]
    same = all([(reply.ids, reply.logprobs) for reply in replies] == first_replies for _, replies in later)
    products = {str(key): times for key, times in engine.runner.products.microseconds.items()}
    return {
        "tokens/s": tokens / seconds, "runs": [times for times, _ in later], "same": same,
        "mismatch": mismatch(decoder, requests[:NUM_COMPARED], last[:NUM_COMPARED]),
        "KV GiB": gib(engine.kv_cache.num_bytes), "peak GiB": gib(peak_bytes(size)), "products": products,
    }  # fmt: skip


def mismatch(decoder: Any, requests: Sequence[Any], replies: Sequence[Any]) -> dict[str, float]:
    """How far the learner's log-probs are from those that the engine reported: mean and maximum."""
    import numpy as np
    import torch

    from practicum.training.micro_batches import MicroBatchLimits, Sample
    from practicum.training.objective import compute_logprobs

    samples = []
    for request, reply in zip(requests, replies, strict=True):
        ids = (*request.ids, *reply.ids)
        zeros = np.zeros(len(ids), dtype=np.float32)
        samples.append(Sample(ids, np.arange(len(ids)) >= len(request.ids), zeros, zeros, zeros, 1.0))
    learner_logprobs = torch.cat([part.cpu() for part in compute_logprobs(decoder, samples, MicroBatchLimits(8192))])
    engine_logprobs = torch.tensor([value for reply in replies for value in reply.logprobs])
    return {
        "mean": float((learner_logprobs - engine_logprobs).abs().mean()),
        "max": float((learner_logprobs - engine_logprobs).abs().max()),
    }


def memory(out: Path) -> None:
    """256 requests of 8,000 tokens; what is done so far is written every ten seconds."""
    from gpu_legs.common import Size, forget_peak, gib, make_renderer, make_requests, make_wide_model, peak_bytes

    from practicum.engines.local.engine import LocalEngine
    from practicum.models.decoder import Decoder

    size = Size(shape=QWEN3_4B, prompt=7872, new=128)
    forget_peak(size)
    engine = LocalEngine(Decoder(make_wide_model(QWEN3_4B, size)), make_renderer(), max_batch=256, kv_bytes=80 << 30)
    requests, finished, started = make_requests(size, 256, 1, 0, False), [], time.perf_counter()

    def write() -> None:
        record = {
            "finished": len(finished), "of": len(requests), "seconds": time.perf_counter() - started,
            "KV GiB": gib(engine.kv_cache.num_bytes), "peak GiB": gib(peak_bytes(size)),
            "preempted": engine.stats.preempted, "prefilled": engine.stats.prefilled,
        }  # fmt: skip
        out.write_text(json.dumps(record, indent=1) + "\n")
        print(json.dumps(record), flush=True)

    async def generate(request: Any) -> None:
        finished.append(await engine.generate(request))

    async def run() -> None:
        tasks = [asyncio.create_task(generate(request)) for request in requests]
        while any(not task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=10)
            write()
        await asyncio.gather(*tasks)
        await engine.close()

    asyncio.run(run())
    write()


def commands(name: str, folder: Path) -> list[str]:
    """The command of a case."""
    out = str(folder / f"{name}.json")
    if name == "tests":
        options = ["-q", "-rf", "--tb=short", "-p", "no:cacheprovider"]
        options += ["-n", "4"] * (importlib.util.find_spec("xdist") is not None)  # most of the time kernels are built
        return ["-m", "pytest", *options, *FIRST_TESTS, *GPU_TESTS]
    if name == "constrained":
        return [str(HERE / "constrained_decoding.py"), "--models", "tiny,SmolLM2-135M", "--repeats", "2", "--out", out]
    if name == "smollm2":
        return [str(HERE / "gpu.py"), "--only", "learner,engine,step", "--out", out]
    if name in ("quantised", "decode"):
        return [str(HERE / f"gpu_{name}.py"), "--out", out]
    if name == "agent":
        return [str(HERE / "gpu.py"), "--only", "agent", "--out", out]
    if name == "matmul":
        return [str(HERE / "gpu_matmul.py"), "--rows", "64", "--out", out]
    return [__file__, "--case", name, "--out", out]


class Session:
    """The cases so far, in one file."""

    def __init__(self, out: Path, minutes: float) -> None:
        self.folder, self.clock = out.resolve(), Clock(minutes)
        out.mkdir(parents=True, exist_ok=True)
        self.ended: dict[str, str] = {}

    def run(self, name: str) -> None:
        """Run a case within its time, with everything that it starts."""
        seconds = min(LIMITS[name], self.clock.left)
        if seconds < 5:
            self.ended[name] = "not begun: the time is up"
            return
        self.ended[name] = "running"
        deadline = time.monotonic() + seconds
        with (self.folder / f"{name}.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-u", *commands(name, self.folder)], stdout=output, stderr=subprocess.STDOUT,
                cwd=HERE.parent, start_new_session=True,
            )  # fmt: skip
            while (code := process.poll()) is None and time.monotonic() < deadline:
                time.sleep(1)
                self.write()
            if code is None:
                os.kill(process.pid, signal.SIGINT)  # pytest then prints the failures so far
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(INTERRUPT_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.ended[name] = f"stopped after {seconds:.0f} s" if code is None else f"exit code {code}"
        self.write()

    def output(self, name: str, lines: int) -> list[str]:
        file = self.folder / f"{name}.txt"
        return file.read_text(errors="replace").splitlines()[-lines:] if file.exists() else []

    def write(self) -> None:
        cases: dict[str, Any] = {}
        for name, ended in self.ended.items():
            figures = self.folder / f"{name}.json"
            cases[name] = {"ended": ended, "output": self.output(name, 200)}
            with contextlib.suppress(OSError, ValueError):  # it is being written
                cases[name]["figures"] = json.loads(figures.read_text())
        (self.folder / "session.json").write_text(
            json.dumps({"seconds": self.clock.seconds, "cases": cases}, indent=1) + "\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the figures")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--only", default=",".join(LIMITS))
    parser.add_argument("--case", choices=["table", "memory"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        {"table": table, "memory": memory}[args.case](args.out)
        return
    names = args.only.split(",")
    for name in names:
        if name not in LIMITS:
            raise SystemExit(f"There is no case '{name}'; choose among {', '.join(LIMITS)}.")
    session = Session(args.out, args.minutes)
    for name in names:
        session.run(name)
        session.clock.say(f"{name}: {session.ended[name]}")
        print("\n".join(f"    {line[:300]}" for line in session.output(name, 16)), flush=True)


if __name__ == "__main__":
    main()
