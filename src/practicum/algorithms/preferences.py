"""Which of two replies is better: losses over pairs, with the gradient that each side's log-prob gets.

The gradient is given by hand, so that the learner can take a preference as what it knows: a weight on
every token of a sequence. A test holds it to autograd and to TRL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Pairs:
    """Summed log-probs of chosen and rejected replies under policy and reference, and their lengths [B]."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_length: Tensor
    rejected_length: Tensor

    @property
    def gains(self) -> tuple[Tensor, Tensor]:
        """Log-ratios of policy to reference."""
        return self.chosen - self.reference_chosen, self.rejected - self.reference_rejected


@dataclass(frozen=True)
class PairLoss:
    """Loss of each pair [B] and its derivative by the summed log-prob of either side [B]."""

    loss: Tensor
    by_chosen: Tensor
    by_rejected: Tensor


def dpo(pairs: Pairs, beta: float, smoothing: float = 0.0) -> PairLoss:
    """-log σ(β·(gain of the chosen - gain of the rejected)); `smoothing` is the share of labels taken as wrong.

    Rafailov et al. 2023 (arXiv:2305.18290); Mitchell 2023 for the smoothing.
    """
    chosen, rejected = pairs.gains
    margin = beta * (chosen - rejected)
    loss = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
    slope = beta * (-(1 - smoothing) * torch.sigmoid(-margin) + smoothing * torch.sigmoid(margin))
    return PairLoss(loss, slope, -slope)


def ipo(pairs: Pairs, beta: float, smoothing: float = 0.0) -> PairLoss:
    """(difference of the mean gains per token - 1/(2β))²: a margin to reach, not to push for ever.

    Azar et al. 2023 (arXiv:2310.12036), with gains averaged over tokens.
    """
    if smoothing:
        raise UserError("Label smoothing belongs to the dpo loss; leave it at 0 with ipo.")
    chosen, rejected = pairs.gains
    error = chosen / pairs.chosen_length - rejected / pairs.rejected_length - 1 / (2 * beta)
    return PairLoss(error.square(), 2 * error / pairs.chosen_length, -2 * error / pairs.rejected_length)


def kto(pairs: Pairs, beta: float, smoothing: float = 0.0) -> PairLoss:
    """Each side against the batch: 1 - σ(β(gain - z)) for the chosen, 1 - σ(β(z - gain)) for the rejected.

    z is the mean gain of the other side's replies, not below 0, and carries no gradient.
    Ethayarajh et al. 2024 (arXiv:2402.01306), in its form for pairs.
    """
    if smoothing:
        raise UserError("Label smoothing belongs to the dpo loss; leave it at 0 with kto.")
    chosen, rejected = pairs.gains
    up = torch.sigmoid(beta * (chosen - rejected.mean().clamp(min=0)))
    down = torch.sigmoid(beta * (chosen.mean().clamp(min=0) - rejected))
    return PairLoss((1 - up) + (1 - down), -beta * up * (1 - up), beta * down * (1 - down))


LOSSES: dict[str, Callable[[Pairs, float, float], PairLoss]] = {"dpo": dpo, "ipo": ipo, "kto": kto}


def preference_loss(kind: str) -> Callable[[Pairs, float, float], PairLoss]:
    if kind not in LOSSES:
        raise UserError(f"Unknown preference loss '{kind}'.{did_you_mean(kind, LOSSES)}")
    return LOSSES[kind]
