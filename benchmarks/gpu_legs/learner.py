"""Learner: tokens per second of an update, beside transformers' own forward and backward."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import numpy as np
import torch

from gpu_legs.common import Row, Size, forget_peak, gib, make_model, make_requests, peak_bytes, synchronise
from practicum.models.decoder import Decoder
from practicum.training.learner import Learner, OptimizerSettings
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.objective import Objective


def make_samples(size: Size, chains: int, mixed: bool) -> list[Any]:
    rng = random.Random(0)
    samples = []
    for request in make_requests(size, size.tasks * size.chains, chains, 1, mixed):
        most = size.shape["vocab_size"] - 100
        ids = (*request.ids, *(rng.randrange(10, most) for _ in range(request.sampling.max_tokens)))
        mask = np.arange(len(ids)) >= len(request.ids)
        ones = mask.astype(np.float32)
        samples.append(
            Sample(ids, mask, ones, ones * np.float32(rng.gauss(0, 1)), np.full(len(ids), -10.8, np.float32))
        )
    return samples


def flops(size: Size, parameters: int, tokens: int, computed: int) -> float:
    """FLOPs of forward and backward: 6 per weight and token, and 12 · layers · hidden per pair of attending tokens."""
    attention = 12 * size.shape["num_hidden_layers"] * size.shape["hidden_size"] * tokens * computed / 2
    return 6.0 * parameters * tokens + attention


def measure(size: Size, chains: int, mixed: bool) -> Row:
    """Updates with bfloat16 weights and float32 master weights; in the last case samples share their prompts."""
    forget_peak(size)
    decoder = Decoder(make_model(size))
    learner = Learner(decoder, OptimizerSettings(), MicroBatchLimits(16384))
    samples = make_samples(size, chains, mixed)
    tokens = sum(len(sample.ids) for sample in samples)
    trained = float(sum(int(sample.mask.sum()) for sample in samples))
    times = []
    for _ in range(size.repeats + 1):
        synchronise(size)
        started = time.perf_counter()
        learner.update(samples, trained, Objective(entropy_coeff=0.0, kl_loss_coef=0.0), 1e-5)
        synchronise(size)
        times.append(time.perf_counter() - started)
    seconds = statistics.median(times[1:])
    count = sum(parameter.numel() for parameter in decoder.parameters())
    work = flops(size, count, tokens, tokens // len(samples))
    return {
        "learner": "practicum", "chains": chains, "mixed": mixed, "tokens/s": tokens / seconds, "seconds": seconds,
        "model TFLOP/s": work / seconds / 1e12, "peak GiB": gib(peak_bytes(size)),
    }  # fmt: skip


def measure_plain(size: Size) -> Row:
    """transformers' own forward and backward: equal sequences, 64 at a time, fused AdamW."""
    forget_peak(size)
    model = make_model(size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    count, prompt = size.tasks * size.chains, size.prompt
    ids = torch.randint(10, size.shape["vocab_size"] - 100, (count, prompt + size.new), device=size.device)
    times = []
    for _ in range(size.repeats + 1):
        synchronise(size)
        started = time.perf_counter()
        for part in ids.split(64):
            logits = model(part).logits[:, prompt - 1 : -1].float()
            logprobs = logits.gather(-1, part[:, prompt:, None])[..., 0] - logits.logsumexp(-1)
            (-logprobs.sum() / (count * size.new)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronise(size)
        times.append(time.perf_counter() - started)
    seconds = statistics.median(times[1:])
    parameters = sum(parameter.numel() for parameter in model.parameters())
    work = flops(size, parameters, ids.numel(), ids.shape[1])
    return {
        "learner": "plain transformers", "tokens/s": ids.numel() / seconds, "seconds": seconds,
        "model TFLOP/s": work / seconds / 1e12, "peak GiB": gib(peak_bytes(size)),
    }  # fmt: skip


def leg(size: Size) -> list[Row]:
    rows = [measure_plain(size)]
    for chains, mixed in ((1, False), (1, True), (size.chains, False)):
        rows.append(measure(size, chains, mixed))
    for row in rows:
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    return rows
