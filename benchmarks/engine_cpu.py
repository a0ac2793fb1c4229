"""The local engine against `transformers.generate`, same weights, same requests, one run, ratios.

Three cases: `tiny` and `smollm2` with 64 requests of mixed lengths, and a conversation of several
turns whose KV is kept, against the same engine made to prefill every turn again.

    python benchmarks/engine_cpu.py [--models tiny smollm2] [--repeats 3] [--out benchmarks/results/engine_cpu.json]

Lengths are drawn log-uniformly, as agents' replies are: many short, few long. `generate` gets all
requests as one left-padded batch with its own default cache, runs until the longest is done, and is
given every thread; it is timed with one thread too and the faster counts. Both sides sample from the
whole distribution; the engine also reports log-probs, `generate` does not. Only tokens that were
asked for are counted.
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
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from practicum.chat.renderer import Renderer
from practicum.engines.base import Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.task import Task

CORES = torch.get_num_threads()
LONGEST = {"tiny": 384, "smollm2": 64}
PROMPTS = {"tiny": (20, 150), "smollm2": (20, 100)}


def make_requests(name: str, count: int, seed: int) -> list[Request]:
    """Prompts of uniform length over real ids; reply lengths log-uniform from 4 to the longest."""
    rng = random.Random(seed)
    low, high = PROMPTS[name]
    requests = []
    for index in range(count):
        prompt = tuple(rng.randrange(300, 700) for _ in range(rng.randint(low, high)))
        length = round(math.exp(rng.uniform(math.log(4), math.log(LONGEST[name]))))
        sampling = Sampling(max_tokens=length, seed=index)
        requests.append(Request(prompt, sampling, Task("b", "bench", "train"), Observation(), (), session=str(index)))
    return requests


async def engine_seconds(engine: LocalEngine, requests: list[Request]) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(engine.generate(request) for request in requests))
    return time.perf_counter() - started


def generate_seconds(model: transformers.PreTrainedModel, requests: list[Request], threads: int) -> float:
    torch.set_num_threads(threads)
    width = max(len(r.ids) for r in requests)
    longest = max(r.sampling.max_tokens for r in requests)
    ids = torch.tensor([[0] * (width - len(r.ids)) + list(r.ids) for r in requests])
    mask = torch.tensor([[0] * (width - len(r.ids)) + [1] * len(r.ids) for r in requests])
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, do_sample=True, top_k=0,
            top_p=1.0, temperature=1.0, pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    return time.perf_counter() - started


def endless(renderer: Renderer) -> Renderer:
    """No end token: every request runs to its own length on both sides."""
    renderer.end_ids = ()
    return renderer


def against_generate(name: str, repeats: int) -> dict[str, object]:
    loaded = loader.load(name)
    requests = make_requests(name, 64, seed=0)
    tokens = sum(r.sampling.max_tokens for r in requests)
    engine = LocalEngine(Decoder(loaded.model), endless(Renderer(loaded.tokenizer)), max_batch=64)

    async def timed() -> list[float]:
        seconds = []
        await engine_seconds(engine, requests[:8])
        for k in range(repeats):
            engine.weights_changed(k + 1)  # every repeat starts with cold caches
            seconds.append(await engine_seconds(engine, requests))
        await engine.close()
        return seconds

    practicum_seconds = asyncio.run(timed())
    generate_seconds(
        loaded.model, [replace(r, sampling=replace(r.sampling, max_tokens=4)) for r in requests[:8]], CORES
    )
    generate_times = {
        n: [generate_seconds(loaded.model, requests, n) for _ in range(repeats)] for n in sorted({1, CORES})
    }
    best = min(statistics.median(times) for times in generate_times.values())
    return {
        "case": f"{name}, 64 requests, replies of 4–{LONGEST[name]} tokens (log-uniform)",
        "tokens": tokens,
        "practicum tok/s": tokens / statistics.median(practicum_seconds),
        "transformers tok/s": tokens / best,
        "ratio": best / statistics.median(practicum_seconds),
        "seconds": {
            "practicum": practicum_seconds,
            **{f"transformers, {n} threads": t for n, t in generate_times.items()},
        },
    }


def kept_against_fresh(name: str, repeats: int, chains: int = 16, turns: int = 8) -> dict[str, object]:
    """Conversations that grow by an observation each turn: the KV of earlier turns kept, or computed again."""
    loaded = loader.load(name)

    async def conversation(engine: LocalEngine, index: int) -> int:
        rng = random.Random(index)
        ids = tuple(rng.randrange(300, 700) for _ in range(200))
        num_tokens = 0
        for turn in range(turns):
            sampling = Sampling(max_tokens=8, seed=1000 * index + turn)
            request = Request(ids, sampling, Task("b", "bench", "train"), Observation(), (), session=str(index))
            reply = await engine.generate(request)
            num_tokens += len(reply.ids)
            ids = (*ids, *reply.ids, *(rng.randrange(300, 700) for _ in range(40)))
        engine.end_session(str(index))
        return num_tokens

    async def timed(cache_bytes: int) -> list[float]:
        renderer = endless(Renderer(loaded.tokenizer))
        engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=chains, cache_bytes=cache_bytes)
        seconds = []
        for k in range(repeats + 1):
            engine.weights_changed(k + 1)
            started = time.perf_counter()
            await asyncio.gather(*(conversation(engine, n) for n in range(chains)))
            seconds.append(time.perf_counter() - started)
        await engine.close()
        return seconds[1:]

    kept, fresh = asyncio.run(timed(1 << 30)), asyncio.run(timed(0))
    tokens = chains * turns * 8
    return {
        "case": f"{name}, {chains} conversations of {turns} turns, 200 + 48 a turn",
        "tokens": tokens,
        "KV kept tok/s": tokens / statistics.median(kept),
        "prefilled again tok/s": tokens / statistics.median(fresh),
        "ratio": statistics.median(fresh) / statistics.median(kept),
        "seconds": {"kept": kept, "fresh": fresh},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["tiny", "smollm2"], choices=sorted(LONGEST))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cases: list[Callable[[], dict[str, object]]] = [
        lambda n=name: against_generate(n, args.repeats) for name in args.models
    ]
    cases.append(lambda: kept_against_fresh("tiny", args.repeats))
    results = []
    for case in cases:
        result = case()
        results.append(result)
        rates = [f"{key} {value:.0f}" for key, value in result.items() if key.endswith("tok/s")]
        print(f"{result['case']}: {', '.join(rates)}, ratio {result['ratio']:.2f}", flush=True)
    if args.out:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cpu": platform.processor(),
                    "cores": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
