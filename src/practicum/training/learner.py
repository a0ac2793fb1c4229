"""The one learner: forward, loss, step. It knows no algorithm.

An algorithm has already turned trajectories into per-token weights and advantages. Every loss is a
weighted sum over tokens divided by a denominator counted over the whole batch beforehand, so the
gradient does not depend on how the batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.algorithms import kl, objectives
from practicum.errors import UserError
from practicum.models.decoder import Decoder, token_logprobs
from practicum.training.batch import Micro, Sample, micro_batches

LOGIT_ROWS = 4_000_000
"""Logits held at once (predictions × vocabulary): larger batches go through the head in pieces."""


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW and how its gradient is bounded."""

    lr: float = 1e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float = 1.0


@dataclass(frozen=True)
class Objective:
    """What is minimised: imitation (`ce`) or the policy gradient (`pg`), plus a KL to a reference.

    Tokens of `pg` carry advantages and the log-probs they were sampled with; `ce` ignores both.
    """

    kind: str = "pg"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    entropy_coeff: float = 0.0
    kl_coeff: float = 0.0
    kl_kind: str = "low_var_kl"

    def __post_init__(self) -> None:
        if self.kind not in ("pg", "ce"):
            raise ValueError(f"no objective '{self.kind}'")


class Learner:
    """Owns the optimizer over a decoder's weights; the engine reads the same weights."""

    def __init__(
        self,
        decoder: Decoder,
        settings: OptimizerSettings,
        token_budget: int = 4096,
        row_tokens: int = 512,
        threads: int | None = None,
    ) -> None:
        self.decoder = decoder
        self.settings = settings
        self.token_budget = token_budget
        self.row_tokens = row_tokens
        self.threads = threads or torch.get_num_threads()
        self.version = 0
        self.parameters = list(decoder.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
        )

    def update(
        self,
        samples: Sequence[Sample],
        denominator: float,
        objective: Objective,
        lr: float,
        reference: Sequence[Tensor] | None = None,
        tick: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """One optimizer step over a whole batch. Returns metrics; raises before stepping on a non-finite loss.

        `reference`, when given, holds the reference log-probs of each sample's predictions.
        """
        if objective.kl_coeff and reference is None:
            raise ValueError("a KL term needs the reference's log-probs")
        torch.set_num_threads(self.threads)
        if denominator <= 0:
            raise UserError("The batch has no token to train on.")
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals()
        for micro in micro_batches(samples, self.token_budget, self.row_tokens):
            self._accumulate(micro, denominator, objective, reference, totals)
            if tick is not None:
                tick()
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.grad_clip or math.inf))
        if not math.isfinite(norm) or not math.isfinite(totals.loss):
            raise FloatingPointError(f"the loss is {totals.loss} and its gradient norm {norm}: nothing was updated")
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.version += 1
        return {"actor/grad_norm": norm, "actor/lr": lr, **totals.metrics(objective.kind)}

    def _accumulate(
        self,
        micro: Micro,
        denominator: float,
        objective: Objective,
        reference: Sequence[Tensor] | None,
        totals: _Totals,
    ) -> None:
        """Backward through one micro-batch; the head's logits exist only a piece at a time."""
        micro = micro.to(self.decoder.device)
        hidden = self._hidden(micro)
        leaf = hidden.detach().requires_grad_()
        wanted = None if reference is None else _gather_reference(micro, reference).to(leaf.device)
        step = max(1, LOGIT_ROWS // self.decoder.shape.vocabulary)
        for start in range(0, len(leaf), step):
            part = slice(start, start + step)
            logits = self.decoder.logits(leaf[part])
            logprobs = token_logprobs(logits, micro.targets[part], micro.temperatures[part, None])
            losses, stats = _token_losses(objective, logprobs, logits, micro, part, wanted)
            loss = (losses * micro.weights[part]).sum() / denominator
            torch.autograd.backward(loss)
            totals.add(float(loss.detach()), stats)
        assert leaf.grad is not None
        torch.autograd.backward(hidden, leaf.grad)

    def _hidden(self, micro: Micro) -> Tensor:
        """Hidden states [P, E] at the tokens where predictions are made."""
        rows, width = micro.ids.shape
        shape = self.decoder.shape
        grouped = shape.heads != shape.kv_heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=micro.visible, enable_gqa=grouped
            )
            return mixed.transpose(1, 2).reshape(rows, width, shape.heads * shape.head_size)

        states = self.decoder.hidden(micro.ids, micro.positions, attend)
        return states.reshape(rows * width, -1)[micro.at]

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample]) -> list[Tensor]:
        """Log-probs of every sample's predictions, in the order of its tokens [one tensor a sample]."""
        torch.set_num_threads(self.threads)
        result: list[Tensor] = [torch.empty(0)] * len(samples)
        step = max(1, LOGIT_ROWS // self.decoder.shape.vocabulary)
        for cpu_micro in micro_batches(samples, self.token_budget, self.row_tokens):
            micro = cpu_micro.to(self.decoder.device)
            hidden = self._hidden(micro)
            pieces = [
                token_logprobs(
                    self.decoder.logits(hidden[start : start + step]),
                    micro.targets[start : start + step],
                    micro.temperatures[start : start + step, None],
                )
                for start in range(0, len(hidden), step)
            ]
            values, owners = torch.cat(pieces).cpu(), cpu_micro.sample_index
            for index in torch.unique(owners).tolist():
                result[index] = values[owners == index]
        return result


def _token_losses(
    objective: Objective, logprobs: Tensor, logits: Tensor, micro: Micro, part: slice, reference: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each prediction [P] and figures to sum up."""
    with torch.set_grad_enabled(objective.entropy_coeff != 0):
        shifted = (logits.float() / micro.temperatures[part, None]).log_softmax(-1)
        entropy = -(shifted.exp() * shifted).sum(-1)
    stats: dict[str, Tensor] = {"entropy": entropy.detach(), "logprob": logprobs.detach()}
    if objective.kind == "ce":
        return -logprobs, stats
    old = micro.sampling_logprobs[part]
    surrogate = objectives.ppo(
        logprobs, old, micro.advantages[part], objective.clip_low, objective.clip_high, objective.dual_clip
    )
    losses = surrogate.loss
    difference = (logprobs.detach() - old).abs()
    stats |= {
        "pg_loss": surrogate.loss.detach(),
        "clipped": surrogate.clipped.float(),
        "clipped_low": surrogate.clipped_low.float(),
        "ppo_kl": old - logprobs.detach(),
        "mismatch": difference,
        "mismatch_max": difference,
    }
    if objective.entropy_coeff:
        losses = losses - objective.entropy_coeff * entropy
    if reference is not None and objective.kl_coeff:
        distance = kl.penalty(logprobs, reference[part], objective.kl_kind)
        losses = losses + objective.kl_coeff * distance
        stats["kl_loss"] = distance.detach()
    return losses, stats


def _gather_reference(micro: Micro, reference: Sequence[Tensor]) -> Tensor:
    """Reference log-probs in the order of a micro-batch's predictions [P]."""
    owners = micro.sample_index.cpu()
    result = torch.empty(len(owners))
    for index in torch.unique(owners).tolist():
        result[owners == index] = reference[index]
    return result


class _Totals:
    """Sums over a batch, to become means once it is through."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.count = 0
        self.sums: dict[str, float] = {}
        self.largest = 0.0

    def add(self, loss: float, stats: dict[str, Tensor]) -> None:
        self.loss += loss
        self.count += len(stats["logprob"])
        for name, value in stats.items():
            if name == "mismatch_max":
                self.largest = max(self.largest, float(value.max()))
            else:
                self.sums[name] = self.sums.get(name, 0.0) + float(value.double().sum())

    def metrics(self, kind: str) -> dict[str, float]:
        mean = {name: value / self.count for name, value in self.sums.items()}
        found = {"actor/loss": self.loss, "actor/tokens": float(self.count), "actor/entropy": mean["entropy"]}
        if kind == "ce":
            return found | {"sft/perplexity": math.exp(min(50.0, -mean["logprob"]))}
        found |= {
            "actor/pg_loss": mean["pg_loss"],
            "actor/pg_clipfrac": mean["clipped"],
            "actor/pg_clipfrac_lower": mean["clipped_low"],
            "actor/ppo_kl": mean["ppo_kl"],
            "mismatch/logprob/mean": mean["mismatch"],
            "mismatch/logprob/max": self.largest,
        }
        if "kl_loss" in mean:
            found["actor/kl_loss"] = mean["kl_loss"]
        return found
