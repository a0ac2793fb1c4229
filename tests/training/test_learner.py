"""The one learner: its gradients are Hugging Face's, whatever the packing; nothing else is trained."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.algorithms import kl
from practicum.algorithms import losses as policy_losses
from practicum.errors import UserError
from practicum.models.decoder import Decoder
from practicum.training.learner import Learner, OptimizerSettings, balanced_halves
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.objective import CROSS_ENTROPY, Objective
from tests.training.settings import POLICY_GRADIENT, policy_gradient

VOCABULARY = 53


def fresh_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                         initializer_range=0.08)  # fmt: skip
    return LlamaForCausalLM(config).eval()


def make_samples(count: int, seed: int, temperature: float = 1.0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    stem = rng.integers(1, VOCABULARY, 12).tolist()
    results = []
    for _ in range(count):
        ids = stem[: rng.integers(0, 13)] + rng.integers(1, VOCABULARY, rng.integers(3, 20)).tolist()
        mask = rng.random(len(ids)) < 0.5
        mask[0], mask[-1] = False, True
        results.append(
            Sample(
                tuple(ids),
                mask,
                np.where(mask, rng.uniform(0.5, 2, len(ids)), 0).astype(np.float32),
                np.where(mask, rng.normal(size=len(ids)), 0).astype(np.float32),
                rng.uniform(-4, -1, len(ids)).astype(np.float32),
                temperature,
            )
        )
    return results


Gradients = dict[str, torch.Tensor]


def gradients(
    samples: list[Sample],
    objective: Objective,
    reference: LlamaForCausalLM | None = None,
    limits: MicroBatchLimits | None = None,
) -> Gradients:
    model = fresh_model()
    learner = Learner(Decoder(model), OptimizerSettings(grad_clip=0.0), limits)
    learner.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    learner.update(samples, 7.0, objective, 0.0, None if reference is None else Decoder(copy.deepcopy(reference)))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def expected_gradients(
    samples: list[Sample], objective: Objective, reference: LlamaForCausalLM | None = None
) -> Gradients:
    """The same loss, one sequence at a time, on Hugging Face's own forward."""
    model = fresh_model()
    total = torch.zeros(())
    for sample in samples:
        ids = torch.tensor([sample.ids])
        logits = model(ids).logits[0, :-1] / sample.temperature
        table = logits.log_softmax(-1)
        logprobs = table.gather(-1, ids[0, 1:, None])[:, 0]
        on = torch.from_numpy(sample.mask[1:])
        weights = torch.from_numpy(sample.weights[1:])[on]
        if objective.kind == "ce":
            losses = -logprobs[on]
        else:
            old = torch.from_numpy(sample.sampling_logprobs[1:])[on]
            advantages = torch.from_numpy(sample.advantages[1:])[on]
            if objective.loss_mode == "gspo":  # the sequence's own ratio, differentiated as it stands
                ratio = (logprobs[on] - old).mean().exp()
                clipped = ratio.clamp(1 - objective.clip_ratio_low, 1 + objective.clip_ratio_high)
                losses = torch.maximum(-advantages * ratio, -advantages * clipped)
            elif objective.loss_mode == "cispo":
                losses = policy_losses.cispo(logprobs[on], old, advantages).loss
            else:
                losses = policy_losses.ppo(logprobs[on], old, advantages).loss
            entropy = -(table.exp() * table).sum(-1)[on]
            losses = losses - objective.entropy_coeff * entropy
            if reference is not None:
                with torch.no_grad():
                    other = (reference(ids).logits[0, :-1] / sample.temperature).log_softmax(-1)
                reference_logprobs = other.gather(-1, ids[0, 1:, None])[:, 0]
                full = (table.exp() * (table - other)).sum(-1)[on]
                losses = losses + objective.kl_loss_coef * kl.penalty(
                    logprobs[on], reference_logprobs[on], objective.kl_loss_type, full
                )
        total = total + (losses * weights).sum() / 7.0
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def distance(actual: Gradients, expected: Gradients) -> float:
    a, b = (torch.cat([g[name].flatten() for name in sorted(g)]) for g in (actual, expected))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("objective", [CROSS_ENTROPY, POLICY_GRADIENT, policy_gradient(entropy_coeff=0.05)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_equal_hugging_face(objective: Objective, temperature: float) -> None:
    samples = make_samples(9, 1, temperature)
    assert distance(gradients(samples, objective), expected_gradients(samples, objective)) < 2e-6


@pytest.mark.parametrize("kind", ["mse", "low_var_kl", "full", "kl+", "full+"])
def test_kl_to_a_reference(kind: str) -> None:
    samples = make_samples(5, 2, 0.8)
    objective = policy_gradient(kl_loss_coef=0.3, kl_loss_type=kind)
    reference = fresh_model()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.3)
    assert distance(gradients(samples, objective, reference), expected_gradients(samples, objective, reference)) < 2e-6


@pytest.mark.parametrize("loss", ["gspo", "cispo"])
def test_other_surrogates_equal_hugging_face(loss: str) -> None:
    """One-sequence advantages, as GSPO is meant for; ratios near one, so that some are clipped and some not."""
    model, samples = fresh_model(), []
    rng = np.random.default_rng(3)
    for sample in make_samples(9, 3):
        ids = torch.tensor([sample.ids])
        with torch.no_grad():
            table = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0].numpy()
        logprobs = np.append(0, table + rng.normal(0, 0.3, len(table))).astype(np.float32)
        flat = np.where(sample.mask, rng.normal(), 0).astype(np.float32)
        share = (sample.mask / sample.mask.sum()).astype(np.float32)
        samples.append(replace(sample, sampling_logprobs=logprobs, advantages=flat, weights=share))
    objective = policy_gradient(loss_mode=loss)
    assert distance(gradients(samples, objective), expected_gradients(samples, objective)) < 2e-6
    pieces = gradients(samples, objective, limits=MicroBatchLimits(30, 2))
    assert distance(pieces, expected_gradients(samples, objective)) < 2e-6


