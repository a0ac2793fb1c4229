"""How far engine and learner differ where requests of a base model and of its LoRA adapters are one batch, by shape.

    python benchmarks/gpu_adapters.py --out FILE.json [--shapes SmolLM2-135M,Qwen2.5-7B]
    python benchmarks/gpu_adapters.py --tiny --out FILE.json      on a CPU

Random weights, bf16; the base model and two adapters (rank 8 with alpha 12, a scale that is no power of two, and rank
16 with alpha 32; neither factor is zero), 32 requests each of 200 prompt and 128 new tokens, twice with the same seeds.
Per policy: the mean and the largest difference between the log-probs that the engine reported and those that the
learner computes; `without`, the mean difference to those of the base model; and whether both runs gave the same tokens.
The file is complete after every shape.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_legs import needs

needs.prepare()
import torch
from gpu_legs.common import SMOLLM2, TINY, Size, forget_peak, gib, make_renderer, make_requests, make_wide_model
from gpu_legs.common import peak_bytes as peak
from gpu_session import SHAPES as QWEN_SHAPES
from gpu_session import mismatch

from practicum.engines.local.engine import LocalEngine
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.lora import LoRASettings, add_adapter

SHAPES: dict[str, dict[str, Any]] = {"SmolLM2-135M": {"model_type": "llama", **SMOLLM2}, **QWEN_SHAPES}
ADAPTERS = {"a": LoRASettings(8, 12.0), "b": LoRASettings(16, 32.0)}
REQUESTS = 32
FACTOR_DEVIATION = 0.02
"""Standard deviation of the factor that a new adapter has zeros in."""


def adapted(base: Any, settings: LoRASettings, seed: int) -> loader.LoadedModel:
    """A copy of the base model with an adapter that changes its replies."""
    loaded = add_adapter(
        loader.LoadedModel(copy.deepcopy(base), loader.load_tokenizer("tiny"), "random"), settings, seed
    )
    generator = torch.Generator(base.device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.adapter.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=FACTOR_DEVIATION, generator=generator)
    return loaded


def measure(size: Size, shape: dict[str, Any]) -> dict[str, Any]:
    """The differences per policy; "" is the base model."""
    forget_peak(size)
    base = make_wide_model(shape, size)
    models = {key: adapted(base, settings, seed) for seed, (key, settings) in enumerate(ADAPTERS.items(), 1)}
    policies = ["", *models]
    count = 2 if size.tiny else REQUESTS
    requests = [
        replace(request, adapter=policies[number % len(policies)])
        for number, request in enumerate(make_requests(size, count * len(policies), 1, 0, False))
    ]

    async def run() -> list[list[Any]]:
        engine = LocalEngine(Decoder(base), make_renderer(), max_batch=len(requests))
        for key, model in models.items():
            await engine.load_adapter(key, model.adapter)
        try:
            return [list(await asyncio.gather(*map(engine.generate, requests))) for _ in range(2)]
        finally:
            await engine.close()

    first, second = asyncio.run(run())
    rows: dict[str, Any] = {"same tokens twice": all(a.ids == b.ids for a, b in zip(first, second, strict=True))}
    for number, key in enumerate(policies):
        decoder = Decoder(models[key].model if key else base)
        step = len(policies)
        own = requests[number::step], second[number::step]
        rows[key or "base"] = mismatch(decoder, *own)
        if key:
            rows[key]["without"] = mismatch(Decoder(base), *own)["mean"]
    rows["different replies"] = len({tuple(reply.ids) for reply in second})
    return rows | {"peak GiB": gib(peak(size))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--tiny", action="store_true", help="one small shape on a CPU")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shapes = {"tiny": {"model_type": "llama", **TINY.shape}} if args.tiny else SHAPES
    results: dict[str, Any] = {}
    for name in ["tiny"] if args.tiny else args.shapes.split(","):
        results[name] = measure(TINY if args.tiny else Size(), shapes[name])
        print(f"{name}: {json.dumps(results[name])}", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
