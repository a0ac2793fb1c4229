"""The rubric manager's REINFORCE: loss = -reward · Σ log p(action tokens); its baseline is the group mean.

Here it is an estimator over groups of one (no baseline: the advantage is the reward), summed over an episode's tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from practicum.algorithms import losses
from practicum.training.estimators import ESTIMATORS, EstimatorSettings, TokenRewards
from practicum.training.micro_batches import Sample
from tests.training.settings import policy_gradient

from .test_learner import Gradients, distance, fresh_model, gradients

LOGPROBS = (-0.5, -1.25, -2.0)
REWARD = 0.8


def rated(reward: float, tokens: int) -> TokenRewards:
    rewards = np.zeros(tokens)
    rewards[-1] = reward
    return TokenRewards(rewards, np.zeros(tokens, dtype=np.int64))


def test_the_estimator_is_the_reward_and_sums_tokens() -> None:
    estimator = ESTIMATORS["reinforce"]
    groups = [[rated(REWARD, 3)], [rated(-0.5, 1), rated(0.25, 2)]]
    values = estimator.function(groups, EstimatorSettings()).advantages
    assert [[row.tolist() for row in group] for group in values] == [[[REWARD] * 3], [[-0.5], [0.25] * 2]]
    assert (estimator.min_group_size, estimator.aggregation) == (1, "seq-mean-token-sum")


def test_the_golden_value() -> None:
    """-0.8 · (-0.5 - 1.25 - 2.0) = 3.0, and -0.8 a log-prob as gradient, whichever loss is chosen."""
    ((advantages,),) = ESTIMATORS["grpo"].function([[rated(REWARD, 3)]], EstimatorSettings()).advantages
    assert advantages.tolist() == [REWARD] * 3
    ((weight,),), denominator = losses.token_weights([[3]], "seq-mean-token-sum")
    value = torch.from_numpy(advantages)
    for loss in (losses.cispo, losses.ppo):
        logprobs = torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=True)
        total = (weight * loss(logprobs, logprobs.detach(), value).loss).sum() / denominator
        total.backward()
        assert logprobs.grad is not None
        assert logprobs.grad.tolist() == pytest.approx([-REWARD] * 3, abs=1e-15)
        if loss is losses.cispo:  # its value is the formula's too; the clipped surrogate's is that of its ratio
            assert total.item() == pytest.approx(3.0, abs=1e-12)


@pytest.mark.parametrize("estimator", ["grpo", "rloo"])
def test_the_group_mean_as_baseline(estimator: str) -> None:
    """Two chains, rewards 1 and 0: what the seed says it needs to have little variance."""
    settings = EstimatorSettings(norm_adv_by_std_in_grpo=False)
    (group,) = ESTIMATORS[estimator].function([[rated(1.0, 2), rated(0.0, 1)]], settings).advantages
    expected = {"grpo": ([0.5, 0.5], [-0.5]), "rloo": ([1.0, 1.0], [-1.0])}[estimator]
    assert tuple(row.tolist() for row in group) == expected


def formula(samples: list[Sample], rewards: list[float]) -> Gradients:
    """-reward · Σ log p, one episode at a time, on Hugging Face's own forward."""
    model = fresh_model()
    total = torch.zeros(())
    for sample, reward in zip(samples, rewards, strict=True):
        ids = torch.tensor([sample.ids])
        table = model(ids).logits[0, :-1].log_softmax(-1)
        logprobs = table.gather(-1, ids[0, 1:, None])[:, 0]
        total = total - reward * logprobs[torch.from_numpy(sample.mask[1:])].sum() / len(samples)
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("policy_loss", ["vanilla", "cispo"])
def test_the_learners_gradient_is_the_formulas(policy_loss: str) -> None:
    """Three episodes of different length and reward, a negative one among them; only action tokens count."""
    rng = np.random.default_rng(3)
    rewards = [0.8, -0.4, 1.5]
    samples = []
    for length, reward in zip((6, 9, 14), rewards, strict=True):
        mask = rng.random(length) < 0.5
        mask[0], mask[-1] = False, True
        ((row,),) = ESTIMATORS["grpo"].function([[rated(reward, int(mask.sum()))]], EstimatorSettings()).advantages
        advantages = np.zeros(length, dtype=np.float32)
        advantages[mask] = row
        zeros = np.zeros(length, dtype=np.float32)
        ids = tuple(rng.integers(1, 53, length).tolist())
        samples.append(Sample(ids, mask, mask.astype(np.float32) * 7.0 / 3, advantages, zeros, 1.0))
    model = fresh_model()
    references = []
    with torch.no_grad():  # sampled by the policy itself: the ratio is one
        for sample in samples:
            row_ids = torch.tensor([sample.ids])
            table = model(row_ids).logits[0, :-1].log_softmax(-1).gather(-1, row_ids[0, 1:, None])[:, 0]
            references.append(
                replace(sample, sampling_logprobs=np.concatenate([[0.0], table.numpy()]).astype(np.float32))
            )
    result = gradients(references, policy_gradient(loss_mode=policy_loss))  # over a denominator of 7
    assert distance(result, formula(samples, rewards)) < 1e-5
