"""The engine and the learner on one GPU.

    python benchmarks/gpu.py [--only engine,learner] [--batches 64,256,1024] [--out FILE.json]

A model of SmolLM2-135M's shape with random weights (their values change no time), bf16, prompts of 200 tokens, 128 new
ones, log-probs included. Medians over repeats after a warm-up; the card is left as it is found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.engines.base import Request, Sampling
from practicum.engines.local import LocalEngine
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.render import Renderer
from practicum.task import Task

PROMPT, NEW = 200, 128
SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
    "rope_theta": 100000.0,
}  # fmt: skip
TASK = Task("b", "bench", "train")


def make_model(dtype: torch.dtype = torch.bfloat16) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(**SMOLLM2)).to(dtype).eval()


def make_requests(count: int, chains: int, seed: int, mixed: bool) -> list[Request]:
    """`chains` requests a prompt; `mixed`: prompts of 20 to 380 tokens and replies of 8 to 248, the same on average."""
    rng = random.Random(seed)
    made: list[Request] = []
    while len(made) < count:
        ids = tuple(rng.randrange(10, 49000) for _ in range(rng.randint(20, 380) if mixed else PROMPT))
        for _ in range(chains):
            new = rng.randint(8, 248) if mixed else NEW
            made.append(Request(ids, Sampling(1.0, max_tokens=new, seed=len(made)), TASK, Observation(), ()))
    return made[:count]


def measure_engine(
    model: Any, renderer: Renderer, batch: int, chains: int, repeats: int, mixed: bool
) -> dict[str, Any]:
    engine = LocalEngine(Decoder(model), renderer, max_batch=batch)
    total = batch * 6 if mixed else batch

    async def run() -> list[dict[str, float]]:
        found = []
        for number in range(repeats + 1):
            engine.weights_changed(number + 1)
            asked = make_requests(total, chains, number, mixed)
            before = (engine.stats.decode_seconds, engine.stats.prefill_seconds, engine.stats.decode_steps)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            replies = await asyncio.gather(*(engine.generate(one) for one in asked))
            seconds = time.perf_counter() - begun
            tokens = sum(len(reply.ids) for reply in replies)
            steps = engine.stats.decode_steps - before[2]
            decode = engine.stats.decode_seconds - before[0]
            found.append({
                "tokens/s": tokens / seconds, "seconds": seconds, "decode": decode,
                "prefill": engine.stats.prefill_seconds - before[1], "ms a step": 1000 * decode / steps,
            })  # fmt: skip
        await engine.close()
        return found[1:]

    found = asyncio.run(run())
    middle = {key: statistics.median(run[key] for run in found) for key in found[0]}
    return {"batch": batch, "chains": chains, "mixed": mixed, **middle}


def make_samples(chains: int, mixed: bool) -> list[Any]:
    import numpy as np

    from practicum.training.batch import Sample

    rng, made = random.Random(1), []
    for request in make_requests(256, chains, 1, mixed):
        ids = (*request.ids, *(rng.randrange(10, 49000) for _ in range(request.sampling.max_tokens)))
        mask = np.arange(len(ids)) >= len(request.ids)
        paint = mask.astype(np.float32)
        made.append(Sample(ids, mask, paint, paint * np.float32(rng.gauss(0, 1)), np.full(len(ids), -10.8, np.float32)))
    return made


def measure_learner(dtype: torch.dtype, chains: int, mixed: bool, repeats: int) -> dict[str, Any]:
    from practicum.training.batch import Cut
    from practicum.training.learner import Learner, Objective, OptimizerSettings

    decoder = Decoder(make_model(dtype))
    decoder.autocast = dtype == torch.float32
    learner = Learner(decoder, OptimizerSettings(), Cut(16384))
    samples = make_samples(chains, mixed)
    tokens = sum(len(sample.ids) for sample in samples)
    trained = float(sum(int(sample.mask.sum()) for sample in samples))
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        learner.update(samples, trained, Objective(), 1e-5)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    seconds = statistics.median(times[1:])
    return {
        "learner": str(dtype), "chains": chains, "mixed": mixed, "tokens/s": tokens / seconds, "seconds": seconds,
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30,
    }  # fmt: skip


def measure_plain(repeats: int) -> dict[str, Any]:
    """transformers' own forward and backward: 256 sequences of 328 tokens, 64 at a time, fused AdamW."""
    model = make_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(10, 49000, (256, PROMPT + NEW), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for part in ids.split(64):
            logits = model(part).logits[:, PROMPT - 1 : -1].float()
            logprobs = logits.gather(-1, part[:, PROMPT:, None])[..., 0] - logits.logsumexp(-1)
            (-logprobs.sum() / (256 * NEW)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    seconds = statistics.median(times[1:])
    peak = torch.cuda.max_memory_allocated() / 2**30
    return {"learner": "plain transformers", "tokens/s": ids.numel() / seconds, "seconds": seconds, "peak GiB": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="engine,learner")
    parser.add_argument("--batches", default="64,256,1024")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU.")
    tokenizer = loader.load_tokenizer("tiny")
    renderer = Renderer(tokenizer)
    renderer.end_ids = ()
    rows: list[dict[str, Any]] = []
    if "engine" in args.only.split(","):
        model = make_model()
        for batch in map(int, args.batches.split(",")):
            for chains, mixed in ((1, False), (8, False), (8, True)):
                row = measure_engine(model, renderer, batch, chains, args.repeats, mixed)
                rows.append(row)
                kind = "mixed" if mixed else "equal"
                print(
                    f"batch {batch:>5}  chains {chains}  {kind}: {row['tokens/s']:>9,.0f} tokens/s"
                    f"  {row['ms a step']:.2f} ms a step, prefill {row['prefill']:.3f} s of {row['seconds']:.3f}",
                    flush=True,
                )
    if "learner" in args.only.split(","):
        found = [measure_plain(args.repeats)]
        half, full = torch.bfloat16, torch.float32
        for dtype, chains, mixed in ((half, 1, False), (half, 1, True), (half, 8, False), (full, 8, False)):
            found.append(measure_learner(dtype, chains, mixed, args.repeats))
        for row in found:
            print(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True
            )
        rows += found
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; peak {peak:.1f} GiB")
    if args.out:
        args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
