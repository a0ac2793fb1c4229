"""Preference losses over pairs of replies, with the derivative by the log-prob of each side.

The derivative is written out, so that a preference reaches the learner as a weight on
every token of a sequence. Tests hold it to autograd and to TRL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.errors import UserError, did_you_mean


@dataclass(frozen=True)
class PairLogprobs:
    """Summed log-probs of chosen and rejected replies under policy and reference, and their lengths [B]."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor
    chosen_length: Tensor
    rejected_length: Tensor

    @property
    def log_ratios(self) -> tuple[Tensor, Tensor]:
        """Log-ratios of policy to reference, of the chosen and of the rejected replies [B]."""
        return self.chosen - self.reference_chosen, self.rejected - self.reference_rejected


@dataclass(frozen=True)
class PairLoss:
    """The loss of each pair [B] and its derivative by the summed log-prob of either side [B]."""

    loss: Tensor
    grad_chosen: Tensor
    grad_rejected: Tensor


def dpo(pairs: PairLogprobs, beta: float, smoothing: float = 0.0) -> PairLoss:
    """Return -log σ(β·(log-ratio of chosen - log-ratio of rejected)); `smoothing` is the assumed share of wrong labels.

    Rafailov et al. 2023 (arXiv:2305.18290); Mitchell 2023 for the smoothing.
    """
    chosen, rejected = pairs.log_ratios
    margin = beta * (chosen - rejected)
    loss = -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin)
    slope = beta * (-(1 - smoothing) * torch.sigmoid(-margin) + smoothing * torch.sigmoid(margin))
    return PairLoss(loss, slope, -slope)


def ipo(pairs: PairLogprobs, beta: float, smoothing: float = 0.0) -> PairLoss:
    """Return (difference of the mean log-ratios per token - 1/(2β))²: a margin to reach, not to widen for ever.

    Azar et al. 2023 (arXiv:2310.12036), with log-ratios averaged over tokens.
    """
    if smoothing:
        raise UserError("Label smoothing belongs to the dpo loss; leave it at 0 with ipo.")
    chosen, rejected = pairs.log_ratios
    error = chosen / pairs.chosen_length - rejected / pairs.rejected_length - 1 / (2 * beta)
    return PairLoss(error.square(), 2 * error / pairs.chosen_length, -2 * error / pairs.rejected_length)


def kto(pairs: PairLogprobs, beta: float, smoothing: float = 0.0) -> PairLoss:
    """Return 1 - σ(β(r - z)) for the chosen plus 1 - σ(β(z - r)) for the rejected, with r the log-ratio of a side.

    z is the mean log-ratio of the other side's replies in the batch, at least 0, and carries no gradient.
    Ethayarajh et al. 2024 (arXiv:2402.01306), in its form for pairs.
    """
    if smoothing:
        raise UserError("Label smoothing belongs to the dpo loss; leave it at 0 with kto.")
    chosen, rejected = pairs.log_ratios
    chosen_sigmoid = torch.sigmoid(beta * (chosen - rejected.mean().clamp(min=0)))
    rejected_sigmoid = torch.sigmoid(beta * (chosen.mean().clamp(min=0) - rejected))
    loss = (1 - chosen_sigmoid) + (1 - rejected_sigmoid)
    grad_chosen = -beta * chosen_sigmoid * (1 - chosen_sigmoid)
    grad_rejected = beta * rejected_sigmoid * (1 - rejected_sigmoid)
    return PairLoss(loss, grad_chosen, grad_rejected)


PREFERENCE_LOSSES: dict[str, Callable[[PairLogprobs, float, float], PairLoss]] = {"dpo": dpo, "ipo": ipo, "kto": kto}


def preference_loss(kind: str) -> Callable[[PairLogprobs, float, float], PairLoss]:
    """Return the loss of that name, or raise an error that names the nearest one."""
    if kind not in PREFERENCE_LOSSES:
        raise UserError(f"Unknown preference loss '{kind}'.{did_you_mean(kind, PREFERENCE_LOSSES)}")
    return PREFERENCE_LOSSES[kind]
