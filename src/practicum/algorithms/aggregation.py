"""Loss aggregation: how the losses of single tokens become one number for a batch.

A mode gives every turn a weight, which each of its sampled tokens gets, and the batch one denominator; the
batch loss is Σ weight·loss / denominator. Both are counted over the whole batch before the first
micro-batch, so the gradient does not depend on how a batch is split.

Adding a mode: a function here, its entry in AGGREGATIONS, golden values in tests/algorithms/test_aggregation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from practicum.errors import UserError, did_you_mean

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