def test_corrections_weigh_the_policy_gradient() -> None:
    samples = make_samples(5, 11)
    twice = [replace(s, corrections=np.full(len(s.ids), 2.0, np.float32)) for s in samples]
    heavy = [replace(s, weights=s.weights * 2) for s in samples]
    assert distance(gradients(twice, POLICY_GRADIENT), gradients(heavy, POLICY_GRADIENT)) < 1e-6


def test_ratios_are_taken_against_the_old_logprobs() -> None:
    samples = make_samples(5, 12)
    moved = [replace(s, old_logprobs=s.sampling_logprobs, sampling_logprobs=s.sampling_logprobs - 1) for s in samples]
    first, second = gradients(samples, POLICY_GRADIENT), gradients(moved, POLICY_GRADIENT)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gradient_checkpointing_changes_no_gradient() -> None:
    samples = make_samples(6, 13)
    plain = gradients(samples, POLICY_GRADIENT)
    model = fresh_model()
    decoder = Decoder(model)
    decoder.checkpointing = True
    learner = Learner(decoder, OptimizerSettings(grad_clip=0.0))
    learner.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    learner.update(samples, 7.0, POLICY_GRADIENT, 0.0)
    again = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert distance(again, plain) < 1e-6


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(16, 400),
    st.none() | st.integers(1, 5),
    st.sampled_from(
        [CROSS_ENTROPY, POLICY_GRADIENT, policy_gradient(loss_mode="gspo"), policy_gradient(kl_loss_coef=0.5)]
    ),
)
def test_the_split_does_not_matter(seed: int, tokens: int, most: int | None, objective: Objective) -> None:
    samples = make_samples(8, seed)
    reference = fresh_model()
    with torch.no_grad():
        reference.lm_head.weight.mul_(1.5)
    full = gradients(samples, objective, reference, MicroBatchLimits(10_000))
    order = np.random.default_rng(seed).permutation(len(samples))
    shuffled = gradients([samples[i] for i in order], objective, reference, MicroBatchLimits(tokens, most))
    assert distance(shuffled, full) < 1e-6


