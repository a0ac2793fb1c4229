"""`practicum serve` against the engine's own batch rate, and against llama.cpp's server; one run, ratios.

    python benchmarks/serve.py [--model tiny] [--clients 64] [--out benchmarks/results/serve.json]
    python benchmarks/serve.py --model smollm2 --llama-python PYTHON      # an environment with `pip install xllamacpp`
    python benchmarks/serve.py --model smollm2 --device cuda --clients 256

The same requests (prompts as ids, replies of log-uniform length) go to the engine in one batch, and then to a server in
a process of its own, one client each, not streamed and streamed. Clients run in this process, so on few cores they take
time from the server. llama.cpp's server (`benchmarks/llama_server.py`) gets the same requests with the same weights as
its GGUF file has them, quantised to 4 bits; ours are float32. Beside tokens per second there are tokens per second of
processor time of the server's process, which other programs on the machine change less. `serve_load.py` is the load
test.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import math
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
import torch

from practicum.chat.renderer import Renderer
from practicum.engines.base import Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.loader import Device
from practicum.policy import NO_TASK

LONGEST = {"tiny": 384}
DEFAULT_LONGEST = 64
LONGEST_PROMPT = {"tiny": 150}
DEFAULT_LONGEST_PROMPT = 60
CPU = Device()
LLAMA_SERVER = Path(__file__).with_name("llama_server.py")


class Rate(NamedTuple):
    """How long a batch took."""

    seconds: float
    processor_seconds: float

    def figures(self, name: str, tokens: int) -> dict[str, float]:
        return {
            f"{name}_tokens_per_s": round(tokens / self.seconds),
            f"{name}_tokens_per_processor_s": round(tokens / self.processor_seconds),
        }


def make_requests(model: str, count: int, seed: int, longest: int | None = None) -> list[Request]:
    rng = random.Random(seed)
    longest, requests = longest or LONGEST.get(model, DEFAULT_LONGEST), []
    for index in range(count):
        prompt = tuple(
            rng.randrange(300, 700) for _ in range(rng.randint(20, LONGEST_PROMPT.get(model, DEFAULT_LONGEST_PROMPT)))
        )
        length = round(math.exp(rng.uniform(math.log(4), math.log(longest))))
        requests.append(Request(prompt, Sampling(max_tokens=length, seed=index), NO_TASK, Observation(), ()))
    return requests


def engine_replies(
    model: str, requests: list[Request], device: Device = CPU, batch: int = 64
) -> tuple[Rate, list[tuple[int, str]]]:
    """The rate of one batch, and each reply's number of tokens and text."""
    loaded = loader.load(model, device.dtype, device.device)
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=batch)

    async def run() -> tuple[Rate, list[tuple[int, str]]]:
        await asyncio.gather(*(engine.generate(request) for request in warm_up(requests, device)))
        started, cpu_started = time.perf_counter(), time.process_time()
        replies = await asyncio.gather(*(engine.generate(request) for request in requests))
        elapsed = Rate(time.perf_counter() - started, time.process_time() - cpu_started)
        await engine.close()
        return elapsed, [(len(reply.ids), renderer.decode(reply.ids)) for reply in replies]

    return asyncio.run(run())


def warm_up(requests: list[Request], device: Device) -> list[Request]:
    """What is asked before anything is timed; on a GPU as many as later, so that its graphs are there."""
    if not device.on_gpu:
        return requests[:8]
    return [replace(request, ids=request.ids[::-1]) for request in requests]


class Server:
    """A server in a process of its own."""

    def __init__(self, *program: str | Path) -> None:
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[0]

    @classmethod
    def of_model(cls, model: str, *options: str, batch: int = 64) -> Server:
        """`practicum serve`, with so many replies at once."""
        command = ("serve", model, "--port", "0", "--max-num-seqs", str(batch), *options)
        return cls(sys.executable, "-m", "practicum.cli", *command)

    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def processor_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def body(model: str, request: Request, stream: bool) -> dict[str, Any]:
    sampling = request.sampling
    return {"model": model, "prompt": list(request.ids), "max_tokens": sampling.max_tokens, "seed": sampling.seed,
            "stream": stream}  # fmt: skip


