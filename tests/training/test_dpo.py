"""Preference through the one learner: the gradient is the loss's own, and pairs are learnt."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from practicum.algorithms.preferences import PREFERENCE_LOSSES, PairLogprobs
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.training.dpo import Pair, dpo_update, sum_logprobs, train_dpo
from practicum.training.micro_batches import Sample
from practicum.training.trainable_policy import TrainablePolicy
from tests.training.settings import dpo_settings


def sample(ids: list[int], prompt: int) -> Sample:
    mask = np.arange(len(ids)) >= prompt
    zeros = np.zeros(len(ids), dtype=np.float32)
    return Sample(tuple(ids), mask, zeros, zeros, zeros)


def make_pairs(count: int, seed: int) -> list[Pair]:
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        prompt = rng.integers(5, 200, 9).tolist()
        sides = [prompt + rng.integers(5, 200, rng.integers(2, 8)).tolist() for _ in range(2)]
        pairs.append(Pair(sample(sides[0], 9), sample(sides[1], 9)))
    return pairs


@pytest.mark.parametrize("kind", list(PREFERENCE_LOSSES))
def test_the_gradient_is_autograds_through_hugging_face(kind: str) -> None:
    pairs = make_pairs(4, 1)
    settings = dpo_settings(loss=kind, beta=0.7, max_grad_norm=0.0)
    policy = TrainablePolicy(loader.load_tiny(0))
    policy.reset_optimizer(settings.optimizer)
    policy.learner.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    samples = [p.chosen for p in pairs] + [p.rejected for p in pairs]
    reference = sum_logprobs(policy.decoder, policy, samples) + torch.linspace(-2, 2, 8, dtype=torch.float64)
    dpo_update(policy, pairs, reference, settings, 0.0)
    actual = {n: p.grad.clone() for n, p in policy.loaded.model.named_parameters() if p.grad is not None}

    model = loader.load_tiny(0).model
    sums = []
    for sample in samples:
        ids = torch.tensor([sample.ids])
        table = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        sums.append(table[torch.from_numpy(sample.mask[1:])].double().sum())
    stacked = torch.stack(sums)
    lengths = torch.tensor([float(sample.mask.sum()) for sample in samples], dtype=torch.float64)
    batch = PairLogprobs(stacked[:4], stacked[4:], reference[:4], reference[4:], lengths[:4], lengths[4:])
    if kind == "kto":  # z carries no gradient
        won, lost = batch.log_ratios
        up = torch.sigmoid(0.7 * (won - lost.mean().clamp(min=0).detach()))
        down = torch.sigmoid(0.7 * (won.mean().clamp(min=0).detach() - lost))
        (2 - up - down).mean().backward()
    else:
        PREFERENCE_LOSSES[kind](batch, 0.7, 0.0).loss.mean().backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    difference = math.sqrt(sum(float((actual[n] - expected[n]).square().sum()) for n in expected))
    size = math.sqrt(sum(float(expected[n].square().sum()) for n in expected))
    assert difference / size < 1e-5


@pytest.mark.parametrize("adapter", [False, True])
def test_pairs_are_learnt_beginning_at_a_loss_of_ln_2(adapter: bool) -> None:
    loaded = loader.load_tiny(0)
    policy = TrainablePolicy(lora.add_adapter(loaded, lora.LoRASettings(8)) if adapter else loaded)
    metrics: list[dict[str, float]] = []
    settings = dpo_settings(num_epochs=12, batch_size=8, learning_rate=5e-3 if adapter else 1e-3, warmup_ratio=0.0)
    used = asyncio.run(train_dpo(policy, make_pairs(16, 2), settings, on_step=lambda n, values: metrics.append(values)))
    assert used == 24
    assert metrics[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics[-1]["dpo/loss"] < 0.3
    assert metrics[-1]["dpo/accuracy"] == 1.0
    assert metrics[-1]["dpo/reward_margin"] > 1.0


def test_the_reference_is_the_adapter_it_starts_from(tmp_path: Path) -> None:
    pairs, settings = make_pairs(8, 4), dpo_settings(num_epochs=4, batch_size=8, learning_rate=5e-3, warmup_ratio=0.0)
    first = TrainablePolicy(lora.add_adapter(loader.load_tiny(0), lora.LoRASettings(8)))
    asyncio.run(train_dpo(first, make_pairs(8, 5), settings))
    first.save(tmp_path / "adapter")
    second = TrainablePolicy(lora.load_adapter(loader.load_tiny(0), tmp_path / "adapter"))
    metrics: list[float] = []
    asyncio.run(train_dpo(second, pairs, settings, on_step=lambda n, values: metrics.append(values["dpo/loss"])))
    assert metrics[0] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics[-1] < 0.6


def test_the_same_seed_gives_the_same_weights_and_a_later_start_the_rest() -> None:
    pairs = make_pairs(10, 3)
    settings = dpo_settings(num_epochs=2, batch_size=4, learning_rate=1e-3)

    def run() -> dict[str, torch.Tensor]:
        policy = TrainablePolicy(loader.load_tiny(0))
        asyncio.run(train_dpo(policy, pairs, settings))
        return dict(policy.loaded.model.state_dict())

    first, second = run(), run()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_pairs_and_wrong_settings_are_errors() -> None:
    with pytest.raises(UserError, match="no pair to learn from"):
        asyncio.run(train_dpo(TrainablePolicy(loader.load_tiny(0)), [], dpo_settings()))
    with pytest.raises(UserError, match="training.beta=0: it must be above 0"):
        dpo_settings(beta=0)
