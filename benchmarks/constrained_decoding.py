"""What it costs per token to hold replies to a form: without one, a regular expression, a JSON schema.

    python benchmarks/constrained_decoding.py [--models tiny] [--device cpu] [--batch 64] [--repeats 4] [--out FILE]
    python benchmarks/constrained_decoding.py --models SmolLM2-135M,Qwen2.5-1.5B --tokenizer FOLDER

`tiny`, a model folder, or random weights of a shape of gpu_session.py, with the tokenizer of `tiny` or of a folder: the
masks of a larger vocabulary take longer. Every form has an engine of its own, which is warmed up once; then the forms
take turns. Every reply has `--tokens` tokens. Medians, per token, of the clock and of processor time, which is what a
loaded machine can still measure: that of the engine's thread in the runner, and that of all threads, those that compute
masks included. FILE is complete after every model.
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

RECORD = {
    "type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "n", "ok"],
}  # fmt: skip
SCHEMA = {"type": "array", "items": RECORD, "minItems": 500}
TASK = Task("b", "bench", "train")
SHAPES = {"SmolLM2-135M": {"model_type": "llama", **SMOLLM2}, **QWEN_SHAPES}
FORMS: dict[str, dict[str, Any] | None] = {
    "free": None,
    "regex": {"type": "regex", "regex": r"([a-z 0-9]*\n){500,}"},
    "schema": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
}
"""No reply may end before it has all its tokens, so that the forms have batches of the same size. Lengths in characters
(`{2000,}`, `minLength`) would make every mask a new one: of SmolLM2's tokens that takes 1.6 to 27 times as long."""


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
        """Microseconds per token: processor time of the engine's thread and of all, the clock; the clock per step."""
        requests = [
            Request(tuple(range(30, 60)), Sampling(seed=seed, max_tokens=tokens), TASK, Observation(), (),
                    response_format=self.form)
            for seed in range(self.batch)
        ]  # fmt: skip

        async def run() -> list[Generation]:
            return list(await asyncio.gather(*map(self.engine.generate, requests)))

        processor = time.process_time()
        self.spent, steps, started = 0.0, self.engine.stats.decode_steps, time.perf_counter()
        replies = self.loop.run_until_complete(run())
        seconds, processor = time.perf_counter() - started, time.process_time() - processor
        count = sum(len(reply.ids) for reply in replies)
        if count != self.batch * tokens:
            raise SystemExit(f"{self.batch} replies have {count} tokens")
        steps = self.engine.stats.decode_steps - steps
        return tuple(1e6 * value for value in (self.spent / count, processor / count, seconds / count, seconds / steps))

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
    keys = ("thread us/token", "processor us/token", "us/token", "us/step")
    return {
        name: {
            **dict(zip(keys, values, strict=True)),
            "clock against free": ratios(rows[name], rows["free"], 2),
            "processor against free": ratios(rows[name], rows["free"], 1),
        }
        for name, values in medians.items()
    }


def ratios(rows: Sequence[Sequence[float]], others: Sequence[Sequence[float]], column: int) -> list[float]:
    """The ratios of pairs of runs that followed one another."""
    return [own[column] / other[column] for own, other in zip(rows, others, strict=True)]


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
            clock, processor = (statistics.median(row[f"{what} against free"]) for what in ("clock", "processor"))
            print(
                f"{name} {form:7} {row['thread us/token']:7.1f} µs per token of the engine's thread, "
                f"{row['processor us/token']:7.1f} of all threads, {row['us/token']:7.1f} of the clock "
                f"({row['us/step']:8.1f} a step); against free: clock {clock:.3f}, processor {processor:.3f}",
                flush=True,
            )
        if args.out is not None:
            args.out.write_text(json.dumps(results, indent=1) + "\n")
        if str(device.device).startswith("cuda"):
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
