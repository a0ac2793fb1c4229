"""Preference losses: by hand, their derivatives by autograd, and TRL's own."""

from __future__ import annotations

import math

import pytest
import torch

from practicum.algorithms.preferences import PREFERENCE_LOSSES, PairLogprobs, dpo, ipo, kto, preference_loss
from practicum.errors import UserError


def random_pairs(seed: int, count: int = 7) -> PairLogprobs:
    drawn = torch.Generator().manual_seed(seed)
    numbers = [-20 * torch.rand(count, generator=drawn, dtype=torch.float64) for _ in range(4)]
    lengths = [torch.randint(1, 30, (count,), generator=drawn).double() for _ in range(2)]
    return PairLogprobs(*numbers, *lengths)


def test_dpo_at_the_start_is_ln_2() -> None:
    same = torch.tensor([-3.0, -5.0])
    pairs = PairLogprobs(same, same - 1, same, same - 1, torch.ones(2), torch.ones(2))
    assert dpo(pairs, 0.1).loss.tolist() == pytest.approx([math.log(2)] * 2)


def test_dpo_by_hand() -> None:
    """Gains +2 and -1 at β = 0.5: margin 1.5."""
    pairs = PairLogprobs(*(torch.tensor([x]) for x in (-1.0, -4.0, -3.0, -3.0)), torch.ones(1), torch.ones(1))
    result = dpo(pairs, 0.5)
    assert result.loss.item() == pytest.approx(math.log(1 + math.exp(-1.5)))
    assert result.grad_chosen.item() == pytest.approx(-0.5 / (1 + math.exp(1.5)))
    assert result.grad_rejected.item() == -result.grad_chosen.item()


def test_ipo_by_hand() -> None:
    """Gains +2 over 4 tokens and -1 over 2 at β = 0.5: ½ + ½ - 1 = 0, the margin is reached."""
    sides = (torch.tensor([x]) for x in (-1.0, -4.0, -3.0, -3.0))
    pairs = PairLogprobs(*sides, torch.tensor([4.0]), torch.tensor([2.0]))
    assert ipo(pairs, 0.5).loss.item() == pytest.approx(0.0)
    assert ipo(pairs, 0.25).loss.item() == pytest.approx(1.0)


def test_kto_by_hand() -> None:
    """Gains +2 and -1: z is 0 for the chosen (the rejected's mean is below 0) and 2 for the rejected."""
    pairs = PairLogprobs(*(torch.tensor([x]) for x in (-1.0, -4.0, -3.0, -3.0)), torch.ones(1), torch.ones(1))
    logistic = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    assert kto(pairs, 0.5).loss.item() == pytest.approx((1 - logistic(1.0)) + (1 - logistic(1.5)))


@pytest.mark.parametrize("kind", list(PREFERENCE_LOSSES))
@pytest.mark.parametrize("seed", range(3))
def test_derivatives_are_autograds(kind: str, seed: int) -> None:
    """kto's z carries no gradient: it is held still while one pair at a time is moved."""
    pairs = random_pairs(seed, 1 if kind == "kto" else 7)
    smoothing = 0.1 if kind == "dpo" else 0.0
    chosen, rejected = pairs.chosen.clone().requires_grad_(), pairs.rejected.clone().requires_grad_()
    moved = PairLogprobs(chosen, rejected, *[getattr(pairs, n) for n in list(vars(pairs))[2:]])
    result = PREFERENCE_LOSSES[kind](moved, 0.3, smoothing)
    if kind == "kto":
        z_up = (pairs.rejected - pairs.reference_rejected).mean().clamp(min=0)
        z_down = (pairs.chosen - pairs.reference_chosen).mean().clamp(min=0)
        up = torch.sigmoid(0.3 * (chosen - pairs.reference_chosen - z_up))
        down = torch.sigmoid(0.3 * (z_down - rejected + pairs.reference_rejected))
        (2 - up - down).sum().backward()
    else:
        result.loss.sum().backward()
    assert chosen.grad is not None
    assert rejected.grad is not None
    assert torch.allclose(chosen.grad, result.grad_chosen.detach(), atol=1e-10)
    assert torch.allclose(rejected.grad, result.grad_rejected.detach(), atol=1e-10)


def test_wrong_names_and_smoothing() -> None:
    with pytest.raises(UserError, match="Did you mean 'dpo'"):
        preference_loss("dop")
    with pytest.raises(UserError, match="Label smoothing"):
        ipo(random_pairs(0), 0.1, 0.1)
