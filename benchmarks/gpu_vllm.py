"""Tokens per second of this engine and of vLLM on one GPU, by turns in one run, for Qwen2.5 shapes.

    python benchmarks/gpu_vllm.py --out FOLDER [--shapes 0.5B,3B,1.5B,7B] [--minutes 6] [--python PYTHON]
    python benchmarks/gpu_vllm.py --out FOLDER --tiny    without vLLM, on a CPU: its figures mean nothing

Random weights, bf16, prompts all different, temperature 1, the sampled token's log-prob, no prefix caching, no
tokenizer. `--python` is the interpreter of an environment with vLLM (default: this one); it need not have Practicum. An
engine of vLLM per shape is started, all at once, with torch.compile and CUDA graphs in an engine process of its own
(its defaults); one that does not start is tried again with less (`ATTEMPTS`), and the result says with what it ran.
Then, per shape and cell, both engines run once to warm up and by turns afterwards, with the same prompts. FOLDER has
NAME.json of every shape, complete after every cell, and vLLM's output (NAME.txt).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

CELLS = ((64, 200, 128), (256, 200, 128), (1024, 200, 128), (256, 1000, 256))
"""Requests, prompt and new tokens."""
TINY_CELLS = ((4, 20, 8),)
KV_GIB = {"Qwen2.5-0.5B": 8, "Qwen2.5-1.5B": 14, "Qwen2.5-3B": 18, "Qwen2.5-7B": 26}
"""vLLM's memory for keys and values: room for all requests of the largest cell, so that none waits."""
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 384, 512, 640, 768, 896, 1024]
"""Batch sizes that vLLM captures: its default ends at 512, and fewer steps between sizes make it start sooner."""
COMPILED = {"compilation_config": {"cudagraph_capture_sizes": GRAPH_SIZES}}
ATTEMPTS: tuple[tuple[str, dict[str, str], dict[str, Any], float], ...] = (
    ("compiled, CUDA graphs, engine in a process of its own", {}, COMPILED, 170),
    ("compiled, CUDA graphs", {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, COMPILED, 120),
    (
        "CUDA graphs, not compiled",
        {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": GRAPH_SIZES}},
        60,
    ),
    ("eager", {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}, {"enforce_eager": True}, 60),
)
"""What vLLM is started with: a description, variables of the environment, arguments, seconds it may take."""
NUM_REPEATS = 2
LONG_SECONDS = 6.0
"""A cell whose warm-up takes longer than this is repeated once."""
CELL_LIMIT_SECONDS = 120


def serve_vllm(arguments: dict[str, Any], replies: int) -> None:
    """The peer process: start vLLM, then answer each line of standard input (a cell) with its seconds."""
    from vllm import LLM, SamplingParams, __version__

    started = time.perf_counter()
    llm = LLM(**arguments)

    def say(answer: dict[str, Any]) -> None:
        os.write(replies, (json.dumps(answer) + "\n").encode())

    say({"version": __version__, "start seconds": time.perf_counter() - started})
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        sampling = SamplingParams(
            temperature=1.0, max_tokens=asked["new"], ignore_eos=True, logprobs=0, detokenize=False
        )
        begun = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begun
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        num_logprobs = sum(len(output.outputs[0].logprobs or ()) for output in outputs)
        say({"seconds": seconds, "tokens": num_tokens, "logprobs": num_logprobs})


class VLLMPeer:
    """A process with vLLM's engine of one shape."""

    def __init__(self, python: str, name: str, shape: dict[str, Any], folder: Path) -> None:
        self.python, self.name, self.log = python, name, folder / f"{name}.txt"
        self.model = folder / "models" / name
        self.model.mkdir(parents=True, exist_ok=True)
        config = shape | {"architectures": ["Qwen2ForCausalLM"], "dtype": "bfloat16", "torch_dtype": "bfloat16"}
        config |= {"hidden_act": "silu", "rms_norm_eps": 1e-6, "eos_token_id": 151645, "bos_token_id": 151643}
        (self.model / "config.json").write_text(json.dumps(config))
        self.attempt, self.info, self.buffer = -1, dict[str, Any](), b""
        self.process: subprocess.Popen[bytes] | None = None
        self.start_next()

    def start_next(self) -> None:
        """Start with the next entry of ATTEMPTS; none is left: `process` is None."""
        self.stop()
        self.attempt += 1
        if self.attempt >= len(ATTEMPTS):
            return
        description, environment, arguments, seconds = ATTEMPTS[self.attempt]
        arguments = arguments | {
            "model": str(self.model), "load_format": "dummy", "dtype": "bfloat16", "skip_tokenizer_init": True,
            "enable_prefix_caching": False, "max_model_len": 2048, "generation_config": "vllm",
            "max_num_seqs": 1024, "gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": KV_GIB[self.name] << 30,
        }  # fmt: skip
        variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1"}
        read, write = os.pipe()
        command = [self.python, "-u", "-P", __file__, "--peer", json.dumps(arguments), "--replies", str(write)]
        with self.log.open("a") as output:
            print(f"== {description}", file=output, flush=True)
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, pass_fds=(write,),
                env={**os.environ, **variables, **environment}, start_new_session=True,
            )  # fmt: skip
        os.close(write)
        self.replies, self.deadline, self.buffer = read, time.monotonic() + seconds, b""

    def stop(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.replies)
        self.process = None

    def read(self, seconds: float) -> dict[str, Any] | None:
        """The next answer, or None where there is none yet; EOFError where the process has ended."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self.replies], [], [], left)[0]:
                return None
            chunk = os.read(self.replies, 1 << 16)
            if not chunk:
                raise EOFError(f"vLLM's process for {self.name} has ended; see {self.log}")
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def poll_start(self) -> bool:
        """Whether it is ready or will never be; a start that failed or takes too long is followed by the next."""
        if self.info or self.process is None:
            return True
        try:
            answer = self.read(0.5)
        except EOFError:
            self.start_next()
            return self.process is None
        if answer is not None:
            self.info = answer | {"settings": ATTEMPTS[self.attempt][0]}
        elif time.monotonic() > self.deadline or self.process.poll() is not None:
            self.start_next()
        return bool(self.info) or self.process is None

    def run(self, prompts: list[list[int]], new: int) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps({"prompts": prompts, "new": new}) + "\n").encode())
        self.process.stdin.flush()
        answer = self.read(CELL_LIMIT_SECONDS)
        if answer is None:
            self.stop()  # its answer would otherwise be taken for that of the next cell
            raise TimeoutError(f"vLLM took more than {CELL_LIMIT_SECONDS} s for {len(prompts)} requests")
        expected = len(prompts) * new
        if answer["tokens"] != expected or answer["logprobs"] != expected:
            raise RuntimeError(f"vLLM gave {answer} instead of {expected} tokens with log-probs")
        return answer


@contextlib.contextmanager
def our_engine(model: Any, requests: list[Any]) -> Iterator[Any]:
    """A function that runs the requests with an engine of ours and gives its seconds."""
    from gpu_legs.common import make_renderer

    from practicum.engines.local.engine import LocalEngine
    from practicum.models.decoder import Decoder

    engine = LocalEngine(Decoder(model), make_renderer(), max_batch=len(requests))
    loop, version = asyncio.new_event_loop(), 0

    async def generate() -> float:
        begun = time.perf_counter()
        replies = await asyncio.gather(*map(engine.generate, requests))
        seconds = time.perf_counter() - begun
        expected = requests[0].sampling.max_tokens
        assert all(len(reply.ids) == len(reply.logprobs) == expected for reply in replies)
        return seconds

    def run() -> float:
        nonlocal version
        version += 1
        engine.weights_changed(version)  # so that no prompt of the run before is in the prefix cache
        return loop.run_until_complete(generate())

    try:
        yield run
    finally:
        loop.run_until_complete(engine.close())
        loop.close()


def measure_cell(model: Any, size: Any, batch: int, peer: VLLMPeer | None) -> dict[str, Any]:
    from gpu_legs.common import forget_peak, make_requests

    forget_peak(size)
    requests = make_requests(size, batch, 1, 0, False)
    prompts = [list(request.ids) for request in requests]
    seconds: dict[str, list[float]] = {"ours": [], "vLLM": []}
    with our_engine(model, requests) as run:
        repeats = NUM_REPEATS
        for number in range(NUM_REPEATS + 1):
            if number > repeats:
                break
            seconds["ours"].append(run())
            if peer is not None:
                seconds["vLLM"].append(peer.run(prompts, size.new)["seconds"])
            if number == 0 and sum(times[0] for times in seconds.values() if times) > LONG_SECONDS:
                repeats = 1
    row: dict[str, Any] = {"cell": [batch, size.prompt, size.new], "seconds": seconds}
    for name, times in seconds.items():
        if len(times) > 1:
            row[f"{name}, tokens/s"] = batch * size.new / statistics.mean(times[1:])
    if peer is not None:
        row["against vLLM"] = row["ours, tokens/s"] / row["vLLM, tokens/s"]
    return row


def measure_shape(name: str, shape: dict[str, Any], peer: VLLMPeer | None, size: Any, out: Path, clock: Any) -> None:
    import torch
    from gpu_legs.common import make_wide_model

    record: dict[str, Any] = {"shape": name, "vLLM": peer.info if peer else None, "torch": torch.__version__}
    record |= {"device": torch.cuda.get_device_name() if size.device == "cuda" else "cpu", "cells": []}
    record |= {"date": time.strftime("%Y-%m-%d"), "attempts": peer.attempt + 1 if peer else 0}
    model = make_wide_model(shape, size)
    for batch, prompt, new in TINY_CELLS if size.tiny else CELLS:
        if clock.over:
            record["cut off"] = "the time is up"
            break
        cell_size = replace(size, shape=shape, prompt=prompt, new=new)
        try:
            row = measure_cell(model, cell_size, batch, peer)
        except Exception as error:  # the other cells still run: time on a GPU is scarce
            traceback.print_exc()
            row = {"cell": [batch, prompt, new], "error": f"{type(error).__name__}: {error}"}
            peer = peer if peer is not None and peer.process is not None and peer.process.poll() is None else None
        record["cells"].append(row)
        clock.say(f"{name} {json.dumps(row)}")
        (out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    del model
    if size.device == "cuda":
        torch.cuda.empty_cache()


def wait_for_peers(peers: dict[str, VLLMPeer], clock: Any, seconds: float) -> None:
    """Until every peer is ready or has given up, or until the time is over."""
    deadline, waiting = time.monotonic() + seconds, dict(peers)
    while waiting and time.monotonic() < deadline and not clock.over:
        for name, peer in list(waiting.items()):
            if peer.poll_start():
                del waiting[name]
                clock.say(f"vLLM for {name}: {peer.info or 'did not start'}")
    for name, peer in waiting.items():
        clock.say(f"vLLM for {name}: not ready in time ({ATTEMPTS[peer.attempt][0]})")
        peer.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--shapes", default="0.5B,3B,1.5B,7B", help="in this order (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--start-seconds", type=float, default=200, help="for all of vLLM's engines to start")
    parser.add_argument("--wait-for", type=Path, help="begin to measure when this file is there")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--replies", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer is not None:
        serve_vllm(json.loads(args.peer), args.replies)
        return
    if args.out is None:
        parser.error("--out is needed")
    from gpu_legs import needs
    from gpu_legs.clock import Clock

    needs.prepare()
    import torch
    from gpu_legs.common import TINY, Size
    from gpu_session import SHAPES

    names = [f"Qwen2.5-{name}" for name in args.shapes.split(",")]
    for name in names:
        if name not in SHAPES:
            raise SystemExit(f"There is no shape '{name}'; choose among {', '.join(SHAPES)}.")
    if not args.tiny and not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU (--tiny shows on CPU that it works).")
    clock, out = Clock(args.minutes), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if args.tiny:
        shape = SHAPES["Qwen2.5-0.5B"] | {
            "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 512,
        }  # fmt: skip
        measure_shape("tiny", shape, None, TINY, out, clock)
        return
    peers = {name: VLLMPeer(args.python, name, SHAPES[name], out) for name in names}
    try:
        wait_for_peers(peers, clock, args.start_seconds)
        while args.wait_for is not None and not args.wait_for.exists() and not clock.over:
            time.sleep(0.5)
        for name in names:
            peer = peers[name] if peers[name].info else None
            measure_shape(name, SHAPES[name], peer, Size(), out, clock)
            peers[name].stop()
    finally:
        for peer in peers.values():
            peer.stop()


if __name__ == "__main__":
    main()
