"""The learner: forward pass, loss and optimizer step. It knows no algorithm.

An algorithm has already turned trajectories into per-token weights and advantages. Every loss is a
weighted sum over tokens divided by a denominator counted over the whole batch beforehand, so the
gradient does not depend on how the batch is split into micro-batches.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from practicum.algorithms import kl
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.training.micro_batches import MicroBatch, MicroBatchLimits, Sample, micro_batches
from practicum.training.objective import LossStats, Objective
from practicum.training.optimizer import MasterAdamW, OptimizerSettings, apply_gradient, make_optimizer

if TYPE_CHECKING:
    from practicum.kernels.cuda_graphs import LayerGraphs
import torch.nn.functional as F

from practicum.models.decoder import token_logprobs
from practicum.models.prefix_tree import BlockAttentionPlan

MAX_LOGITS = 4_000_000
"""Logits held at once (predictions × vocabulary): more predictions go through the LM head in chunks."""


def hidden_states(decoder: Decoder, micro: MicroBatch, graphs: LayerGraphs | None = None) -> Tensor:
    """Return the hidden states [P, E] at the tokens where predictions are made; `graphs` replays the layers."""
    if isinstance(micro.attention_plan, BlockAttentionPlan):
        from practicum.kernels.packed_forward import packed_hidden  # needs Triton

        inputs = (micro.ids, micro.positions, micro.attention_plan)
        hidden = packed_hidden(decoder, *inputs) if graphs is None else graphs.hidden(*inputs)
        # Not index_select: on a GPU its backward adds gradients in no fixed order.
        return hidden[micro.token_index]
    grouped = decoder.shape.heads != decoder.shape.kv_heads
    batches, output_index = micro.attention_plan.batches, micro.attention_plan.output_index

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs = []
        for batch in batches:
            queries, keys, values = _padded(q, batch.queries), _padded(k, batch.keys), _padded(v, batch.keys)
            output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=batch.visible, enable_gqa=grouped)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).flatten(1).index_select(0, output_index)

    return decoder.hidden(micro.ids, micro.positions, attend).index_select(0, micro.token_index)


def _padded(x: Tensor, index: Tensor) -> Tensor:
    """Tokens [N, H, D] as padded rows [B, H, L, D]; `index` is [B, L]."""
    return x.flatten(1).index_select(0, index.flatten()).view(*index.shape, *x.shape[1:]).transpose(1, 2)


def chunks(count: int, vocabulary: int) -> Iterator[slice]:
    """Yield slices of `count` predictions whose logits are at most MAX_LOGITS."""
    step = max(1, MAX_LOGITS // vocabulary)
    return (slice(start, start + step) for start in range(0, count, step))


def fused_head(decoder: Decoder) -> bool:
    """Return whether the LM head is a plain matrix on a GPU: then one kernel computes log-probs from hidden states."""
    head = decoder.model.lm_head
    return decoder.device.type == "cuda" and type(head) is torch.nn.Linear and head.bias is None


def fused_logprobs(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a micro-batch's targets [P] and the entropies [P], computed by a kernel."""
    from practicum.kernels.lm_head import HeadLogprobs  # needs Triton

    weight = decoder.model.lm_head.weight
    result: tuple[Tensor, Tensor] = HeadLogprobs.apply(hidden, weight, micro.targets, micro.temperatures)  # type: ignore[no-untyped-call]
    return result


