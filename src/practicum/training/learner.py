"""The learner: gradients of a batch and the optimizer step. It knows no algorithm.

An algorithm has already turned trajectories into per-token weights and advantages. Every loss is a weighted sum over
tokens divided by a denominator counted over the whole batch beforehand, so the gradient does not depend on how the
batch is split into micro-batches.

The optimizer is AdamW. Weights in half precision get float32 master copies (`MasterAdamW`): the copies take the steps,
since most steps are smaller than half precision can add, and the weights are their rounded copies.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.adamw import adamw

from practicum.algorithms import kl
from practicum.config.actor_rollout_ref import ActorConfig, OptimConfig
from practicum.config.fields import default_of
from practicum.errors import UserError, did_you_mean
from practicum.models import loader, sharding
from practicum.models.decoder import Decoder, peak_flops, update_flops
from practicum.training import ranks
from practicum.training.micro_batches import MicroBatch, MicroBatchLimits, Sample, micro_batches
from practicum.training.objective import (
    LossStats,
    Objective,
    chunk_logits,
    chunks,
    compute_logprobs,
    divergence,
    fused_head,
    fused_logprobs,
    head_logprobs,
    hidden_states,
    logprobs_and_entropies,
    own_samples,
    rank_micro_batches,
)

if TYPE_CHECKING:
    from practicum.kernels.cuda_graphs import LayerGraphs


class MasterAdamW(torch.optim.Optimizer):
    """AdamW whose state also holds the master copy of each weight, so saving and restoring the state is enough."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": 1e-8})
        self.weights = list(parameters)
        self.accumulated: Tensor | None = None
        """The gradients of a batch so far, in float32, those of all weights end to end."""

    def accumulate(self) -> None:
        """Add the weights' gradients to the accumulated ones and clear them; a weight without one counts as zero."""
        if all(weight.grad is None for weight in self.weights):
            return
        gradient = torch.cat([
            (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten() for weight in self.weights
        ])  # fmt: skip
        self.accumulated = gradient.float() if self.accumulated is None else self.accumulated.add_(gradient)
        super().zero_grad()

    def clip(self, max_norm: float) -> Tensor:
        """Scale the accumulated gradient down to `max_norm` and return the norm it had."""
        if self.accumulated is None:
            return torch.zeros(())
        norm: Tensor = torch.linalg.vector_norm(self.accumulated)
        self.accumulated.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.accumulated = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one AdamW step on the master copies and round them into the weights."""
        if self.accumulated is None:
            return
        sizes = [weight.numel() for weight in self.weights]
        gradients = [g.view_as(w) for g, w in zip(torch.split(self.accumulated, sizes), self.weights, strict=True)]
        for weight in self.weights:
            if not self.state[weight]:
                master = weight.detach().float()
                self.state[weight] |= {
                    "master": master,
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                    "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                }
        group, states = self.param_groups[0], [self.state[weight] for weight in self.weights]
        adamw(
            [state["master"] for state in states],
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        torch._foreach_copy_([weight.data for weight in self.weights], [state["master"] for state in states])


KINDS = ("constant", "cosine")


def learning_rate(
    step: int, total: int, peak: float, kind: str = "constant", warmup: int = 0, min_ratio: float = 0.1
) -> float:
    """Return the rate of a step from 0: linear warm-up, then constant or a cosine down to `min_ratio` of the peak."""
    if kind not in KINDS:
        raise UserError(f"Unknown learning-rate schedule '{kind}'.{did_you_mean(kind, KINDS)}")
    if step < warmup:
        return peak * (step + 1) / warmup
    if kind == "constant":
        return peak
    progress = (step - warmup) / max(1, total - warmup - 1)
    return peak * (min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW, and the largest norm of its gradient (`grad_clip`; 0: no bound)."""

    lr: float = default_of(OptimConfig, "lr")
    weight_decay: float = default_of(OptimConfig, "weight_decay")
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float = default_of(ActorConfig, "grad_clip")


def make_optimizer(parameters: Sequence[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return AdamW over float32 weights, or AdamW with float32 master copies if any weight has another precision."""
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
    get_loss: Callable[[], float],
) -> float:
    """Clip the gradient, summed over all ranks, take one optimizer step and return the norm before clipping.

    Raises FloatingPointError, and changes no weight, if the loss or the norm is not finite. `get_loss` is called after
    everything else has been launched, so that the host waits for a GPU once.
    """
    max_norm = settings.grad_clip or math.inf
    if isinstance(optimizer, MasterAdamW):
        optimizer.accumulate()
        if dist.is_initialized():
            optimizer.accumulated = ranks.sum_tensor(optimizer.accumulated, optimizer.weights)
        norm_tensor = optimizer.clip(max_norm)
    else:
        if dist.is_initialized():  # the shards of a sharded model have sums already
            ranks.sum_gradients([parameter for parameter in parameters if not sharding.is_sharded(parameter)])
        norm_tensor = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        if dist.is_initialized():
            norm_tensor = sharding.full_tensor(norm_tensor)
    loss, norm = get_loss(), float(norm_tensor)
    if not math.isfinite(norm) or not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} and its gradient norm {norm}: nothing was updated")
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    return norm


NUM_PROBED_WEIGHTS = 4096
"""Weights compared before and after an update to see whether it changed anything."""
MAX_UNCHANGED_UPDATES = 3
MAX_TWO_THREAD_HIDDEN_SIZE = 512
"""Hidden size below which two threads do better on one micro-batch each than together on one product."""


@dataclass(frozen=True)
class _Update:
    """What the micro-batches of one update have in common."""

    objective: Objective
    denominator: float
    reference: Decoder | None
    tick: Callable[[], None] | None


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
        self._num_unchanged = 0
        self._adapter_weights = sum(parameter.numel() for parameter in self.parameters)
        if self._adapter_weights >= decoder.shape.layers * decoder.shape.layer_weights:
            self._adapter_weights = 0  # all weights are trained
        self.model_flops = 0.0
        """Model FLOPs of all updates so far, of all ranks (see `models.decoder`)."""
        if decoder.device.type == "cuda":
            loader.set_batch_invariant_matmul()
        small = decoder.shape.hidden < MAX_TWO_THREAD_HIDDEN_SIZE and decoder.device.type == "cpu"
        has_second = small and self.threads > 1 and decoder.sharded is None
        self._second_decoder = weight_sharing_copy(decoder) if has_second else None
        self.use_cuda_graphs = True
        """Whether a GPU may capture its passes; micro-batches are then padded to a multiple of `bucket_tokens`."""
        self.bucket_tokens = 2048
        self._graphs: LayerGraphs | None = None

    def update(
        self,
        samples: Sequence[Sample],
        denominator: float,
        objective: Objective,
        lr: float,
        reference: Decoder | None = None,
        tick: Callable[[], None] | None = None,
        without_gradient: Sequence[Sample] = (),
    ) -> dict[str, float]:
        """Take one optimizer step over a whole batch and return its metrics.

        `without_gradient` are samples of the same batch whose loss has no gradient: they are computed forward only, so
        that the metrics cover all of its tokens. `tick` is called after each micro-batch. Raises before the step if the
        loss is not finite.
        """
        if objective.kl_loss_coef and reference is None:
            raise ValueError("a KL term needs a reference")
        if denominator <= 0:
            raise UserError("The batch has no token to train on.")
        torch.set_num_threads(self.threads)
        self.optimizer.zero_grad(set_to_none=True)
        batch = _Update(objective, denominator, reference, tick)
        if self._second_decoder is not None and not (self.decoder.dropout or self.decoder.autocast):
            stats = self._accumulate_on_two_threads(samples, batch, self._second_decoder)
        else:
            stats = self._accumulate_in_order(samples, batch)
        self._measure(without_gradient, batch, stats)
        stats = over_ranks(stats)
        before = self._probed_weights().clone()
        if self.decoder.sharded is not None:
            sharding.free_gathered(self.decoder.model)
        norm = apply_gradient(self.optimizer, self.parameters, self.settings, lr, lambda: stats.loss)
        self._check_changed(before, lr * norm > 0)
        self.version += 1
        self.model_flops += update_flops(self.decoder.shape, stats.tokens, stats.predictions, self._adapter_weights)
        return {"actor/grad_norm": norm, "actor/lr": lr, **stats.metrics(objective.kind)}

    def measure(
        self, samples: Sequence[Sample], objective: Objective, reference: Decoder | None = None
    ) -> dict[str, float]:
        """Return the metrics that an update over samples without a gradient would have; nothing changes."""
        torch.set_num_threads(self.threads)
        stats = LossStats()
        self._measure(samples, _Update(objective, 1.0, reference, None), stats)
        return over_ranks(stats).metrics(objective.kind)

    def _measure(self, samples: Sequence[Sample], batch: _Update, stats: LossStats) -> None:
        for micro, counts in rank_micro_batches(self.decoder, samples, self.limits):
            _measure(self.decoder, micro, batch, stats if counts else LossStats())

    def logprobs(self, samples: Sequence[Sample], limits: MicroBatchLimits | None = None) -> list[Tensor]:
        """Return the log-probs of every sample's predictions in the order of its tokens, one tensor per sample."""
        torch.set_num_threads(self.threads)
        return compute_logprobs(self.decoder, samples, limits or self.limits)

    def _accumulate_in_order(self, samples: Sequence[Sample], batch: _Update) -> LossStats:
        """Accumulate the gradients of a batch, one micro-batch after the other."""
        stats = LossStats()
        graphs = self._cuda_graphs()
        bucket = 1 if graphs is None else self.bucket_tokens
        micros = rank_micro_batches(self.decoder, samples, self.limits, bucket)
        for index, (micro, counts) in enumerate(micros):
            with self._training_mode(index):
                _backward(self.decoder, micro, batch, stats if counts else LossStats(), graphs)
            if isinstance(self.optimizer, MasterAdamW):
                self.optimizer.accumulate()
            if batch.tick is not None and counts:
                batch.tick()
        return stats

    def _accumulate_on_two_threads(self, samples: Sequence[Sample], batch: _Update, second: Decoder) -> LossStats:
        """Accumulate the gradients of a batch on two threads, one core each: small products gain little from two.

        Which thread computes which micro-batch is fixed beforehand, so the sum is the same to the bit whichever is
        faster. `second` shares the weights and has gradients of its own. Two micro-batches are in memory at once; a
        small model keeps little per token.
        """
        limits = replace(self.limits, tokens=max(1, self.limits.tokens * 2 // 3))
        samples = own_samples(samples)
        micros = list(micro_batches(samples, limits)) if samples else []
        halves = balanced_halves([len(micro.ids) for micro in micros])
        half_stats = (LossStats(), LossStats())

        def work(half: int, decoder: Decoder) -> None:
            torch.set_num_threads(1)
            for index in halves[half]:
                _backward(decoder, micros[index], batch, half_stats[half])
                if batch.tick is not None:
                    batch.tick()

        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(work, 1, second)
            try:
                work(0, self.decoder)
            finally:
                future.result()
                torch.set_num_threads(self.threads)
        for parameter, other in zip(self.parameters, second.parameters(), strict=True):
            if other.grad is not None:
                parameter.grad = other.grad if parameter.grad is None else parameter.grad.add_(other.grad)
                other.grad = None
        stats = LossStats()
        for own in half_stats:
            stats.merge(own)
        return stats

    def _cuda_graphs(self) -> LayerGraphs | None:
        """The layers as CUDA graphs, where that is possible: on a GPU, without dropout, recomputation or autocast."""
        decoder = self.decoder
        if not (self.use_cuda_graphs and decoder.device.type == "cuda" and isinstance(self.optimizer, MasterAdamW)):
            return None
        if decoder.dropout or decoder.checkpointing or decoder.autocast:
            return None
        if self._graphs is None:
            from practicum.kernels.cuda_graphs import LayerGraphs  # needs Triton

            self._graphs = LayerGraphs(decoder)
        return self._graphs

    @contextlib.contextmanager
    def _training_mode(self, index: int) -> Iterator[None]:
        """Mixed precision and dropout, where they are on; dropout is seeded by the update, the rank and the micro-batch
        alone."""
        device, decoder = self.decoder.device.type, self.decoder
        with torch.autocast(device, torch.bfloat16, enabled=decoder.autocast):
            if not decoder.dropout:
                yield
                return
            with torch.random.fork_rng(devices=[decoder.device] if device == "cuda" else []):
                torch.manual_seed(self.version * 1_000_003 + ranks.own_rank() * 100_003 + index)
                decoder.model.train()
                try:
                    yield
                finally:
                    decoder.model.eval()

    def _probed_weights(self) -> Tensor:
        """Some of the weights that this rank has."""
        weights = self._probe.detach()
        if self.decoder.sharded is not None:
            weights = sharding.local_shard(weights)
        return weights.flatten()[:NUM_PROBED_WEIGHTS]

    def _check_changed(self, before: Tensor, expected: bool) -> None:
        """Stop a run whose updates change no weight: it learns nothing."""
        changed = not before.numel() or not torch.equal(before, self._probed_weights())
        self._num_unchanged = self._num_unchanged + 1 if expected and not changed else 0
        if self._num_unchanged >= MAX_UNCHANGED_UPDATES:
            raise UserError(
                f"{self._num_unchanged} updates in a row changed no weight: the parameters are frozen, or the "
                "learning rate is below what their precision can hold; raise actor_rollout_ref.actor.optim.lr or load "
                "in float32."
            )


def utilisation(learners: Sequence[Learner], flops_before: float, seconds: float) -> dict[str, float]:
    """Return model TFLOP/s of updates since the learners' FLOPs were `flops_before`, and on a known GPU the MFU."""
    flops = sum(learner.model_flops for learner in learners) - flops_before
    if not flops or seconds <= 0:
        return {}
    metrics = {"timing/update_tflops": flops / seconds / 1e12}
    device = learners[0].decoder.device
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return metrics if peak is None else metrics | {"timing/mfu": flops / (seconds * peak * ranks.num_ranks())}


def over_ranks(stats: LossStats) -> LossStats:
    """Return the sums over all ranks."""
    if not dist.is_initialized():
        return stats
    merged = LossStats()
    for record in ranks.gather_json(stats.record()):
        merged.merge(LossStats.read(record))
    return merged


def _backward(
    decoder: Decoder, micro: MicroBatch, batch: _Update, stats: LossStats, graphs: LayerGraphs | None = None
) -> None:
    """Add the gradients of one micro-batch to the weights' and its figures to the stats."""
    stats.tokens += micro.num_tokens
    stats.predictions += len(micro.targets)
    hidden = hidden_states(decoder, micro, graphs)
    with torch.no_grad():
        reference_hidden = hidden_states(batch.reference, micro) if batch.reference is not None else None
    if _uses_fused_head(decoder, batch):
        token_losses, figures = _fused_losses(decoder, micro, batch, hidden, reference_hidden)
        loss = (token_losses * micro.weights).sum() / batch.denominator
        torch.autograd.backward(loss)
        stats.add(loss.detach(), figures)
        return
    leaf = hidden.detach().requires_grad_()
    for chunk, token_losses, figures in _losses_in_chunks(decoder, micro, batch, leaf, reference_hidden):
        loss = (token_losses * micro.weights[chunk]).sum() / batch.denominator
        torch.autograd.backward(loss)
        stats.add(loss.detach(), figures)
    assert leaf.grad is not None
    torch.autograd.backward(hidden, leaf.grad)


@torch.no_grad()
def _measure(decoder: Decoder, micro: MicroBatch, batch: _Update, stats: LossStats) -> None:
    """Add the figures of one micro-batch to the stats; it has no gradient."""
    hidden = hidden_states(decoder, micro)
    reference_hidden = hidden_states(batch.reference, micro) if batch.reference is not None else None
    if _uses_fused_head(decoder, batch):
        token_losses, figures = _fused_losses(decoder, micro, batch, hidden, reference_hidden)
        stats.add((token_losses * micro.weights).sum() / batch.denominator, figures)
        return
    for chunk, token_losses, figures in _losses_in_chunks(decoder, micro, batch, hidden, reference_hidden):
        stats.add((token_losses * micro.weights[chunk]).sum() / batch.denominator, figures)


def _uses_fused_head(decoder: Decoder, batch: _Update) -> bool:
    """Whether log-probs come from a kernel that never holds the logits, which a full KL divergence needs."""
    full_kl = batch.reference is not None and batch.objective.kl_loss_type.startswith("full")
    return fused_head(decoder) and not full_kl


def _fused_losses(
    decoder: Decoder, micro: MicroBatch, batch: _Update, hidden: Tensor, reference_hidden: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of each prediction [P] and the figures [P] each, with the LM head as one kernel."""
    objective, reference = batch.objective, batch.reference
    logprobs, entropies = fused_logprobs(decoder, hidden, micro)
    log_ratios = objective.sequence_log_ratios(logprobs.detach(), micro)
    token_losses, figures = objective.token_losses(logprobs, entropies, micro, slice(None), log_ratios)
    if reference is not None and reference_hidden is not None:
        with torch.no_grad():
            reference_logprobs = fused_logprobs(reference, reference_hidden, micro)[0]
            figures["kl"] = kl.penalty(logprobs, reference_logprobs, "low_var_kl")
        if objective.kl_loss_coef:
            kl_term = kl.penalty(logprobs, reference_logprobs, objective.kl_loss_type)
            token_losses = _add_kl_term(objective, token_losses, kl_term, figures)
    return token_losses, figures


def _losses_in_chunks(
    decoder: Decoder, micro: MicroBatch, batch: _Update, hidden: Tensor, reference_hidden: Tensor | None
) -> Iterator[tuple[slice, Tensor, dict[str, Tensor]]]:
    """Yield a chunk of predictions, their losses [C] and figures [C] each; the logits of one chunk are in memory."""
    objective, reference = batch.objective, batch.reference
    with torch.no_grad():
        logprobs = head_logprobs(decoder, hidden, micro) if objective.uses_sequence_ratio else hidden
        log_ratios = objective.sequence_log_ratios(logprobs, micro)
    for chunk in chunks(len(hidden), decoder.shape.vocabulary):
        logits = chunk_logits(decoder, hidden, micro, chunk)
        read = logprobs_and_entropies(logits, micro, chunk, objective.entropy_coeff != 0 and hidden.requires_grad)
        own_ratios = None if log_ratios is None else log_ratios[chunk]
        token_losses, figures = objective.token_losses(*read, micro, chunk, own_ratios)
        if reference is not None and reference_hidden is not None:
            with torch.no_grad():
                reference_logits = chunk_logits(reference, reference_hidden, micro, chunk)
                figures["kl"] = divergence(logits, reference_logits, micro, chunk, "low_var_kl")
            if objective.kl_loss_coef:
                kl_term = divergence(logits, reference_logits, micro, chunk, objective.kl_loss_type)
                token_losses = _add_kl_term(objective, token_losses, kl_term, figures)
        yield chunk, token_losses, figures


def _add_kl_term(objective: Objective, token_losses: Tensor, divergence: Tensor, figures: dict[str, Tensor]) -> Tensor:
    figures["kl_loss"] = divergence.detach()
    return token_losses + objective.kl_loss_coef * divergence


def weight_sharing_copy(decoder: Decoder) -> Decoder:
    """Return a second decoder over the same weights, with gradients of its own."""
    parameters = {id(p): torch.nn.Parameter(p.data, requires_grad=p.requires_grad) for p in decoder.model.parameters()}
    return Decoder(copy.deepcopy(decoder.model, parameters))


def balanced_halves(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Divide items by size between two workers: the largest first, each to the worker with less; returns indices."""
    halves: tuple[list[int], list[int]] = ([], [])
    totals = [0, 0]
    for index in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        half = int(totals[1] < totals[0])
        halves[half].append(index)
        totals[half] += sizes[index]
    return halves
