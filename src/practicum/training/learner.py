"""The one learner: forward, loss, step. It knows no algorithm.

An algorithm has already turned trajectories into per-token weights and advantages. Every loss is a
weighted sum over tokens divided by a denominator counted over the whole batch beforehand, so the
gradient does not depend on how the batch is cut.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from practicum.algorithms import kl, losses
from practicum.errors import UserError, did_you_mean
from practicum.models import device
from practicum.models.decoder import Decoder, token_logprobs
from practicum.training import forward
from practicum.training.master_adamw import MasterAdamW
from practicum.training.micro_batches import MicroBatch, MicroBatchLimits, Sample, micro_batches

if TYPE_CHECKING:
    from practicum.kernels.cuda_graphs import Replays

PROBED = 4096
"""Weights looked at to see whether an update moved anything."""
UNMOVED_LIMIT = 3
SMALL = 512
"""Hidden size below which two threads do better on two pieces than on one product."""


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
    `policy_loss` says which surrogate: the clipped one (vanilla), GSPO's or CISPO's.
    """

    kind: str = "pg"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 3.0
    entropy_coeff: float = 0.0
    kl_coeff: float = 0.0
    kl_kind: str = "low_var_kl"
    policy_loss: str = "vanilla"

    def __post_init__(self) -> None:
        if self.kind not in ("pg", "ce"):
            raise ValueError(f"no objective '{self.kind}'")
        if self.policy_loss not in losses.POLICY_LOSSES:
            hint = did_you_mean(self.policy_loss, losses.POLICY_LOSSES)
            raise UserError(f"Unknown actor_rollout_ref.actor.policy_loss.loss_mode '{self.policy_loss}'.{hint}")
        kl.check(self.kl_kind)

    @property
    def by_sequence(self) -> bool:
        return self.kind == "pg" and self.policy_loss == "gspo"


