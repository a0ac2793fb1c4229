"""The objective: the weight of every trained token, log-probs of predictions, the loss of each, and sums for metrics.

`build_samples` puts advantages and weights on the tokens of trajectories; `collate` counts the denominator of a batch.
`hidden_states` runs the forward pass of a packed micro-batch; only hidden states at which something is predicted go
through the LM head, and its logits are computed in chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from practicum.algorithms import kl, losses
from practicum.chat.grammar import Grammars
from practicum.config.actor_rollout_ref import ActorConfig, PolicyLossConfig
from practicum.config.fields import default_of
from practicum.errors import UserError, did_you_mean
from practicum.kernels.attention_plan import BlockAttentionPlan
from practicum.models.decoder import Decoder, token_logprobs
from practicum.training import ranks
from practicum.training.estimators import turn_lengths
from practicum.training.micro_batches import (
    MicroBatch,
    MicroBatchLimits,
    Sample,
    cache_token_masks,
    micro_batches,
    weighted_samples,
)
from practicum.trajectory import Origin, Trajectory, is_trained
from practicum.utils.arrays import FloatArray

if TYPE_CHECKING:
    from practicum.kernels.cuda_graphs import LayerGraphs


def check_kl_kind(kind: str) -> None:
    """Refuse an unknown KL estimate before anything is computed with it."""
    if kind not in kl.KINDS:
        raise UserError(f"Unknown KL kind '{kind}'.{did_you_mean(kind, kl.KINDS)}")


@dataclass(frozen=True)
class Objective:
    """What is minimised: cross-entropy (`ce`) or the policy gradient (`pg`), plus entropy and reference-KL terms.

    `pg` reads the advantages and the old log-probs of the samples; `ce` ignores both. `loss_mode` names the surrogate:
    the clipped one (vanilla), GSPO's or CISPO's. A coefficient of 0 leaves its term out.
    """

    kind: str = "pg"
    clip_ratio_low: float = default_of(ActorConfig, "clip_ratio_low")
    clip_ratio_high: float = default_of(ActorConfig, "clip_ratio_high")
    clip_ratio_c: float = default_of(ActorConfig, "clip_ratio_c")
    entropy_coeff: float = default_of(ActorConfig, "entropy_coeff")
    kl_loss_coef: float = default_of(ActorConfig, "kl_loss_coef")
    kl_loss_type: str = default_of(ActorConfig, "kl_loss_type")
    loss_mode: str = default_of(PolicyLossConfig, "loss_mode")

    def __post_init__(self) -> None:
        if self.kind not in ("pg", "ce"):
            raise ValueError(f"no objective '{self.kind}'")
        if self.loss_mode not in losses.POLICY_LOSSES:
            hint = did_you_mean(self.loss_mode, losses.POLICY_LOSSES)
            raise UserError(f"Unknown actor_rollout_ref.actor.policy_loss.loss_mode '{self.loss_mode}'.{hint}")
        check_kl_kind(self.kl_loss_type)

    @property
    def uses_sequence_ratio(self) -> bool:
        """Whether the surrogate needs the log-probs of a whole sequence before the loss of any of its tokens."""
        return self.kind == "pg" and self.loss_mode == "gspo"

    def sequence_log_ratios(self, logprobs: Tensor, micro: MicroBatch) -> Tensor | None:
        """Return the log-ratio of each prediction's sequence [P], or None if the surrogate does not use it."""
        if not self.uses_sequence_ratio:
            return None
        return losses.sequence_log_ratios(logprobs, micro.old_logprobs, micro.sample_index)

    def token_losses(
        self, logprobs: Tensor, entropy: Tensor, micro: MicroBatch, chunk: slice, log_ratios: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each prediction of a chunk [C] and, detached, the figures to sum up [C].

        `logprobs`, `entropy` and `log_ratios` are [C]; `chunk` selects the predictions of the micro-batch.
        """
        stats: dict[str, Tensor] = {"entropy": entropy.detach(), "logprob": logprobs.detach()}
        if self.kind == "ce":
            return -logprobs, stats
        old, advantages = micro.old_logprobs[chunk], micro.advantages[chunk]
        surrogate = self._policy_loss(logprobs, old, advantages, log_ratios)
        token_losses = surrogate.loss * micro.corrections[chunk]
        mismatch = (logprobs.detach() - micro.sampling_logprobs[chunk]).abs()
        stats |= {
            "pg_loss": token_losses.detach(),
            "clipped": surrogate.clipped.float(),
            "clipped_low": surrogate.clipped_low.float(),
            "ppo_kl": old - logprobs.detach(),
            "mismatch": mismatch,
            "mismatch_max": mismatch,
        }
        if self.entropy_coeff:
            token_losses = token_losses - self.entropy_coeff * entropy
        return token_losses, stats

    def _policy_loss(
        self, logprobs: Tensor, old: Tensor, advantages: Tensor, log_ratios: Tensor | None
    ) -> losses.PolicyLoss:
        if log_ratios is not None:
            return losses.gspo(logprobs, log_ratios, advantages, self.clip_ratio_low, self.clip_ratio_high)
        if self.loss_mode == "cispo":
            return losses.cispo(logprobs, old, advantages, self.clip_ratio_high)
        return losses.ppo(logprobs, old, advantages, self.clip_ratio_low, self.clip_ratio_high, self.clip_ratio_c)


CROSS_ENTROPY = Objective("ce", entropy_coeff=0.0, kl_loss_coef=0.0)
"""Supervised fine-tuning: the mean negative log-prob of the trained tokens."""


@dataclass(frozen=True)
class WeightedTrajectory:
    """One trajectory ready for the learner; `share` is what it adds to the denominator of a batch."""

    samples: tuple[Sample, ...]
    share: float

    @property
    def has_no_advantage(self) -> bool:
        """Whether the advantage of every token is zero."""
        return not any(sample.advantages.any() for sample in self.samples)


def build_samples(
    groups: Sequence[Sequence[Trajectory]],
    advantages: Sequence[Sequence[FloatArray]],
    aggregation: str,
    temperature: float,
    norm: float = 1.0,
    roles: Collection[str] | None = None,
    own: Collection[str] | None = None,
    grammars: Grammars | None = None,
) -> list[list[WeightedTrajectory]]:
    """Return the trajectories of every group with an advantage and a weight on each trained token.

    `advantages` holds, for each trajectory, one number per trained token, in the order of the turns. A trajectory
    counts as one sequence for aggregation, however many sequences of ids it consists of. `roles`, `own` and `grammars`:
    see `unweighted_samples`; the tokens of the other roles count for nothing in the denominator.
    """
    cache_token_masks((episode for group in groups for episode in group), roles, grammars)
    return [
        [
            _weighted_trajectory(episode, row, aggregation, temperature, norm, roles, own, grammars)
            for episode, row in zip(group, group_advantages, strict=True)
        ]
        for group, group_advantages in zip(groups, advantages, strict=True)
    ]


def _weighted_trajectory(
    episode: Trajectory,
    advantages: FloatArray,
    aggregation: str,
    temperature: float,
    norm: float,
    roles: Collection[str] | None,
    own: Collection[str] | None,
    grammars: Grammars | None,
) -> WeightedTrajectory:
    lengths = turn_lengths(episode, roles)
    own_lengths = [length if is_trained(turn, own) else 0 for turn, length in zip(episode.turns, lengths, strict=True)]
    _check_logprobs(episode, own_lengths)
    (turn_weights,), share = losses.token_weights([own_lengths], aggregation, norm)
    weights = np.repeat(np.array(turn_weights, dtype=np.float32), lengths) if lengths else np.zeros(0, dtype=np.float32)
    samples = weighted_samples(episode, lengths, weights, advantages, temperature, own, grammars)
    return WeightedTrajectory(tuple(samples), share)


def _check_logprobs(episode: Trajectory, lengths: Sequence[int]) -> None:
    """Refuse an episode in which a token to train has no log-prob; other roles need none."""
    trained = (turn for turn, length in zip(episode.turns, lengths, strict=True) if length)
    for span in (span for turn in trained for span in turn.spans):
        if span.logprobs is None and span.origin is Origin.SAMPLED and span.ids:
            raise UserError(
                f"Episode '{episode.task.id}' has no sampling log-probs, so it cannot be used for policy gradients; "
                "collect it with an engine that reports them."
            )


@dataclass(frozen=True)
class UpdateBatch:
    """The samples of one update, its denominator, and samples of the same trajectories whose loss has no gradient."""

    samples: list[Sample]
    denominator: float
    without_gradient: list[Sample]


def collate(trajectories: Iterable[WeightedTrajectory], keep_all: bool = False) -> UpdateBatch:
    """Return the samples of an update.

    Where all advantages are zero the policy gradient is zero: such a trajectory is counted in the
    denominator and left out, unless `keep_all` says that another loss (entropy, KL) needs its tokens too.
    """
    trajectories = list(trajectories)
    samples: list[Sample] = []
    without_gradient: list[Sample] = []
    for trajectory in trajectories:
        kept = keep_all or not trajectory.has_no_advantage
        (samples if kept else without_gradient).extend(trajectory.samples)
    return UpdateBatch(samples, float(sum(trajectory.share for trajectory in trajectories)), without_gradient)


class LossStats:
    """Sums over the predictions of a batch, which become its metrics.

    `add` only launches work on a GPU; the host waits for it when a sum is first read.
    """

    def __init__(self) -> None:
        self._loss = 0.0
        self.count = 0
        self.tokens = 0
        """Tokens computed forward and backward; `predictions` of them went through the LM head."""
        self.predictions = 0
        self.sums: dict[str, float] = {}
        self.max_mismatch = 0.0
        self._pending: list[tuple[list[str], Tensor]] = []

    def add(self, loss: Tensor, stats: dict[str, Tensor]) -> None:
        """Add the loss of a chunk and its figures [C] each."""
        self.count += len(stats["logprob"])
        mismatch = stats.pop("mismatch_max", None)
        values = [loss.double()[None], torch.stack(list(stats.values())).double().sum(1)]
        names = list(stats)
        if mismatch is not None:
            values.append(mismatch.max().double()[None])
            names.append("mismatch_max")
        self._pending.append((names, torch.cat(values)))

    def _read_pending(self) -> None:
        for names, tensor in self._pending:
            loss, *values = tensor.tolist()
            self._loss += loss
            for name, value in zip(names, values, strict=True):
                if name == "mismatch_max":
                    self.max_mismatch = max(self.max_mismatch, value)
                else:
                    self.sums[name] = self.sums.get(name, 0.0) + value
        self._pending.clear()

    @property
    def loss(self) -> float:
        """The loss of everything added so far."""
        self._read_pending()
        return self._loss

    def merge(self, other: LossStats) -> None:
        """Add the sums of another batch."""
        self._loss = self.loss + other.loss
        self.count += other.count
        self.tokens += other.tokens
        self.predictions += other.predictions
        self.max_mismatch = max(self.max_mismatch, other.max_mismatch)
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def record(self) -> dict[str, Any]:
        """The sums as plain JSON."""
        names = ("loss", "count", "tokens", "predictions", "sums", "max_mismatch")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> LossStats:
        """The sums that `record` wrote."""
        stats = cls()
        stats._loss, stats.count, stats.sums = record["loss"], record["count"], record["sums"]
        stats.tokens, stats.predictions = record["tokens"], record["predictions"]
        stats.max_mismatch = record["max_mismatch"]
        return stats

    def metrics(self, kind: str) -> dict[str, float]:
        """Return the metrics of an objective of this kind: the loss and the means over predictions."""
        loss = self.loss
        mean = {name: value / self.count for name, value in self.sums.items()}
        metrics = {"actor/loss": loss, "actor/tokens": float(self.count), "actor/entropy": mean["entropy"]}
        if kind == "ce":
            return metrics | {"sft/perplexity": math.exp(min(50.0, -mean["logprob"]))}
        metrics |= {
            "actor/pg_loss": mean["pg_loss"],
            "actor/pg_clipfrac": mean["clipped"],
            "actor/pg_clipfrac_lower": mean["clipped_low"],
            "actor/ppo_kl": mean["ppo_kl"],
            "mismatch/logprob/mean": mean["mismatch"],
            "mismatch/logprob/max": self.max_mismatch,
        }
        for name in ("kl", "kl_loss"):
            if name in mean:
                metrics[f"actor/{name}"] = mean[name]
        return metrics


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
    masks = (micro.mask_rows, micro.mask_table)
    result: tuple[Tensor, Tensor] = HeadLogprobs.apply(hidden, weight, micro.targets, micro.temperatures, *masks)  # type: ignore[no-untyped-call]
    return result


MASKED_LOGIT = -1e9
"""The logit of a token that could not be sampled. Its probability is 0, and products with it are not NaN."""


def mask_logits(logits: Tensor, micro: MicroBatch, chunk: slice) -> Tensor:
    """Return the logits of a chunk [C, V] with MASKED_LOGIT for the tokens that could not be sampled there."""
    if micro.mask_rows is None or micro.mask_table is None:
        return logits
    rows = micro.mask_rows[chunk]
    table = micro.mask_table.view(torch.uint8)[rows.clamp(min=0)]
    bits = (table[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=table.device)) & 1
    masked = (bits.flatten(1)[:, : logits.shape[1]] == 0) & (rows >= 0)[:, None]
    if masked.shape[1] < logits.shape[1]:  # ids that the tokenizer does not have
        beyond = (rows >= 0)[:, None].expand(-1, logits.shape[1] - masked.shape[1])
        masked = torch.cat([masked, beyond], 1)
    return logits.masked_fill(masked, MASKED_LOGIT)


def chunk_logits(decoder: Decoder, hidden: Tensor, micro: MicroBatch, chunk: slice) -> Tensor:
    """Return the logits of a chunk of predictions [C, V], masked where not every token could be sampled."""
    return mask_logits(decoder.logits(hidden[chunk]), micro, chunk)


def head_logprobs(decoder: Decoder, hidden: Tensor, micro: MicroBatch) -> Tensor:
    """Return the log-probs of a micro-batch's targets [P] from the hidden states [P, E]."""
    if fused_head(decoder):
        return fused_logprobs(decoder, hidden, micro)[0]
    return torch.cat(
        [
            token_logprobs(
                chunk_logits(decoder, hidden, micro, chunk), micro.targets[chunk], micro.temperatures[chunk, None]
            )
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


def own_samples(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples that this rank computes."""
    return ranks.own_part(samples, lambda sample: len(sample.ids)) if dist.is_initialized() else samples


def rank_micro_batches(
    decoder: Decoder, samples: Sequence[Sample], limits: MicroBatchLimits, bucket: int = 1
) -> Iterator[tuple[MicroBatch, bool]]:
    """Yield the micro-batches of this rank's part of the samples, each with whether it counts.

    The passes of a sharded model are passes of all ranks: one that has no more samples computes the shortest of all
    with weights of zero for as long as others have some.
    """
    own = own_samples(samples)
    micros = micro_batches(own, limits, decoder.device, bucket) if own else iter(())
    if decoder.sharded is None or not samples:
        yield from ((micro, True) for micro in micros)
        return
    shortest = min(samples, key=lambda sample: len(sample.ids))
    filler = [replace(shortest, weights=np.zeros_like(shortest.weights))]
    while True:
        micro = next(micros, None)
        if not ranks.any_rank(micro is not None):
            return
        yield (next(micro_batches(filler, limits, decoder.device, bucket)), False) if micro is None else (micro, True)


def per_sample(
    decoder: Decoder, samples: Sequence[Sample], limits: MicroBatchLimits, function: Callable[[MicroBatch], Tensor]
) -> list[Tensor]:
    """Return what `function`, passes of `decoder`, gives per prediction: one tensor per sample in its tokens' order.

    Several ranks divide the samples among them, and each gets the result of all: all of them have to call this.
    """
    micros = rank_micro_batches(decoder, samples, limits)
    return ranks.gather_tensors(_per_sample(len(own_samples(samples)), micros, function))


def per_own_sample(
    samples: Sequence[Sample],
    limits: MicroBatchLimits,
    device: torch.device,
    function: Callable[[MicroBatch], Tensor],
) -> list[Tensor]:
    """Return what `per_sample` does, of samples that this process computes alone."""
    return _per_sample(len(samples), ((micro, True) for micro in micro_batches(samples, limits, device)), function)


@torch.no_grad()
def _per_sample(
    num_samples: int, micros: Iterable[tuple[MicroBatch, bool]], function: Callable[[MicroBatch], Tensor]
) -> list[Tensor]:
    result: list[Tensor] = [torch.empty(0)] * num_samples
    for micro, counts in micros:
        output = function(micro).cpu()
        if not counts:
            continue
        parts = _sample_counts(micro)
        values = torch.split(output, [count for _, count in parts])
        for (index, _), own in zip(parts, values, strict=True):
            result[index] = own.clone()
    return result


def compute_logprobs(decoder: Decoder, samples: Sequence[Sample], limits: MicroBatchLimits) -> list[Tensor]:
    """Return the log-probs of every sample's predictions, one tensor per sample."""
    return per_sample(decoder, samples, limits, lambda m: head_logprobs(decoder, hidden_states(decoder, m), m))


def compute_divergences(
    decoder: Decoder, reference: Decoder, samples: Sequence[Sample], kind: str, limits: MicroBatchLimits
) -> list[Tensor]:
    """Return a KL estimate of every sample's predictions, policy against reference, one tensor per sample."""

    def function(micro: MicroBatch) -> Tensor:
        hidden, reference_hidden = hidden_states(decoder, micro), hidden_states(reference, micro)
        return torch.cat(
            [
                divergence(
                    chunk_logits(decoder, hidden, micro, chunk),
                    chunk_logits(reference, reference_hidden, micro, chunk),
                    micro,
                    chunk,
                    kind,
                )
                for chunk in chunks(len(hidden), decoder.shape.vocabulary)
            ]
        )

    return per_sample(decoder, samples, limits, function)


def divergence(logits: Tensor, reference_logits: Tensor, micro: MicroBatch, chunk: slice, kind: str) -> Tensor:
    """Return the KL estimate of a chunk of predictions [C] from the logits of both models [C, V]."""
    temperature = micro.temperatures[chunk, None]
    logprobs = token_logprobs(logits, micro.targets[chunk], temperature)
    reference = token_logprobs(reference_logits, micro.targets[chunk], temperature)
    full = kl.full(logits / temperature, reference_logits / temperature) if kind.startswith("full") else None
    return kl.penalty(logprobs, reference, kind, full)
