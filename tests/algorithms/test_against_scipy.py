"""Our estimators against scipy and numpy, which know none of them by name but all of their parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import signal, stats

from practicum.algorithms import advantages, kl
from practicum.utils.arrays import FloatArray

SEEDS = range(4)


def draw(seed: int, *shape: int) -> FloatArray:
    return np.random.default_rng(seed).normal(size=shape)


def discounted(values: FloatArray, factor: float) -> FloatArray:
    """Discounted sums from the end: a filter with one pole, run backwards."""
    return np.asarray(signal.lfilter([1.0], [1.0, -factor], values[::-1])[::-1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_returns_are_a_filter(gamma: float, seed: int) -> None:
    rewards = draw(seed, 50)
    np.testing.assert_allclose(advantages.returns_to_go(rewards, gamma), discounted(rewards, gamma), atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (1.0, 1.0), (0.9, 0.0), (1.0, 0.5)])
@pytest.mark.parametrize("bootstrap", [0.0, -0.7])
def test_generalised_advantages_are_filtered_errors(bootstrap: float, gamma: float, lam: float, seed: int) -> None:
    rewards, values = draw(seed, 2, 40)
    errors = rewards + gamma * np.append(values[1:], bootstrap) - values
    result, returns = advantages.gae(rewards, values, gamma, lam, bootstrap)
    np.testing.assert_allclose(result, discounted(errors, gamma * lam), atol=1e-10)
    np.testing.assert_allclose(returns, result + values, atol=1e-12)


def test_without_decay_advantages_are_returns_less_values() -> None:
    rewards, values = draw(0, 2, 40)
    result, _ = advantages.gae(rewards, values, 0.97, 1.0)
    np.testing.assert_allclose(result, discounted(rewards, 0.97) - values, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_normalising_is_a_z_score(seed: int) -> None:
    rewards = 100.0 * draw(seed, 9)  # large, so that the small number under the fraction cannot be seen
    np.testing.assert_allclose(advantages.grpo(rewards.tolist()), stats.zscore(rewards, ddof=1), rtol=1e-6)
    rows = advantages.whiten(np.split(rewards, [2, 3, 7]))
    np.testing.assert_allclose(np.concatenate(rows), stats.zscore(rewards, ddof=1), rtol=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_plus_plus_is_a_z_score_of_returns(seed: int) -> None:
    rows = [draw(seed + index, length) for index, length in enumerate((3, 11, 1))]
    expected = stats.zscore(np.concatenate([discounted(row, 0.9) for row in rows]), ddof=1)
    result = np.concatenate(advantages.reinforce_plus_plus(rows, 0.9))
    np.testing.assert_allclose(result, expected, rtol=1e-7)


@pytest.mark.parametrize("seed", SEEDS)
def test_leave_one_out_leaves_one_out(seed: int) -> None:
    rewards = draw(seed, 6)
    others = [np.delete(rewards, index).mean() for index in range(6)]
    np.testing.assert_allclose(advantages.rloo(rewards.tolist()), rewards - others, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_turns_weigh_as_often_as_they_occur(seed: int) -> None:
    rewards, turns = 100.0 * draw(seed, 5), [1, 4, 2, 7, 3]
    rows = stats.zscore(np.repeat(rewards, turns), ddof=1)
    result = advantages.flow_grpo(rewards.tolist(), turns, row_weighted=True)
    np.testing.assert_allclose(np.repeat(result, turns), rows, rtol=1e-6)
    np.testing.assert_allclose(advantages.flow_grpo(rewards.tolist(), turns), stats.zscore(rewards, ddof=1), rtol=1e-6)


def distributions(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy and a reference [positions, vocabulary], near enough that no bound is touched."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 17, generator=generator, dtype=torch.float64)
    return logits, logits + 0.3 * torch.randn(3, 17, generator=generator, dtype=torch.float64)


def relative_entropy(logits: torch.Tensor, reference: torch.Tensor) -> FloatArray:
    return np.asarray(stats.entropy(logits.softmax(-1).numpy(), reference.softmax(-1).numpy(), axis=-1))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_whole_divergence_is_relative_entropy(seed: int) -> None:
    logits, reference = distributions(seed)
    np.testing.assert_allclose(kl.full(logits, reference).numpy(), relative_entropy(logits, reference), rtol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["kl", "low_var_kl"])
def test_sampled_estimates_are_right_on_average(kind: str, seed: int) -> None:
    """The mean over all tokens that might have been sampled, each as often as it is."""
    logits, reference = distributions(seed)
    policy_logprobs, other = logits.log_softmax(-1), reference.log_softmax(-1)
    average = (policy_logprobs.exp() * kl.penalty(policy_logprobs, other, kind)).sum(-1)
    np.testing.assert_allclose(average.numpy(), relative_entropy(logits, reference), rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["mse", "kl+", "low_var_kl+"])
def test_gradients_that_should_be_right_are(kind: str, seed: int) -> None:
    """Their mean over what might have been sampled is the gradient of the divergence itself, by finite differences."""
    logits, reference = distributions(seed)
    leaf = logits.clone().requires_grad_()
    policy_logprobs = leaf.log_softmax(-1)
    torch.autograd.backward(
        (policy_logprobs.detach().exp() * kl.penalty(policy_logprobs, reference.log_softmax(-1), kind)).sum()
    )
    assert leaf.grad is not None
    step = 1e-5
    for index in range(0, 17, 4):
        nudge = torch.zeros_like(logits)
        nudge[:, index] = step
        rise = relative_entropy(logits + nudge, reference) - relative_entropy(logits - nudge, reference)
        np.testing.assert_allclose(leaf.grad[:, index].numpy(), rise / (2 * step), atol=1e-8)