def test_pieces_of_the_head_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = make_samples(6, 4)
    full = gradients(samples, policy_gradient(entropy_coeff=0.01))
    monkeypatch.setattr("practicum.training.objective.MAX_LOGITS", 3 * VOCABULARY)
    assert distance(gradients(samples, policy_gradient(entropy_coeff=0.01)), full) < 1e-6


def test_untrained_tokens_give_no_gradient() -> None:
    """Changing the weight or advantage of a token outside the mask changes nothing, to the bit."""
    samples = make_samples(4, 5)
    spoiled = [
        Sample(s.ids, s.mask, np.where(s.mask, s.weights, 99).astype(np.float32),
               np.where(s.mask, s.advantages, -77).astype(np.float32), s.sampling_logprobs)
        for s in samples
    ]  # fmt: skip
    first, second = gradients(samples, POLICY_GRADIENT), gradients(spoiled, POLICY_GRADIENT)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_comes_after_the_last_trained_token_is_not_computed() -> None:
    (base,) = make_samples(1, 6)
    length = len(base.ids)
    longer = Sample(
        (*base.ids, 1, 2, 3), np.append(base.mask, [False] * 3), np.append(base.weights, np.zeros(3, np.float32)),
        np.append(base.advantages, np.zeros(3, np.float32)), np.append(base.sampling_logprobs, np.zeros(3, np.float32)),
    )  # fmt: skip
    assert length < len(longer.ids)
    first, second = gradients([base], CROSS_ENTROPY), gradients([longer], CROSS_ENTROPY)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_logprobs_in_order() -> None:
    samples = make_samples(7, 8)
    model = fresh_model()
    result = Learner(Decoder(copy.deepcopy(model)), OptimizerSettings(), MicroBatchLimits(80)).logprobs(samples)
    for sample, values in zip(samples, result, strict=True):
        ids = torch.tensor([sample.ids])
        table = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        assert torch.allclose(values, table[torch.from_numpy(sample.mask[1:])], atol=1e-5)


def test_a_loss_that_is_not_finite_updates_nothing() -> None:
    samples = make_samples(3, 9)
    broken = [Sample(s.ids, s.mask, s.weights * np.float32(np.nan), s.advantages, s.sampling_logprobs) for s in samples]
    model = fresh_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(FloatingPointError, match="nothing was updated"):
        Learner(Decoder(model), OptimizerSettings()).update(broken, 7.0, CROSS_ENTROPY, 1e-3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(UserError, match="no token to train on"):
        Learner(Decoder(fresh_model()), OptimizerSettings()).update([], 0.0, CROSS_ENTROPY, 1e-3)


def test_two_threads_compute_what_one_does() -> None:
    samples, result = make_samples(12, 5), []
    for threads in (1, 2, 2):
        model = fresh_model()
        learner = Learner(Decoder(model), OptimizerSettings(grad_clip=0.0), MicroBatchLimits(30), threads=threads)
        metrics = learner.update(samples, 40.0, POLICY_GRADIENT, 1e-3)
        result.append((metrics, [p.grad for p in model.parameters()], [p.detach().clone() for p in model.parameters()]))
    (alone, gradients_alone, _), (first, gradients_first, first_weights), (again, _, again_weights) = result
    assert alone == pytest.approx(first, rel=1e-5)
    for one, other in zip(gradients_alone, gradients_first, strict=True):
        assert one is not None
        assert other is not None
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6 * float(one.abs().max()) + 1e-9)
    assert first == again
    assert all(torch.equal(one, other) for one, other in zip(first_weights, again_weights, strict=True))


def test_pieces_are_shared_out_by_size() -> None:
    assert balanced_halves([5, 9, 4, 4]) == ([1, 3], [0, 2])
    assert balanced_halves([3]) == ([0], [])
    assert balanced_halves([]) == ([], [])
