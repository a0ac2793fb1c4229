"""Log-probs of target tokens from hidden states, and their gradient; logits exist only for a chunk at a time."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from practicum.kernels.token_masks import allowed_tokens

MAX_LOGITS = 1 << 27
"""Logits held at once (predictions × vocabulary)."""
LOGITS_PER_BLOCK = 4096
"""Logits that a program processes at a time."""


def float32_matmul(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """x @ weight.T in float32, whatever their dtype: a logit of 20 in bfloat16 is off by up to 0.06.

    `out`: a float32 tensor that takes the result.
    """
    if x.dtype == torch.float32 or not x.is_cuda:
        return torch.matmul(x.float(), weight.t().float(), out=out)
    if out is None:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)


@triton.jit
def _logprobs(
    logits, targets, temperatures, logprobs, entropies, logsumexps, mask_rows, mask_table, num_words, size, stride,
    block: tl.constexpr, masked: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    source = logits + row.to(tl.int64) * stride
    column = tl.arange(0, block)
    scale = 1.0 / tl.load(temperatures + row)
    m = tl.full((block,), -1e30, tl.float32)
    l = tl.zeros((block,), tl.float32)
    weighted = tl.zeros((block,), tl.float32)
    for start in range(0, size, block):
        inside = start + column < size
        value = tl.load(source + start + column, mask=inside, other=-1e30).to(tl.float32) * scale
        if masked:
            inside &= allowed_tokens(mask_table, tl.load(mask_rows + row), start + column, num_words)
            value = tl.where(inside, value, -1e30)
        m_new = tl.maximum(m, value)
        alpha, weight = tl.exp(m - m_new), tl.where(inside, tl.exp(value - m_new), 0.0)
        l = l * alpha + weight
        weighted = weighted * alpha + tl.where(inside, weight * value, 0.0)
        m = m_new
    row_max = tl.max(m, 0)
    share = tl.exp(m - row_max)
    total = tl.sum(l * share, 0)
    logsumexp = row_max + tl.log(total)
    target = tl.load(source + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(logprobs + row, target - logsumexp)
    tl.store(entropies + row, logsumexp - tl.sum(weighted * share, 0) / total)
    tl.store(logsumexps + row, logsumexp)


@triton.jit
def _grad_logits(
    logits, targets, temperatures, entropies, logsumexps, grad_logprob, grad_entropy, out, mask_rows, mask_table,
    num_words, size, stride, block: tl.constexpr, masked: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    offset = row.to(tl.int64) * stride + column
    scale = 1.0 / tl.load(temperatures + row)
    logprob = tl.load(logits + offset, mask=inside, other=0.0).to(tl.float32) * scale - tl.load(logsumexps + row)
    prob = tl.exp(logprob)
    if masked:
        allowed = allowed_tokens(mask_table, tl.load(mask_rows + row), column, num_words)
        prob, logprob = tl.where(allowed, prob, 0.0), tl.where(allowed, logprob, 0.0)
    grad, grad_h = tl.load(grad_logprob + row), tl.load(grad_entropy + row)
    result = grad * (tl.where(column == tl.load(targets + row), 1.0, 0.0) - prob)
    result -= grad_h * prob * (logprob + tl.load(entropies + row))
    tl.store(out + offset, (result * scale).to(out.dtype.element_ty), mask=inside)


class HeadLogprobs(torch.autograd.Function):
    """(log-probs, entropies) [P] of targets given hidden states [P, E] and a head's weight [V, E], at temperatures.

    Only per-token sums are saved: the backward pass computes the logits again, a chunk at a time. `mask_rows` [P] and
    `mask_table` [U, words] say which tokens could be sampled (`kernels/token_masks.py`); None: all.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        mask_rows: Tensor | None = None,
        mask_table: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        logprobs, entropies, logsumexps = (
            torch.empty(count, dtype=torch.float32, device=hidden.device) for _ in range(3)
        )
        for part in chunks(count, weight.shape[0]):
            logits = float32_matmul(hidden[part], weight)
            _logprobs[(len(logits),)](
                logits, targets[part], temperatures[part], logprobs[part], entropies[part], logsumexps[part],
                *_mask_arguments(mask_rows, mask_table, part, targets), logits.shape[1], logits.stride(0),
                LOGITS_PER_BLOCK, mask_rows is not None, num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(hidden, weight, targets, temperatures, entropies, logsumexps, mask_rows, mask_table)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad_logprob: Tensor, grad_entropy: Tensor) -> tuple[Any, ...]:
        hidden, weight, targets, temperatures, entropies, logsumexps, mask_rows, mask_table = ctx.saved_tensors
        grad_logprob, grad_entropy = grad_logprob.contiguous(), grad_entropy.contiguous()
        grad_hidden = torch.empty_like(hidden)
        need_weight = ctx.needs_input_grad[1]
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if need_weight else None
        for part in chunks(hidden.shape[0], weight.shape[0]):
            logits = float32_matmul(hidden[part], weight)
            grad_logits = torch.empty_like(logits, dtype=hidden.dtype)
            _grad_logits[(len(logits), triton.cdiv(logits.shape[1], LOGITS_PER_BLOCK))](
                logits, targets[part], temperatures[part], entropies[part], logsumexps[part], grad_logprob[part],
                grad_entropy[part], grad_logits, *_mask_arguments(mask_rows, mask_table, part, targets),
                logits.shape[1], logits.stride(0), LOGITS_PER_BLOCK, mask_rows is not None, num_warps=8,
            )  # fmt: skip
            torch.mm(grad_logits, weight, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight += grad_logits.t() @ hidden[part]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None


def _mask_arguments(
    mask_rows: Tensor | None, mask_table: Tensor | None, part: slice, unused: Tensor
) -> tuple[Tensor, Tensor, int]:
    """The masks of a chunk as arguments of a kernel; without masks, any tensor is passed and not read."""
    if mask_rows is None or mask_table is None:
        return unused, unused, 0
    return mask_rows[part], mask_table, mask_table.shape[1]


def chunks(count: int, vocabulary: int) -> list[slice]:
    """Slices of predictions whose logits fit into `MAX_LOGITS`."""
    step = max(1, MAX_LOGITS // vocabulary)
    return [slice(start, start + step) for start in range(0, count, step)]