async def ask(
    client: httpx.AsyncClient,
    model: str,
    request: Request,
    stream: bool,
    on_first: Callable[[], None] = lambda: None,
) -> tuple[str, float | None]:
    """The text of a reply, and the seconds to the first piece of a stream, when `on_first` is called."""
    if not stream:
        answer = await client.post("completions", json=body(model, request, False))
        return answer.json()["choices"][0]["text"], None
    text, first, started, ends = "", None, time.perf_counter(), 0
    async with client.stream("POST", "completions", json=body(model, request, True)) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                ends += 1
            elif line.startswith("data: "):
                if first is None:
                    first = time.perf_counter() - started
                    on_first()
                text += json.loads(line[6:])["choices"][0]["text"]
    assert ends == 1, f"the stream ended {ends} times"
    return text, first


def open_client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    return httpx.AsyncClient(base_url=f"{url}/", timeout=600, limits=limits)


async def rate(server: Server, model: str, requests: list[Request], texts: list[str] | None, stream: bool) -> Rate:
    """How long a server takes; its replies must be these texts, where they are given."""
    cpu_before = server.processor_seconds()
    async with open_client(server.url) as client:
        started = time.perf_counter()
        answers = await asyncio.gather(*(ask(client, model, request, stream) for request in requests))
        seconds = time.perf_counter() - started
    assert texts is None or [text for text, _ in answers] == texts, "a served reply is not the engine's"
    return Rate(seconds, server.processor_seconds() - cpu_before)


async def llama_rate(server: Server, requests: list[Request]) -> tuple[Rate, int]:
    """llama.cpp's rate, and how many tokens it has sampled: its sampler is another one, so replies may end earlier."""

    async def ask_llama(client: httpx.AsyncClient, request: Request) -> int:
        answer = await client.post("completions", json={**body("smollm2", request, False), "ignore_eos": True})
        answer.raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    cpu_before = server.processor_seconds()
    async with open_client(server.url) as client:
        started = time.perf_counter()
        counts = await asyncio.gather(*(ask_llama(client, request) for request in requests))
        seconds = time.perf_counter() - started
    return Rate(seconds, server.processor_seconds() - cpu_before), sum(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--longest", type=int, help="tokens of the longest reply")
    parser.add_argument("--llama-python", type=Path, help="Python with xllamacpp, for --model smollm2")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp; ours are OMP_NUM_THREADS")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    requests = make_requests(args.model, args.clients, 1, args.longest)
    device, batch = loader.resolve_device(args.device), max(64, args.clients)
    engine_rate, replies = engine_replies(args.model, requests, device, batch)
    tokens, texts = sum(count for count, _ in replies), [text for _, text in replies]
    machine = {"torch": torch.__version__, "cores": os.cpu_count(), "threads": torch.get_num_threads(),
               "python": platform.python_version(), "load": round(os.getloadavg()[0], 1)}  # fmt: skip
    if device.on_gpu:
        machine |= {"gpu": torch.cuda.get_device_name(), "dtype": device.dtype_name}
    result: dict[str, Any] = {"model": args.model, "clients": args.clients, "tokens": tokens, "machine": machine}
    result |= engine_rate.figures("engine", tokens)
    server = Server.of_model(args.model, "--device", args.device, batch=batch)
    try:
        asyncio.run(rate(server, args.model, warm_up(requests, device), None, False))
        for name, stream in (("served", False), ("streamed", True)):
            elapsed = asyncio.run(rate(server, args.model, requests, texts, stream))
            result |= elapsed.figures(name, tokens)
            result[f"{name}_ratio"] = round(engine_rate.seconds / elapsed.seconds, 2)
            result[f"{name}_processor_ratio"] = round(engine_rate.processor_seconds / elapsed.processor_seconds, 2)
    finally:
        server.close()
    if args.llama_python:
        result |= compare_with_llama(args.llama_python, args.threads, requests)
    print(json.dumps(result), flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def compare_with_llama(python: Path, threads: int, requests: list[Request]) -> dict[str, Any]:
    from practicum.models.smollm2 import weights_file

    longest = max(len(request.ids) + request.sampling.max_tokens for request in requests)
    server = Server(python, LLAMA_SERVER, weights_file(), str(len(requests)), str(longest), str(threads))
    try:
        asyncio.run(llama_rate(server, requests[:8]))  # warm
        elapsed, tokens = asyncio.run(llama_rate(server, requests))
    finally:
        server.close()
    return {"llama_tokens": tokens, "llama_threads": threads, **elapsed.figures("llama", tokens)}


if __name__ == "__main__":
    main()