def head_logprobs(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> Tensor:
    """Return the log-probs of a micro-batch's targets [P] from the hidden states [P, E]."""
    if fused_head(decoder):
        return fused_logprobs(decoder, hidden, micro)[0]
    return torch.cat(
        [
            token_logprobs(decoder.logits(hidden[chunk]), micro.targets[chunk], micro.temperatures[chunk, None])
            for chunk in chunks(len(hidden), decoder.shape.vocabulary)
        ]
    )


def logprobs_and_entropies(
    logits: Tensor, micro: MicroBatch, chunk: slice, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a chunk's targets [C] and the entropies [C] from the logits [C, V]."""
    scaled = logits.float() / micro.temperatures[chunk, None]
    logprobs = token_logprobs(scaled, micro.targets[chunk])
    with torch.set_grad_enabled(entropy_gradient):
        distribution = scaled.log_softmax(-1)
        return logprobs, -torch.linalg.vecdot(distribution.exp(), distribution)


def gather(micro: MicroBatch, values: Sequence[Tensor]) -> Tensor:
    """Return values given per sample, one per prediction, in the order of a micro-batch's predictions [P]."""
    return torch.cat([values[index] for index, _ in _sample_counts(micro)]).to(micro.sample_index.device)


def _sample_counts(micro: MicroBatch) -> list[tuple[int, int]]:
    """The samples of a micro-batch in order, each with the number of its predictions."""
    indices, counts = torch.unique_consecutive(micro.sample_index.cpu(), return_counts=True)
    return list(zip(indices.tolist(), counts.tolist(), strict=True))


@torch.no_grad()
def per_sample(
    samples: Sequence[Sample],
    limits: MicroBatchLimits,
    device: torch.device,
    function: Callable[[MicroBatch], Tensor],
) -> list[Tensor]:
    """Return what `function` gives per prediction, as one tensor per sample in the order of its tokens."""
    result: list[Tensor] = [torch.empty(0)] * len(samples)
    for micro in micro_batches(samples, limits, device):
        counts = _sample_counts(micro)
        values = torch.split(function(micro).cpu(), [count for _, count in counts])
        for (index, _), own in zip(counts, values, strict=True):
            result[index] = own.clone()
    return result


def compute_logprobs(decoder: Decoder, samples: Sequence[Sample], limits: MicroBatchLimits) -> list[Tensor]:
    """Return the log-probs of every sample's predictions, one tensor per sample."""
    return per_sample(samples, limits, decoder.device, lambda m: head_logprobs(decoder, hidden_states(decoder, m), m))


def compute_divergences(
    decoder: Decoder, reference: Decoder, samples: Sequence[Sample], kind: str, limits: MicroBatchLimits
) -> list[Tensor]:
    """Return a KL estimate of every sample's predictions, policy against reference, one tensor per sample."""

    def function(micro: MicroBatch) -> Tensor:
        hidden, reference_hidden = hidden_states(decoder, micro), hidden_states(reference, micro)
        return torch.cat(
            [
                divergence(decoder.logits(hidden[chunk]), reference.logits(reference_hidden[chunk]), micro, chunk, kind)
                for chunk in chunks(len(hidden), decoder.shape.vocabulary)
            ]
        )

    return per_sample(samples, limits, decoder.device, function)


def divergence(logits: Tensor, reference_logits: Tensor, micro: MicroBatch, chunk: slice, kind: str) -> Tensor:
    """Return the KL estimate of a chunk of predictions [C] from the logits of both models [C, V]."""
    temperature = micro.temperatures[chunk, None]
    logprobs = token_logprobs(logits, micro.targets[chunk], temperature)
    reference = token_logprobs(reference_logits, micro.targets[chunk], temperature)
    full = kl.full(logits / temperature, reference_logits / temperature) if kind.startswith("full") else None
    return kl.penalty(logprobs, reference, kind, full)


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
        if decoder.device.type == "cuda":
            loader.set_batch_invariant_matmul()
        small = decoder.shape.hidden < MAX_TWO_THREAD_HIDDEN_SIZE and decoder.device.type == "cpu"
        self._second_decoder = weight_sharing_copy(decoder) if small and self.threads > 1 else None
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
        before = self._probe.detach().flatten()[:NUM_PROBED_WEIGHTS].clone()
        norm = apply_gradient(self.optimizer, self.parameters, self.settings, lr, lambda: stats.loss)
        self._check_changed(before, lr * norm > 0)
        self.version += 1
        return {"actor/grad_norm": norm, "actor/lr": lr, **stats.metrics(objective.kind)}

    def measure(
        self, samples: Sequence[Sample], objective: Objective, reference: Decoder | None = None
    ) -> dict[str, float]:
        """Return the metrics that an update over samples without a gradient would have; nothing changes."""
        torch.set_num_threads(self.threads)
        stats = LossStats()
        self._measure(samples, _Update(objective, 1.0, reference, None), stats)
        return stats.metrics(objective.kind)

    def _measure(self, samples: Sequence[Sample], batch: _Update, stats: LossStats) -> None:
        for micro in micro_batches(samples, self.limits, self.decoder.device) if samples else ():
            _measure(self.decoder, micro, batch, stats)

    def logprobs(self, samples: Sequence[Sample], limits: MicroBatchLimits | None = None) -> list[Tensor]:
        """Return the log-probs of every sample's predictions in the order of its tokens, one tensor per sample."""
        torch.set_num_threads(self.threads)
        return compute_logprobs(self.decoder, samples, limits or self.limits)

    def _accumulate_in_order(self, samples: Sequence[Sample], batch: _Update) -> LossStats:
        """Accumulate the gradients of a batch, one micro-batch after the other."""
        stats = LossStats()
        graphs = self._cuda_graphs()
        bucket = 1 if graphs is None else self.bucket_tokens
        for index, micro in enumerate(micro_batches(samples, self.limits, self.decoder.device, bucket)):
            with self._training_mode(index):
                _backward(self.decoder, micro, batch, stats, graphs)
            if isinstance(self.optimizer, MasterAdamW):
                self.optimizer.accumulate()
            if batch.tick is not None:
                batch.tick()
        return stats

    def _accumulate_on_two_threads(self, samples: Sequence[Sample], batch: _Update, second: Decoder) -> LossStats:
        """Accumulate the gradients of a batch on two threads, one core each: small products gain little from two.

        Which thread computes which micro-batch is fixed beforehand, so the sum is the same to the bit whichever is
        faster. `second` shares the weights and has gradients of its own. Two micro-batches are in memory at once; a
        small model keeps little per token.
        """
        limits = replace(self.limits, tokens=max(1, self.limits.tokens * 2 // 3))
        micros = list(micro_batches(samples, limits))
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
        """Mixed precision and dropout, where they are on; dropout is seeded by the update and the micro-batch alone."""
        device, decoder = self.decoder.device.type, self.decoder
        with torch.autocast(device, torch.bfloat16, enabled=decoder.autocast):
            if not decoder.dropout:
                yield
                return
            with torch.random.fork_rng(devices=[decoder.device] if device == "cuda" else []):
                torch.manual_seed(self.version * 1_000_003 + index)
                decoder.model.train()
                try:
                    yield
                finally:
                    decoder.model.eval()

    def _check_changed(self, before: Tensor, expected: bool) -> None:
        """Stop a run whose updates change no weight: it learns nothing."""
        changed = not torch.equal(before, self._probe.detach().flatten()[:NUM_PROBED_WEIGHTS])
        self._num_unchanged = self._num_unchanged + 1 if expected and not changed else 0
        if self._num_unchanged >= MAX_UNCHANGED_UPDATES:
            raise UserError(
                f"{self._num_unchanged} updates in a row changed no weight: the parameters are frozen, or the "
                "learning rate is below what their precision can hold; raise actor_rollout_ref.actor.optim.lr or load "
                "in float32."
            )


def _backward(
    decoder: Decoder, micro: MicroBatch, batch: _Update, stats: LossStats, graphs: LayerGraphs | None = None
) -> None:
    """Add the gradients of one micro-batch to the weights' and its figures to the stats."""
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
        logits = decoder.logits(hidden[chunk])
        read = logprobs_and_entropies(logits, micro, chunk, objective.entropy_coeff != 0 and hidden.requires_grad)
        own_ratios = None if log_ratios is None else log_ratios[chunk]
        token_losses, figures = objective.token_losses(*read, micro, chunk, own_ratios)
        if reference is not None and reference_hidden is not None:
            with torch.no_grad():
                reference_logits = reference.logits(reference_hidden[chunk])
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
