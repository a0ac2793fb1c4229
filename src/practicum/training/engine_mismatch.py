"""The engine mismatch: how far the log-probs that the engine sampled with are from the learner's own.

Both run the same policy, so a large difference means that the engine does not have the weights being trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from practicum.errors import UserError
from practicum.training.micro_batches import Sample


def engine_mismatch(samples: Sequence[Sample], learner_logprobs: Sequence[Tensor]) -> dict[str, float]:
    """Mean and maximum of |engine - learner| log-prob over the sampled tokens; one tensor per sample."""
    engine = np.concatenate([sample.sampling_logprobs[sample.mask] for sample in samples])
    difference = np.abs(engine - np.concatenate([values.numpy() for values in learner_logprobs]))
    return {"mismatch/logprob/mean": float(difference.mean()), "mismatch/logprob/max": float(difference.max())}


def check_mismatch(step: int, metrics: Mapping[str, float], limit: float) -> None:
    """Raise when the mean mismatch per token is above the limit."""
    mean = metrics.get("mismatch/logprob/mean", 0.0)
    if mean > limit:
        raise UserError(
            f"Step {step}: engine and learner disagree by {mean:.3g} per token on average; "
            "the engine is not running the policy being trained, so the run stops."
        )
