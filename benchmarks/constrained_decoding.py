"""What it costs per token to hold replies to a form: without one, a regular expression, a JSON schema.

    python benchmarks/constrained_decoding.py [--models tiny] [--device cpu] [--batch 64] [--repeats 4] [--out FILE]
    python benchmarks/constrained_decoding.py --models SmolLM2-135M,Qwen2.5-1.5B --tokenizer FOLDER

`tiny`, a model folder, or random weights of a shape of gpu_session.py, with the tokenizer of `tiny` or of a folder: the
masks of a larger vocabulary take longer. Every form has an engine of its own, which is warmed up once; then the forms
take turns. Every reply has `--tokens` tokens. Medians of the clock per token and of the processor time per token of the
engine's thread, which is what a loaded machine can still measure: on a CPU the masks are computed by another thread
beside it. FILE is complete after every model.
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

from gpu_legs import needs

needs.prepare()
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

TEXT = {"type": "string", "minLength": 2000}
SCHEMA = {"type": "object", "properties": {"name": TEXT, "n": {"type": "integer"}}, "required": ["name", "n"]}
TASK = Task("b", "bench", "train")
SHAPES = {"SmolLM2-135M": {"model_type": "llama", **SMOLLM2}, **QWEN_SHAPES}
FORMS: dict[str, dict[str, Any] | None] = {
    "free": None,
    "regex": {"type": "regex", "regex": "([a-z ]|[0-9]){2000,}"},
    "schema": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}
"""No reply may end before it has all its tokens, so that the forms have batches of the same size."""


class Case:
    """An engine whose requests have one form."""

    def __init__(self, decoder: Decoder, renderer: Renderer, form: dict[str, Any] | None, batch: int) -> None:
        self.engine = LocalEngine(decoder, renderer, max_batch=batch)
        self.form, self.batch, self.loop = form, batch, asyncio.new_event_loop()
        self.spent = 0.0
        decode = self.engine.runner.decode

        def timed(running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
            started = time.thread_time()
            try:
                return decode(running, end_ids)
            finally:
                self.spent += time.thread_time() - started

        self.engine.runner.decode = timed  # type: ignore[method-assign]

    def measure(self, tokens: int) -> Sequence[float]:
        """Microseconds per token of the engine's thread in the runner and of the clock, and per step of the clock."""
        requests = [
            Request(tuple(range(30, 60)), Sampling(seed=seed, max_tokens=tokens), TASK, Observation(), (),
                    response_format=self.form)
            for seed in range(self.batch)
        ]  # fmt: skip

        async def run() -> list[Generation]:
            return list(await asyncio.gather(*map(self.engine.generate, requests)))

        self.spent, steps, started = 0.0, self.engine.stats.decode_steps, time.perf_counter()
        replies = self.loop.run_until_complete(run())
        seconds, count = time.perf_counter() - started, sum(len(reply.ids) for reply in replies)
        if count != self.batch * tokens:
            raise SystemExit(f"{self.batch} replies have {count} tokens")
        steps = self.engine.stats.decode_steps - steps
        return self.spent / count * 1e6, seconds / count * 1e6, seconds / steps * 1e6

    def close(self) -> None:
        self.loop.run_until_complete(self.engine.close())
        self.loop.close()


def load(name: str, device: loader.Device, tokenizer: str) -> tuple[Any, Renderer]:
    """The model of a name, and a renderer whose replies never end by themselves."""
    if name in SHAPES:
        size = Size(device=str(device.device), dtype=device.dtype or torch.float32)
        loaded = loader.LoadedModel(make_wide_model(SHAPES[name], size), loader.load_tokenizer(tokenizer), name)
    else:
        loaded = loader.load(name, device.dtype, device.device)
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    return loaded.model, renderer


def compare(model: Any, renderer: Renderer, args: argparse.Namespace) -> dict[str, Any]:
    """The medians of the forms, and each one's ratio to replies without a form."""
    decoder = Decoder(model)
    free = Renderer(renderer.tokenizer, None, renderer.end_ids)
    free.end_ids = ()
    cases = {name: Case(decoder, renderer if form else free, form, args.batch) for name, form in FORMS.items()}
    rows: dict[str, list[Sequence[float]]] = {name: [] for name in FORMS}
    for repeat in range(args.repeats + 1):  # the first one builds what is built once
        for name, case in cases.items():
            figures = case.measure(args.tokens)
            if repeat:
                rows[name].append(figures)
    for case in cases.values():
        case.close()
    medians = {name: [statistics.median(column) for column in zip(*each, strict=True)] for name, each in rows.items()}
    pairs = {
        name: [own[1] / other[1] for own, other in zip(each, rows["free"], strict=True)] for name, each in rows.items()
    }
    keys = ("thread us/token", "us/token", "us/step")
    return {
        name: {**dict(zip(keys, values, strict=True)), "against free": statistics.median(pairs[name]),
               "ratios": pairs[name]}
        for name, values in medians.items()
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="tiny")
    parser.add_argument("--tokenizer", default="tiny", help="of random weights: a folder, or tiny")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = loader.resolve_device(args.device, "auto")
    results: dict[str, Any] = {"arguments": {key: str(value) for key, value in vars(args).items()}}
    for name in args.models.split(","):
        results[name] = compare(*load(name, device, args.tokenizer), args)
        for form, row in results[name].items():
            print(
                f"{name} {form:7} {row['thread us/token']:8.1f} µs per token of the engine's thread, "
                f"{row['us/token']:8.1f} of the clock, {row['us/step']:8.1f} a step; {row['against free']:.3f} of free",
                flush=True,
            )
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
        if str(device.device).startswith("cuda"):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
