"""`practicum serve` against the engine's own batch rate, and under load; one run, ratios.

    python benchmarks/serve.py [--model tiny] [--clients 64] [--out benchmarks/results/serve.json]
    python benchmarks/serve.py --load 200 --seconds 300        # streaming clients, one request after the other

*Rate*: the same requests (prompts as ids, replies of log-uniform length) go to the engine in one batch, and then to a
server in a process of its own, one client each, not streamed and streamed. Clients run in this process, so on two cores
they take time from the server. *Load*: each client streams request after request; every stream must end once and be the
text that the engine gives for its seed. Every tenth client goes away in the middle of its streams.
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
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch

from practicum.chat.renderer import Renderer
from practicum.engines.base import Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.policy import NO_TASK

LONGEST = {"tiny": 384}
DEFAULT_LONGEST = 64


def make_requests(model: str, count: int, seed: int) -> list[Request]:
    rng = random.Random(seed)
    longest, made = LONGEST.get(model, DEFAULT_LONGEST), []
    for number in range(count):
        prompt = tuple(rng.randrange(300, 700) for _ in range(rng.randint(20, 150)))
        length = round(math.exp(rng.uniform(math.log(4), math.log(longest))))
        made.append(Request(prompt, Sampling(max_tokens=length, seed=number), NO_TASK, Observation(), ()))
    return made


def engine_replies(model: str, requests: list[Request]) -> tuple[float, list[tuple[int, str]]]:
    """Seconds of one batch, and each reply's number of tokens and text."""
    loaded = loader.load(model)
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=64)

    async def run() -> tuple[float, list[tuple[int, str]]]:
        await asyncio.gather(*(engine.generate(request) for request in requests[:8]))  # warm
        begun = time.perf_counter()
        replies = await asyncio.gather(*(engine.generate(request) for request in requests))
        seconds = time.perf_counter() - begun
        await engine.close()
        return seconds, [(len(reply.ids), renderer.decode(reply.ids)) for reply in replies]

    return asyncio.run(run())


class Server:
    """A server in a process of its own."""

    def __init__(self, model: str) -> None:
        program = [sys.executable, "-m", "practicum.cli", "serve", model, "--port", "0", "--max-num-seqs", "64"]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[0]

    def memory(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def body(model: str, request: Request, stream: bool) -> dict[str, Any]:
    sampling = request.sampling
    return {"model": model, "prompt": list(request.ids), "max_tokens": sampling.max_tokens, "seed": sampling.seed,
            "stream": stream}  # fmt: skip


async def ask(client: httpx.AsyncClient, model: str, request: Request, stream: bool) -> tuple[str, float | None]:
    """The text of a reply, and the seconds to the first piece of a stream."""
    if not stream:
        answer = await client.post("completions", json=body(model, request, False))
        return answer.json()["choices"][0]["text"], None
    text, first, begun, ends = "", None, time.perf_counter(), 0
    async with client.stream("POST", "completions", json=body(model, request, True)) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                ends += 1
            elif line.startswith("data: "):
                first = first or time.perf_counter() - begun
                text += json.loads(line[6:])["choices"][0]["text"]
    assert ends == 1, f"the stream ended {ends} times"
    return text, first


def open_client(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    return httpx.AsyncClient(base_url=f"{url}/", timeout=600, limits=limits)


async def rate(url: str, model: str, requests: list[Request], texts: list[str], stream: bool) -> float:
    async with open_client(url) as client:
        begun = time.perf_counter()
        answers = await asyncio.gather(*(ask(client, model, request, stream) for request in requests))
        seconds = time.perf_counter() - begun
    assert [text for text, _ in answers] == texts, "a served reply is not the engine's"
    return seconds


async def load(
    server: Server, model: str, requests: list[Request], texts: list[str], clients: int, seconds: float
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    firsts: list[float] = []
    end = time.perf_counter() + seconds
    memory = [server.memory()]

    async def one(number: int, client: httpx.AsyncClient) -> None:
        rng = random.Random(number)
        while time.perf_counter() < end:
            index = rng.randrange(len(requests))
            if number % 10 == 9:  # goes away in the middle
                async with client.stream("POST", "completions", json=body(model, requests[index], True)) as answer:
                    async for _ in answer.aiter_lines():
                        break
                counts["left"] += 1
                continue
            text, first = await ask(client, model, requests[index], True)
            counts["whole" if text == texts[index] else "wrong"] += 1
            if first is not None:
                firsts.append(first)

    async def watch() -> None:
        while time.perf_counter() < end:
            await asyncio.sleep(seconds / 20)
            memory.append(server.memory())

    async with open_client(server.url) as client:
        await asyncio.gather(watch(), *(one(number, client) for number in range(clients)))
    firsts.sort()
    half = memory[len(memory) // 2 :]
    return {
        "clients": clients, "seconds": seconds, **counts,
        "first_token_p50_s": round(statistics.median(firsts), 3),
        "first_token_p99_s": round(firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], 3),
        "memory_mib": [round(one / 2**20) for one in (memory[0], half[0], half[-1])],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--load", type=int, default=0, help="streaming clients of the load test (default: none)")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    requests = make_requests(args.model, args.clients, 1)
    seconds, replies = engine_replies(args.model, requests)
    tokens, texts = sum(count for count, _ in replies), [text for _, text in replies]
    machine = {"torch": torch.__version__, "cores": os.cpu_count(), "python": platform.python_version()}
    result: dict[str, Any] = {"model": args.model, "clients": args.clients, "tokens": tokens, "machine": machine}
    result["engine_tokens_per_s"] = round(tokens / seconds)
    server = Server(args.model)
    try:
        asyncio.run(rate(server.url, args.model, requests[:8], texts[:8], False))  # warm
        for name, stream in (("served", False), ("streamed", True)):
            took = asyncio.run(rate(server.url, args.model, requests, texts, stream))
            result[f"{name}_tokens_per_s"], result[f"{name}_ratio"] = round(tokens / took), round(seconds / took, 2)
        print(json.dumps(result), flush=True)
        if args.load:
            result["load"] = asyncio.run(load(server, args.model, requests, texts, args.load, args.seconds))
            print(json.dumps(result["load"]), flush=True)
    finally:
        server.close()
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