class Learner:
    """Owns the optimizer over a decoder's weights; the engine reads the same weights."""

    def __init__(
        self,
        decoder: Decoder,
        settings: OptimizerSettings,
        limits: MicroBatchLimits | None = None,
        threads: int | None = None,
    ) -> None:
        self.decoder = decoder
        self.settings = settings
        self.limits = limits or MicroBatchLimits()
        self.threads = threads or torch.get_num_threads()
        self.version = 0
        self.parameters = list(decoder.parameters())
        self.optimizer = make_optimizer(self.parameters, settings)
        self._probe = [parameter for parameter in self.parameters if parameter.dim() == 2][-1]
        self._unmoved = 0
        if decoder.device.type == "cuda":
            device.steady_products()
        small = decoder.shape.hidden < SMALL and decoder.device.type == "cpu"
        self._twin = weight_sharing_copy(decoder) if small and self.threads > 1 else None
        self.replay = True
        """Whether a GPU may capture its passes; sizes of pieces are then rounded up to a multiple of `bucket`."""
        self.bucket = 2048
        self._captured: Replays | None = None

    def update(
        self,
        samples: Sequence[Sample],
        denominator: float,
        objective: Objective,
        lr: float,
        reference: Decoder | None = None,
        tick: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """One optimizer step over a whole batch. Returns metrics; raises before stepping on a non-finite loss."""
        if objective.kl_coeff and reference is None:
            raise ValueError("a KL term needs a reference")
        if denominator <= 0:
            raise UserError("The batch has no token to train on.")
        torch.set_num_threads(self.threads)
        self.optimizer.zero_grad(set_to_none=True)
        totals = _Totals()
        if self._twin is not None and not (self.decoder.dropout or self.decoder.autocast):
            # Two are in memory at once; what a small model keeps of a token is little.
            half = replace(self.limits, tokens=max(1, self.limits.tokens * 2 // 3))
            self._accumulate_on_two(list(micro_batches(samples, half)), denominator, objective, reference, totals, tick)
        else:
            replays = self._replays()
            bucket = 1 if replays is None else self.bucket
            for number, micro in enumerate(micro_batches(samples, self.limits, self.decoder.device, bucket)):
                with self._training_pass(number):
                    self._accumulate(self.decoder, micro, denominator, objective, reference, totals, replays)
                if isinstance(self.optimizer, MasterAdamW):
                    self.optimizer.gather()
                if tick is not None:
                    tick()
        before = self._probe.detach().flatten()[:PROBED].clone()
        norm = apply_gradient(self.optimizer, self.parameters, self.settings, lr, lambda: totals.loss)
        self._check_moved(before, lr * norm > 0)
        self.version += 1
        return {"actor/grad_norm": norm, "actor/lr": lr, **totals.metrics(objective.kind)}

    def _accumulate_on_two(
        self,
        pieces: Sequence[MicroBatch],
        denominator: float,
        objective: Objective,
        reference: Decoder | None,
        totals: _Totals,
        tick: Callable[[], None] | None,
    ) -> None:
        """Half of the pieces on a thread of its own, one core each: small products gain little from two.

        Who computes which piece is fixed beforehand, so the sum is the same to the bit whoever is faster.
        """
        assert self._twin is not None
        halves = balanced([len(piece.ids) for piece in pieces])
        sums = (_Totals(), _Totals())

        def work(which: int, decoder: Decoder) -> None:
            torch.set_num_threads(1)
            for number in halves[which]:
                self._accumulate(decoder, pieces[number], denominator, objective, reference, sums[which])
                if tick is not None:
                    tick()

        with ThreadPoolExecutor(1) as other:
            running = other.submit(work, 1, self._twin)
            try:
                work(0, self.decoder)
            finally:
                running.result()
                torch.set_num_threads(self.threads)
        for mine, theirs in zip(self.parameters, self._twin.parameters(), strict=True):
            if theirs.grad is not None:
                mine.grad = theirs.grad if mine.grad is None else mine.grad.add_(theirs.grad)
                theirs.grad = None
        for part in sums:
            totals.merge(part)

    def _replays(self) -> Replays | None:
        """The layers as CUDA graphs, where they can be: on a GPU, with nothing drawn or computed again on the way."""
        decoder = self.decoder
        if not (self.replay and decoder.device.type == "cuda" and isinstance(self.optimizer, MasterAdamW)):
            return None
        if decoder.dropout or decoder.checkpointing or decoder.autocast:
            return None
        if self._captured is None:
            from practicum.kernels.cuda_graphs import Replays  # needs Triton

            self._captured = Replays(decoder)
        return self._captured

    @contextlib.contextmanager
    def _training_pass(self, number: int) -> Iterator[None]:
        """Mixed precision and dropout, where they are wanted; what is dropped depends on the update's number alone."""
        device, decoder = self.decoder.device.type, self.decoder
        with torch.autocast(device, torch.bfloat16, enabled=decoder.autocast):
            if not decoder.dropout:
                yield
                return
            with torch.random.fork_rng(devices=[decoder.device] if device == "cuda" else []):
                torch.manual_seed(self.version * 1_000_003 + number)
                decoder.model.train()
                try:
                    yield
                finally:
                    decoder.model.eval()

    def _accumulate(
        self,
        decoder: Decoder,
        micro: MicroBatch,
        denominator: float,
        objective: Objective,
        reference: Decoder | None,
        totals: _Totals,
        replays: Replays | None = None,
    ) -> None:
        """Backward through one micro-batch; the head's logits exist only a piece at a time."""
        hidden = forward.hidden_at(decoder, micro, replays)
        with torch.no_grad():
            other = forward.hidden_at(reference, micro) if reference is not None else None
        if forward.fused_head(decoder) and not (reference is not None and objective.kl_kind.startswith("full")):
            logprobs, entropies = forward.read_off(decoder, hidden, micro)
            ratios = self._ratios(objective, logprobs.detach(), micro)
            losses, stats = _token_losses(objective, logprobs, entropies, micro, slice(None), ratios)
            if reference is not None and other is not None:
                with torch.no_grad():
                    theirs = forward.read_off(reference, other, micro)[0]
                    stats["kl"] = kl.penalty(logprobs, theirs, "low_var_kl")
                if objective.kl_coeff:
                    losses = _with_distance(objective, losses, kl.penalty(logprobs, theirs, objective.kl_kind), stats)
            loss = (losses * micro.weights).sum() / denominator
            torch.autograd.backward(loss)
            totals.add(loss.detach(), stats)
            return
        leaf = hidden.detach().requires_grad_()
        with torch.no_grad():
            known = forward.head_logprobs(decoder, leaf, micro) if objective.by_sequence else leaf
            ratios = self._ratios(objective, known, micro)
        for part in forward.pieces(len(leaf), decoder.shape.vocabulary):
            logits = decoder.logits(leaf[part])
            read = _read_logits(objective, logits, micro, part)
            losses, stats = _token_losses(objective, *read, micro, part, None if ratios is None else ratios[part])
            if reference is not None and other is not None:
                with torch.no_grad():
                    theirs = reference.logits(other[part])
                    stats["kl"] = forward.divergence(logits, theirs, micro, part, "low_var_kl")
                if objective.kl_coeff:
                    distance = forward.divergence(logits, theirs, micro, part, objective.kl_kind)
                    losses = _with_distance(objective, losses, distance, stats)
            loss = (losses * micro.weights[part]).sum() / denominator
            torch.autograd.backward(loss)
            totals.add(loss.detach(), stats)
        assert leaf.grad is not None
        torch.autograd.backward(hidden, leaf.grad)

    def _ratios(self, objective: Objective, logprobs: Tensor, micro: MicroBatch) -> Tensor | None:
        """A sequence's ratio, where the loss is one of sequences, before any gradient."""
        if not objective.by_sequence:
            return None
        return losses.sequence_log_ratios(logprobs, micro.old_logprobs, micro.sample_index)

    def _check_moved(self, before: Tensor, should: bool) -> None:
        """Updates that change nothing are a run that learns nothing: stop and say so."""
        moved = not torch.equal(before, self._probe.detach().flatten()[:PROBED])
        self._unmoved = self._unmoved + 1 if should and not moved else 0
        if self._unmoved >= UNMOVED_LIMIT:
            raise UserError(
                f"{self._unmoved} updates in a row changed no weight: the parameters are frozen, or the learning rate "
                "is below what their precision can hold; raise actor_rollout_ref.actor.optim.lr or load in float32."
            )

    def logprobs(self, samples: Sequence[Sample], limits: MicroBatchLimits | None = None) -> list[Tensor]:
        """Log-probs of every sample's predictions, in the order of its tokens [one tensor a sample]."""
        torch.set_num_threads(self.threads)
        return forward.logprobs(self.decoder, samples, limits or self.limits)


def weight_sharing_copy(decoder: Decoder) -> Decoder:
    """A second decoder over the same weights, with gradients of its own."""
    own = {id(p): torch.nn.Parameter(p.data, requires_grad=p.requires_grad) for p in decoder.model.parameters()}
    return Decoder(copy.deepcopy(decoder.model, own))


def balanced(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Numbers of the pieces that each of two is to do: the largest first, always to the one with less."""
    halves: tuple[list[int], list[int]] = ([], [])
    done = [0, 0]
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        which = int(done[1] < done[0])
        halves[which].append(number)
        done[which] += sizes[number]
    return halves


def make_optimizer(parameters: Sequence[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    if any(parameter.dtype != torch.float32 for parameter in parameters):
        return MasterAdamW(parameters, settings.lr, settings.betas, settings.weight_decay)
    return torch.optim.AdamW(
        parameters, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay, fused=True
    )


def apply_gradient(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.nn.Parameter],
    settings: OptimizerSettings,
    lr: float,
    known: Callable[[], float],
) -> float:
    """Clip and step, unless something is not finite; the gradient's norm. The loss is asked for when all else is under
    way: a GPU is waited for once."""
    limit = settings.grad_clip or math.inf
    if isinstance(optimizer, MasterAdamW):
        optimizer.gather()
        length = optimizer.clip(limit)
    else:
        length = torch.nn.utils.clip_grad_norm_(parameters, limit)
    loss, norm = known(), float(length)
    if not math.isfinite(norm) or not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} and its gradient norm {norm}: nothing was updated")
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return norm


def _read_logits(objective: Objective, logits: Tensor, micro: MicroBatch, part: slice) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and the entropies [P]."""
    scaled = logits.float() / micro.temperatures[part, None]
    logprobs = token_logprobs(scaled, micro.targets[part])
    with torch.set_grad_enabled(objective.entropy_coeff != 0):
        shifted = scaled.log_softmax(-1)
        return logprobs, -torch.linalg.vecdot(shifted.exp(), shifted)


def _with_distance(objective: Objective, losses: Tensor, distance: Tensor, stats: dict[str, Tensor]) -> Tensor:
    stats["kl_loss"] = distance.detach()
    return losses + objective.kl_coeff * distance


def _token_losses(
    objective: Objective, logprobs: Tensor, entropy: Tensor, micro: MicroBatch, part: slice, ratios: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of each prediction [P] and figures to sum up."""
    stats: dict[str, Tensor] = {"entropy": entropy.detach(), "logprob": logprobs.detach()}
    if objective.kind == "ce":
        return -logprobs, stats
    old, advantages = micro.old_logprobs[part], micro.advantages[part]
    surrogate = _surrogate(objective, logprobs, old, advantages, ratios)
    losses = surrogate.loss * micro.corrections[part]
    difference = (logprobs.detach() - micro.sampling_logprobs[part]).abs()
    stats |= {
        "pg_loss": losses.detach(),
        "clipped": surrogate.clipped.float(),
        "clipped_low": surrogate.clipped_low.float(),
        "ppo_kl": old - logprobs.detach(),
        "mismatch": difference,
        "mismatch_max": difference,
    }
    if objective.entropy_coeff:
        losses = losses - objective.entropy_coeff * entropy
    return losses, stats


def _surrogate(
    objective: Objective, logprobs: Tensor, old: Tensor, advantages: Tensor, ratios: Tensor | None
) -> losses.PolicyLoss:
    low, high = objective.clip_low, objective.clip_high
    if ratios is not None:
        return losses.gspo(logprobs, ratios, advantages, low, high)
    if objective.policy_loss == "cispo":
        return losses.cispo(logprobs, old, advantages, high)
    return losses.ppo(logprobs, old, advantages, low, high, objective.dual_clip)


class _Totals:
    """Sums over a batch, to become means once it is through."""

    def __init__(self) -> None:
        self._loss = 0.0
        self.count = 0
        self.sums: dict[str, float] = {}
        self.largest = 0.0
        self._waiting: list[tuple[list[str], Tensor]] = []

    def add(self, loss: Tensor, stats: dict[str, Tensor]) -> None:
        """Nothing here waits for a GPU."""
        self.count += len(stats["logprob"])
        largest = stats.pop("mismatch_max", None)
        numbers = [loss.double()[None], torch.stack(list(stats.values())).double().sum(1)]
        names = list(stats)
        if largest is not None:
            numbers.append(largest.max().double()[None])
            names.append("mismatch_max")
        self._waiting.append((names, torch.cat(numbers)))

    def _settle(self) -> None:
        for names, values in self._waiting:
            loss, *numbers = values.tolist()
            self._loss += loss
            for name, value in zip(names, numbers, strict=True):
                if name == "mismatch_max":
                    self.largest = max(self.largest, value)
                else:
                    self.sums[name] = self.sums.get(name, 0.0) + value
        self._waiting.clear()

    @property
    def loss(self) -> float:
        self._settle()
        return self._loss

    def merge(self, other: _Totals) -> None:
        self._loss = self.loss + other.loss
        self.count += other.count
        self.largest = max(self.largest, other.largest)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def metrics(self, kind: str) -> dict[str, float]:
        total = self.loss
        mean = {name: value / self.count for name, value in self.sums.items()}
        found = {"actor/loss": total, "actor/tokens": float(self.count), "actor/entropy": mean["entropy"]}
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
        for name in ("kl", "kl_loss"):
            if name in mean:
                found[f"actor/{name}"] = mean[name]
        return found
