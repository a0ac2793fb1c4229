"""What it costs per token to hold replies to a form: without one, a regular expression, a JSON schema.

    python benchmarks/constrained_decoding.py [--model tiny] [--device cpu] [--batch 64] [--repeats 4] [--out FILE]
    python benchmarks/constrained_decoding.py --model Qwen2.5-1.5B     random weights of a shape of gpu_session.py

The processor time of the engine's thread per token is what a loaded machine can still measure: on a CPU the masks are
computed by another thread beside it. Wall time is printed per token and per decode step: on a GPU a step with fewer
requests takes as long, and replies of one form end earlier than those of another. Medians; the cases take turns.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gpu_legs.common import SMOLLM2, Size, make_wide_model
from gpu_session import SHAPES as QWEN_SHAPES

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.local.runner import DecodeOutput, RunningRequest
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.task import Task

TEXT = {"type": "string", "minLength": 100, "maxLength": 400}
SCHEMA = {"type": "object", "properties": {"name": TEXT, "n": {"type": "integer"}}, "required": ["name", "n"]}
TASK = Task("b", "bench", "train")
SHAPES = {"SmolLM2-135M": {"model_type": "llama", **SMOLLM2}, **QWEN_SHAPES}
FORMS: dict[str, dict[str, Any] | None] = {
    "free": None,
    "regex": {"type": "regex", "regex": "([a-z ]|[0-9])*"},
    "schema": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}


def measure(
    decoder: Decoder, renderer: Renderer, form: dict[str, Any] | None, batch: int, tokens: int
) -> Sequence[float]:
    """Microseconds per token of the engine's thread and of the clock, and microseconds per step of the clock."""
    engine = LocalEngine(decoder, renderer, max_batch=batch)
    decode, spent, rows = engine.runner.decode, 0.0, 0

    def timed(running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        nonlocal spent, rows
        started = time.thread_time()
        output = decode(running, end_ids)
        spent += time.thread_time() - started
        rows += len(output.tokens)
        return output

    engine.runner.decode = timed  # type: ignore[method-assign]
    requests = [
        Request(tuple(range(30, 60)), Sampling(seed=seed, max_tokens=tokens), TASK, Observation(),
                (), response_format=form)
        for seed in range(batch)
    ]  # fmt: skip

    async def run() -> list[Generation]:
        try:
            return list(await asyncio.gather(*map(engine.generate, requests)))
        finally:
            await engine.close()

    started = time.perf_counter()
    count = sum(len(reply.ids) for reply in asyncio.run(run()))
    seconds, steps = time.perf_counter() - started, engine.settings.steps_per_decode if form is None else 1
    return spent / (rows * steps) * 1e6, seconds / count * 1e6, seconds / engine.stats.decode_steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = loader.resolve_device(args.device, "auto")
    if args.model in SHAPES:
        size = Size(device=str(device.device), dtype=device.dtype or torch.float32)
        wide = make_wide_model(SHAPES[args.model], size)
        loaded = loader.LoadedModel(wide, loader.load_tokenizer("tiny"), args.model)
    elif args.model == "tiny" and args.device == "cpu":
        loaded = loader.load_tiny(0)
    else:
        loaded = loader.load(args.model, device.dtype, device.device)
    decoder, renderer = Decoder(loaded.model), Renderer(loaded.tokenizer, None, loaded.end_ids)
    seconds_by_form: dict[str, list[Sequence[float]]] = {name: [] for name in FORMS}
    for repeat in range(args.repeats + 1):  # the first one builds what is built once
        for name, form in FORMS.items():
            figures = measure(decoder, renderer, form, args.batch, args.tokens)
            if repeat:
                seconds_by_form[name].append(figures)
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in seconds_by_form.items()
    }
    for name, (thread, wall, step) in medians.items():
        more = ", ".join(f"{a / b - 1:+.1%}" for a, b in zip(medians[name], medians["free"], strict=True))
        print(
            f"{name:7} {thread:8.1f} µs per token of the engine's thread, {wall:8.1f} of the clock, "
            f"{step:8.1f} per step of the clock ({more} against free)"
        )
    if args.out is not None:
        args.out.write_text(
            json.dumps({"arguments": {k: str(v) for k, v in vars(args).items()}, **medians}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
