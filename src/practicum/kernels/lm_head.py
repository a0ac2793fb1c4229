"""From hidden states to the log-probs of wanted tokens, and back; the logits exist only a piece at a time."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOGITS = 1 << 27
"""Logits held at once (predictions × vocabulary)."""
VOCABULARY = 4096
"""Logits that a program looks at together."""


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight.T in float32, whatever they are in: a logit of 20 in bfloat16 is off by up to 0.06."""
    if x.dtype == torch.float32 or not x.is_cuda:
        return x.float() @ weight.t().float()
    return torch.mm(x, weight.t(), out_dtype=torch.float32)


@triton.jit
def _read(logits, targets, temperatures, logprobs, entropies, sums, size, stride, block: tl.constexpr) -> None:
    row = tl.program_id(0)
    source = logits + row.to(tl.int64) * stride
    place = tl.arange(0, block)
    cool = 1.0 / tl.load(temperatures + row)
    peaks = tl.full((block,), -1e30, tl.float32)
    totals = tl.zeros((block,), tl.float32)
    means = tl.zeros((block,), tl.float32)
    for at in range(0, size, block):
        inside = at + place < size
        value = tl.load(source + at + place, mask=inside, other=-1e30).to(tl.float32) * cool
        higher = tl.maximum(peaks, value)
        fade, weight = tl.exp(peaks - higher), tl.where(inside, tl.exp(value - higher), 0.0)
        totals = totals * fade + weight
        means = means * fade + tl.where(inside, weight * value, 0.0)
        peaks = higher
    peak = tl.max(peaks, 0)
    share = tl.exp(peaks - peak)
    total = tl.sum(totals * share, 0)
    whole = peak + tl.log(total)
    wanted = tl.load(source + tl.load(targets + row)).to(tl.float32) * cool
    tl.store(logprobs + row, wanted - whole)
    tl.store(entropies + row, whole - tl.sum(means * share, 0) / total)
    tl.store(sums + row, whole)


@triton.jit
def _slope(
    logits, targets, temperatures, entropies, sums, by_logprob, by_entropy, out, size, stride, block: tl.constexpr
) -> None:
    row = tl.program_id(0)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < size
    at = row.to(tl.int64) * stride + place
    cool = 1.0 / tl.load(temperatures + row)
    logprob = tl.load(logits + at, mask=inside, other=0.0).to(tl.float32) * cool - tl.load(sums + row)
    share = tl.exp(logprob)
    steep, spread = tl.load(by_logprob + row), tl.load(by_entropy + row)
    found = steep * (tl.where(place == tl.load(targets + row), 1.0, 0.0) - share)
    found -= spread * share * (logprob + tl.load(entropies + row))
    tl.store(out + at, (found * cool).to(out.dtype.element_ty), mask=inside)


class HeadLogprobs(torch.autograd.Function):
    """(log-probs, entropies) [P] of targets given hidden states [P, E] and a head's weight [V, E], at temperatures.

    Only the sums are kept: the backward pass computes the logits again, a piece at a time.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        logprobs, entropies, sums = (torch.empty(count, dtype=torch.float32, device=hidden.device) for _ in range(3))
        for part in pieces(count, weight.shape[0]):
            logits = wide_product(hidden[part], weight)
            _read[(len(logits),)](
                logits, targets[part], temperatures[part], logprobs[part], entropies[part], sums[part], logits.shape[1],
                logits.stride(0), VOCABULARY, num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(hidden, weight, targets, temperatures, entropies, sums)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, by_logprob: Tensor, by_entropy: Tensor) -> tuple[Any, ...]:
        hidden, weight, targets, temperatures, entropies, sums = ctx.saved_tensors
        by_logprob, by_entropy = by_logprob.contiguous(), by_entropy.contiguous()
        by_hidden = torch.empty_like(hidden)
        learning = ctx.needs_input_grad[1]
        by_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if learning else None
        for part in pieces(hidden.shape[0], weight.shape[0]):
            logits = wide_product(hidden[part], weight)
            slopes = torch.empty_like(logits, dtype=hidden.dtype)
            _slope[(len(logits), triton.cdiv(logits.shape[1], VOCABULARY))](
                logits, targets[part], temperatures[part], entropies[part], sums[part], by_logprob[part],
                by_entropy[part], slopes, logits.shape[1], logits.stride(0), VOCABULARY, num_warps=8,
            )  # fmt: skip
            torch.mm(slopes, weight, out=by_hidden[part])
            if by_weight is not None:
                by_weight += slopes.t() @ hidden[part]
        return by_hidden, None if by_weight is None else by_weight.to(weight.dtype), None, None


def pieces(count: int, vocabulary: int) -> list[slice]:
    step = max(1, LOGITS // vocabulary)
    return [slice(start, start + step) for start in range(0, count, step)]
