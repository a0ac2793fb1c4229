"""The critic: values in the right places, learning, and a policy that it leaves alone."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from practicum.models.decoder import Decoder
from practicum.training.critic import Critic, CriticSettings, ValuedSample, explained_variance, with_next_state
from practicum.training.micro_batches import MicroBatchLimits, Sample

from .test_learner import fresh_model, make_samples


def test_no_opinion_before_evidence() -> None:
    values = Critic(Decoder(fresh_model()), CriticSettings()).values(make_samples(4, 1))
    assert all(torch.equal(v, torch.zeros_like(v)) for v in values)


def test_a_value_belongs_to_the_state_before_its_token() -> None:
    """A head that reads one hidden coordinate gives Hugging Face's hidden state at the token before."""
    model, samples = fresh_model(), make_samples(5, 2)
    critic = Critic(Decoder(copy.deepcopy(model)), CriticSettings(), limits=MicroBatchLimits(60))
    with torch.no_grad():
        critic.head.outer.weight.fill_(0.5)
    for sample, values in zip(samples, critic.values(samples), strict=True):
        with torch.no_grad():
            hidden = model.model(torch.tensor([sample.ids])).last_hidden_state[0]
            expected = critic.head(hidden)[np.flatnonzero(sample.mask) - 1]
        assert torch.allclose(values, expected, atol=1e-5)


def test_a_truncated_episode_is_valued_where_the_next_turn_would_begin() -> None:
    """The state before the first token of the next turn, which the critic is trained on when episodes go further."""
    critic = Critic(Decoder(fresh_model()), CriticSettings())
    with torch.no_grad():
        critic.head.outer.weight.fill_(0.5)
    ids, mask = tuple(range(1, 21)), np.zeros(20, dtype=bool)
    mask[5:9] = mask[14:20] = True  # two replies, five ids of the prompt in between
    zeros = np.zeros(20, dtype=np.float32)
    full = Sample(ids, mask, zeros, zeros, zeros)
    first = Sample(ids[:9], mask[:9], zeros[:9], zeros[:9], zeros[:9])
    (values,), (cut,) = critic.values([full]), critic.values([with_next_state(first, ids[9:14])])
    assert torch.allclose(cut, values[:5], atol=1e-6)


def learn(critic: Critic, steps: int = 150) -> tuple[float, float]:
    samples = make_samples(8, 4)
    returns = [torch.tensor([float(s.ids[t - 1] % 2) for t in np.flatnonzero(s.mask)]) for s in samples]
    losses = []
    for _ in range(steps):
        valued = [ValuedSample(s, v, r) for s, v, r in zip(samples, critic.values(samples), returns, strict=True)]
        losses.append(critic.update(valued, 1e-2)["critic/vf_loss"])
    return losses[0], losses[-1]


def test_a_head_learns_without_a_gradient_to_the_policy() -> None:
    model = fresh_model()
    before = copy.deepcopy(model.state_dict())
    first, last = learn(Critic(Decoder(model), CriticSettings()))
    assert last < 0.2 * first
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_of_its_own_is_trained_as_a_whole() -> None:
    policy, own = fresh_model(), fresh_model()
    before = copy.deepcopy(own.state_dict())
    first, last = learn(Critic(Decoder(policy), CriticSettings(), Decoder(own)), 40)
    assert last < 0.2 * first
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(own.state_dict()[name], before[name])


def test_states_without_a_target_teach_nothing() -> None:
    samples = make_samples(3, 5)
    critic = Critic(Decoder(fresh_model()), CriticSettings())
    values = critic.values(samples)
    assert critic.update([ValuedSample(s, v) for s, v in zip(samples, values, strict=True)], 1e-2) == {}
    half = [torch.where(torch.arange(len(v)) % 2 == 0, 1.0, math.nan) for v in values]
    result = critic.update([ValuedSample(s, v, r) for s, v, r in zip(samples, values, half, strict=True)], 1e-2)
    assert result["critic/vf_loss"] == 0.5  # ½·(0 - 1)², over the states that have a target


def test_explained_variance() -> None:
    target = np.array([0.0, 1.0, 2.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.zeros(3), target) == 0.0
    assert explained_variance(np.zeros(3), np.ones(3)) == 0.0
