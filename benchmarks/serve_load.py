"""`practicum serve` under load: many streaming clients, some of which go away or stop reading; then SIGTERM.

    python benchmarks/serve_load.py [--clients 200] [--seconds 300] [--out benchmarks/results/serve_load.json]

Each client streams request after request. Every stream must end exactly once and be the text that the engine gives for
its seed: a lost, cut or mixed stream is counted. Every tenth client goes away in the middle of its streams; one client
asks for much and reads nothing. At the end the server gets SIGTERM while streams are under way: those must still be
whole, and the server must end with exit code 0.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import random
import re
import signal
import socket
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from serve import Server, ask, body, engine_replies, make_requests, open_client

from practicum.engines.base import Request

MODEL = "tiny"
NUM_REQUESTS = 64
"""Different requests; clients choose among them."""
LEAVING = 10
"""One in so many clients goes away in the middle of its streams."""
STALLED = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 1500, "n": 4, "logprobs": 5, "stream": True, "seed": 1}
DRAIN_SECONDS = 300
PREFIX_CACHE_MIB = 32
"""So small that it is full early: what memory grows by after that is no cache."""


@dataclass
class LoadTest:
    """Clients of one server, and what they have seen."""

    server: Server
    requests: list[Request]
    texts: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    first_token_seconds: list[float] = field(default_factory=list)
    num_streaming: int = 0
    """Streams under way that have begun."""
    draining: bool = False

    async def client(self, client_index: int, http: httpx.AsyncClient, end: float) -> None:
        rng = random.Random(client_index)
        while time.perf_counter() < end and not self.draining:
            index = rng.randrange(len(self.requests))
            if client_index % LEAVING == LEAVING - 1:
                await self.leave(http, self.requests[index])
            else:
                await self.stream(http, index)

    async def stream(self, http: httpx.AsyncClient, index: int) -> None:
        """One stream; counted as whole, wrong, refused (only after SIGTERM) or broken."""
        try:
            text, first = await ask(http, MODEL, self.requests[index], True, self.on_first)
        except (httpx.HTTPError, AssertionError, KeyError) as error:
            refused = self.draining and isinstance(error, httpx.ConnectError | httpx.HTTPStatusError)
            self.counts["refused" if refused else "broken"] += 1
            return
        self.num_streaming -= 1
        self.counts["whole" if text == self.texts[index] else "wrong"] += 1
        self.counts["whole after SIGTERM"] += self.draining
        if first is not None and not self.draining:
            self.first_token_seconds.append(first)

    def on_first(self) -> None:
        self.num_streaming += 1

    async def leave(self, http: httpx.AsyncClient, request: Request) -> None:
        try:
            async with http.stream("POST", "completions", json=body(MODEL, request, True)) as answer:
                async for _ in answer.aiter_lines():
                    break
            self.counts["left"] += 1
        except httpx.HTTPError:
            self.counts["refused" if self.draining else "broken"] += 1

    def stall(self) -> socket.socket:
        """A client that sends a request and reads nothing of the answer."""
        url = urlsplit(self.server.url)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((url.hostname, url.port))
        data = json.dumps(STALLED).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connection

    async def run(self, clients: int, seconds: float) -> dict[str, Any]:
        memory = [self.server.memory()]
        end = time.perf_counter() + seconds
        cpu_before = self.server.processor_seconds()

        async def sample_memory() -> None:
            while time.perf_counter() < end:
                await asyncio.sleep(seconds / 30)
                memory.append(self.server.memory())

        with self.stall():
            async with open_client(self.server.url) as http:
                running = [
                    asyncio.create_task(self.client(client_index, http, end + 3600)) for client_index in range(clients)
                ]
                await sample_memory()
                cpu_seconds = self.server.processor_seconds() - cpu_before
                tokens = await self.sampled_tokens(http)
                self.counts["under way at SIGTERM"] = self.num_streaming
                self.draining = True
                self.server.process.send_signal(signal.SIGTERM)
                await asyncio.gather(*running)
        code = await asyncio.to_thread(self.server.process.wait, DRAIN_SECONDS + 60)
        return self.figures(clients, seconds, memory) | {
            "exit_code": code, "tokens": tokens, "processor_seconds": round(cpu_seconds),
            "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip

    async def sampled_tokens(self, http: httpx.AsyncClient) -> int:
        text = (await http.get(self.server.url.replace("/v1", "/metrics"))).text
        match = re.search(r"^vllm:generation_tokens_total\S* (\S+)$", text, re.MULTILINE)
        return round(float(match[1])) if match else 0

    def figures(self, clients: int, seconds: float, memory: list[int]) -> dict[str, Any]:
        firsts = sorted(self.first_token_seconds)
        marks = [memory[0], *(memory[round(share * (len(memory) - 1))] for share in (0.25, 0.5, 0.75, 1.0))]
        return {
            "clients": clients, "seconds": seconds, **self.counts,
            "first_token_p50_s": round(statistics.median(firsts), 3),
            "first_token_p99_s": round(firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], 3),
            "memory_mib": [round(size / 2**20) for size in marks],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    requests = make_requests(MODEL, NUM_REQUESTS, 1)
    texts = [text for _, text in engine_replies(MODEL, requests)[1]]
    options = ("--drain-seconds", str(DRAIN_SECONDS), "--prefix-cache-mib", str(PREFIX_CACHE_MIB))
    server = Server.of_model(MODEL, *options)
    try:
        result = asyncio.run(LoadTest(server, requests, texts).run(args.clients, args.seconds))
    finally:
        if server.process.poll() is None:
            server.close()
    print(json.dumps(result), flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
