"""Losses per token (policy losses and the value loss), and their aggregation over a batch, as pure functions.

Adding a policy loss: a function here, its name in POLICY_LOSSES, a line in `training/objective.py`, golden values in
tests/algorithms/test_losses.py.

An aggregation says how the losses of single tokens become one number for a batch. It gives every turn a weight, which
each of its sampled tokens gets, and the batch one denominator; the batch loss is Σ weight·loss / denominator. Both are
counted over the whole batch before the first micro-batch, so the gradient does not depend on how a batch is split.
Adding one: a function here, its entry in AGGREGATIONS, golden values in tests/algorithms/test_aggregation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.errors import UserError, did_you_mean

POLICY_LOSSES = ("vanilla", "gspo", "cispo")
"""The values of `actor_rollout_ref.actor.policy_loss.loss_mode`, in verl's spelling; vanilla is `ppo`."""
MAX_LOG_RATIO = 20.0
"""Bound of |log π - log π_old| before it is exponentiated, so that no ratio overflows."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss of each token [N] and, detached, its ratio [N] and whether a clip was in force [N]."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    clipped_low: Tensor


def ppo(
    logprobs: Tensor,
    old: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> PolicyLoss:
    """Return PPO's clipped surrogate of each token [N], with a second clip for large ratios at negative advantages.

    Schulman et al. 2017 (arXiv:1707.06347); Ye et al. 2020 (arXiv:1912.09729) for the dual clip.
    """
    ratio = importance_ratio(logprobs, old)
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    larger = torch.maximum(unclipped, clipped)
    bounded = torch.minimum(-advantages * dual_clip, larger)
    loss = torch.where(advantages < 0, bounded, larger)
    with torch.no_grad():
        return PolicyLoss(loss, ratio.detach(), clipped > unclipped, (advantages < 0) & (bounded < larger))


def sequence_log_ratios(logprobs: Tensor, old: Tensor, sequence: Tensor) -> Tensor:
    """Return the mean log-ratio of the sequence each token belongs to [N], detached.

    `sequence` [N] holds the index of each token's sequence; the indices need not be consecutive.
    """
    log_ratios = (logprobs - old).detach()
    _, owner = torch.unique(sequence, return_inverse=True)
    count = int(owner.max()) + 1 if len(owner) else 0
    sums = torch.zeros(count, dtype=log_ratios.dtype, device=log_ratios.device).index_add_(0, owner, log_ratios)
    lengths = torch.zeros_like(sums).index_add_(0, owner, torch.ones_like(log_ratios))
    return (sums / lengths)[owner]


def gspo(
    logprobs: Tensor, log_ratios: Tensor, advantages: Tensor, clip_low: float = 0.2, clip_high: float = 0.2
) -> PolicyLoss:
    """Return the clipped surrogate of each token [N] with one ratio per sequence: the geometric mean of its tokens'.

    `log_ratios` [N] comes from `sequence_log_ratios`. The value of every token's ratio is its
    sequence's; the gradient passes through the token itself, and the sum over tokens is the sequence's own.
    Zheng et al. 2025 (arXiv:2507.18071).
    """
    ratio = torch.exp((log_ratios + logprobs - logprobs.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(unclipped, clipped)
    return PolicyLoss(loss, ratio.detach(), (clipped > unclipped).detach(), torch.zeros_like(unclipped) > 0)


def cispo(logprobs: Tensor, old: Tensor, advantages: Tensor, clip_high: float = 0.2) -> PolicyLoss:
    """Return REINFORCE's loss of each token [N], weighted by a detached ratio capped at 1 + `clip_high`.

    The cap bounds the weight and not the loss, so no token loses its gradient. MiniMax 2025 (arXiv:2506.13585).
    """
    ratio = importance_ratio(logprobs, old).detach()
    capped = ratio.clamp(max=1.0 + clip_high)
    return PolicyLoss(-capped * advantages * logprobs, ratio, capped < ratio, torch.zeros_like(ratio) > 0)


def importance_ratio(logprobs: Tensor, old: Tensor) -> Tensor:
    """Return π/π_old of each token [N]; the log-ratio is clamped at ±MAX_LOG_RATIO."""
    return torch.exp((logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def truncated_importance(old: Tensor, sampling: Tensor, cap: float) -> Tensor:
    """Return min(π_old/π_sampling, cap) of each token [N]: it corrects for an engine that differs from the learner.

    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"; the truncation is that of
    Espeholt et al. 2018, IMPALA (arXiv:1802.01561).
    """
    return importance_ratio(old, sampling).clamp(max=cap)


def value_loss(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return ½·max((V - G)², (V_clipped - G)²) of each step [N], and where the clipped term was the larger [N].

    V_clipped is V kept within ±`clip` of its old value; `clip` of 0 gives the plain squared error.
    Schulman et al. 2017 (arXiv:1707.06347), as in OpenAI's baselines.
    """
    squared_error = (values - returns).square()
    if clip <= 0:
        return 0.5 * squared_error, torch.zeros_like(squared_error) > 0
    clipped = (old + (values - old).clamp(-clip, clip) - returns).square()
    return 0.5 * torch.maximum(squared_error, clipped), (clipped > squared_error).detach()


TurnLengths = Sequence[Sequence[int]]
"""For every trajectory, the number of sampled tokens of each of its turns."""
TurnWeights = tuple[list[list[float]], float]
"""For every trajectory, the weight of each of its turns' tokens; and the denominator of the batch."""


def token_mean(lengths: TurnLengths, norm: float) -> TurnWeights:
    """Weigh every token of the batch alike. Yu et al. 2025, DAPO (arXiv:2503.14476)."""
    return [[1.0] * len(turns) for turns in lengths], float(sum(sum(turns) for turns in lengths))


def seq_mean_token_mean(lengths: TurnLengths, norm: float) -> TurnWeights:
    """Weigh every trajectory alike, and the tokens within it. Shao et al. 2024, GRPO (arXiv:2402.03300)."""
    return [[1.0 / max(1, sum(turns))] * len(turns) for turns in lengths], float(num_trained(lengths))


def seq_mean_token_sum(lengths: TurnLengths, norm: float) -> TurnWeights:
    """Sum the tokens of a trajectory and take the mean over trajectories. Liu et al. 2025 (arXiv:2503.20783)."""
    return [[1.0] * len(turns) for turns in lengths], num_trained(lengths) * 1.0


def seq_mean_token_sum_norm(lengths: TurnLengths, norm: float) -> TurnWeights:
    """Divide the sum of a trajectory's tokens by the constant `norm`. Liu et al. 2025, Dr.GRPO (arXiv:2503.20783)."""
    return [[1.0] * len(turns) for turns in lengths], num_trained(lengths) * norm


def seq_mean_turn_mean_token_mean(lengths: TurnLengths, norm: float) -> TurnWeights:
    """Weigh every trajectory alike, within it every turn, and within that every token.

    Li et al. 2025, Flow-GRPO of AgentFlow (arXiv:2510.05592).
    """
    num_turns = [max(1, sum(length > 0 for length in turns)) for turns in lengths]
    weights = [
        [1.0 / (count * max(1, length)) for length in turns] for turns, count in zip(lengths, num_turns, strict=True)
    ]
    return weights, float(num_trained(lengths))


def num_trained(lengths: TurnLengths) -> int:
    """Count the trajectories with at least one sampled token."""
    return sum(sum(turns) > 0 for turns in lengths)


AGGREGATIONS: dict[str, Callable[[TurnLengths, float], TurnWeights]] = {
    "token-mean": token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
    "seq-mean-turn-mean-token-mean": seq_mean_turn_mean_token_mean,
}
"""The values of `actor_rollout_ref.actor.loss_agg_mode`, in verl's spelling."""


def token_weights(lengths: TurnLengths, mode: str, norm: float = 1.0) -> TurnWeights:
    """Return the weight of every turn's tokens and the denominator of the batch under the named mode.

    `norm` is the constant length of seq-mean-token-sum-norm; the other modes do not use it.
    """
    if mode not in AGGREGATIONS:
        raise UserError(f"Unknown loss aggregation '{mode}'.{did_you_mean(mode, AGGREGATIONS)}")
    return AGGREGATIONS[mode](lengths, norm)
