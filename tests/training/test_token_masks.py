"""Replies that were sampled among some of the tokens are trained among the same ones: the gradient is exact."""

from __future__ import annotations

import asyncio
import base64
import re
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from practicum.agent import Agent
from practicum.algorithms import kl
from practicum.chat.grammar import TokenMasks, unpack_masks
from practicum.chat.sampling_mask import KeptTokens, decode_kept, encode_kept, mask_ids
from practicum.data.store import decode_episode, encode_episode
from practicum.engines.base import Sampling
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.registry import environment_maker
from practicum.training.learner import Learner, OptimizerSettings
from practicum.training.logged_source import has_policy_logprobs
from practicum.training.micro_batches import MicroBatchLimits, Sample, unweighted_samples
from practicum.training.objective import Objective, build_samples, compute_logprobs
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory, plan_attempts
from tests.engines.local.schemas import SCHEMAS, response_format
from tests.training.settings import policy_gradient, rl_settings
from tests.training.test_learner import VOCABULARY, fresh_model, make_samples

AddMasks = Callable[[list[Sample], int], list[Sample]]


def with_masks(samples: list[Sample], seed: int) -> list[Sample]:
    """The samples with random masks at two thirds of their positions; every target is in its mask."""
    rng = np.random.default_rng(seed)
    masked = []
    for sample in samples:
        rows = np.full(len(sample.ids), -1, dtype=np.int64)
        table = []
        for position in np.flatnonzero(rng.random(len(sample.ids)) < 2 / 3):
            allowed = rng.random(64) < rng.choice([0.1, 0.5])
            allowed[sample.ids[position]] = True
            rows[position] = len(table)
            table.append(np.packbits(allowed, bitorder="little").view(np.int32))
        masked.append(replace(sample, token_masks=((0, TokenMasks(rows, np.array(table).reshape(-1, 2))),)))
    return masked


def with_kept(samples: list[Sample], seed: int) -> list[Sample]:
    """The samples with the kept tokens of top-p sampling, of two parts of each."""
    masked = []
    for sample in with_masks(samples, seed):
        ((_, masks),) = sample.token_masks
        allowed = unpack_masks(masks.table, VOCABULARY)[masks.rows] | (masks.rows < 0)[:, None]
        sets = [np.flatnonzero(row) for row in allowed]
        half = len(sets) // 2
        parts = tuple(
            (start, KeptTokens(decode_kept(encode_kept(part))))
            for start, part in ((0, sets[:half]), (half, sets[half:]))
        )
        masked.append(replace(sample, token_masks=parts))
    return masked


def forbidden_tokens(sample: Sample) -> torch.Tensor:
    """Which tokens could not be sampled at each position [T, V]."""
    allowed = np.ones((len(sample.ids), VOCABULARY), dtype=np.bool_)
    for start, part in sample.token_masks:
        own = unpack_masks(part.table, VOCABULARY)[part.rows.clip(min=0)] | (part.rows < 0)[:, None]
        allowed[start : start + len(own)] = own
    return torch.from_numpy(~allowed)


def exact_loss(
    model: LlamaForCausalLM, samples: list[Sample], objective: Objective, reference: LlamaForCausalLM
) -> torch.Tensor:
    """The loss one sequence at a time in float64, on Hugging Face's forward pass: a softmax over the allowed tokens."""
    total = torch.zeros((), dtype=torch.float64)
    for sample in samples:
        forbidden = forbidden_tokens(sample)[1:]
        ids, mask = torch.tensor(sample.ids), torch.from_numpy(sample.mask[1:])

        def logprobs(episode: LlamaForCausalLM) -> torch.Tensor:
            logits = episode(ids[None]).logits[0, :-1] / sample.temperature  # noqa: B023
            return logits.masked_fill(forbidden, -torch.inf).log_softmax(-1)  # noqa: B023

        log_softmax = logprobs(model)
        with torch.no_grad():
            reference_log_softmax = logprobs(reference)
        chosen, base = (part.gather(-1, ids[1:, None])[:, 0] for part in (log_softmax, reference_log_softmax))
        finite = log_softmax.masked_fill(forbidden, 0.0)
        entropy = -(finite.exp() * finite).masked_fill(forbidden, 0.0).sum(-1)
        advantage, weight = (torch.from_numpy(part[1:]).double() for part in (sample.advantages, sample.weights))
        ratio = (chosen - torch.from_numpy(sample.sampling_logprobs[1:]).double()).exp()
        clipped = ratio.clamp(1 - objective.clip_ratio_low, 1 + objective.clip_ratio_high)
        loss = torch.maximum(-advantage * ratio, -advantage * clipped)
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * objective.clip_ratio_c), loss)
        loss = loss - objective.entropy_coeff * entropy
        loss = loss + objective.kl_loss_coef * kl.penalty(chosen, base, objective.kl_loss_type)
        total = total + (loss * weight)[mask].sum()
    return total / 7.0


@pytest.mark.parametrize(("tokens", "add_masks"), [(30, with_masks), (480, with_masks), (60, with_kept)])
def test_the_gradient_is_that_of_a_softmax_over_the_allowed_tokens(tokens: int, add_masks: AddMasks) -> None:
    objective = policy_gradient(entropy_coeff=0.02, kl_loss_coef=0.1, kl_loss_type="low_var_kl")
    samples = add_masks(make_samples(9, 3, temperature=0.8), 4)
    model, reference = fresh_model(), fresh_model()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(1.1)
    learner = Learner(Decoder(model), OptimizerSettings(grad_clip=0.0), MicroBatchLimits(tokens))
    learner.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    metrics = learner.update(samples, 7.0, objective, 0.0, Decoder(reference))
    exact, double_reference = fresh_model().double(), reference.double()
    loss = exact_loss(exact, samples, objective, double_reference)
    loss.backward()
    assert metrics["actor/loss"] == pytest.approx(loss.item(), rel=1e-5)
    for (name, log_softmax), other in zip(model.named_parameters(), exact.parameters(), strict=True):
        assert log_softmax.grad is not None
        assert other.grad is not None
        assert torch.allclose(log_softmax.grad.double(), other.grad, rtol=1e-4, atol=1e-6), name


def test_a_full_divergence_is_taken_over_the_allowed_tokens() -> None:
    objective = policy_gradient(kl_loss_coef=0.1, kl_loss_type="full")
    samples = with_masks(make_samples(4, 5), 6)
    model = fresh_model()
    learner = Learner(Decoder(model), OptimizerSettings(grad_clip=0.0))
    metrics = learner.update(samples, 7.0, objective, 1e-3, Decoder(fresh_model()))
    assert metrics["actor/kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


@pytest.fixture(scope="module")
def policy() -> TrainablePolicy:
    return TrainablePolicy(loader.load_tiny(0), max_batch=16)


@pytest.fixture(scope="module")
def episodes(policy: TrainablePolicy) -> list[Trajectory]:
    """Episodes of two turns under a schema, of free text, and of both with top-k, top-p and min-p."""
    make_environment, name = environment_maker("math", "hf", {})
    tasks = make_environment().tasks("train", 3, 0)
    results: list[Trajectory] = []
    schema = response_format(SCHEMAS[4])
    full = Sampling(0.9, max_tokens=60)
    filtered = replace(full, top_k=40, top_p=0.8, min_p=0.02)
    for form, sampling in ((schema, full), (None, full), (schema, filtered), (None, filtered)):
        agent = Agent(name, 2, sampling, response_format=form)
        results += asyncio.run(policy.roll_out(plan_attempts(tasks, 2, 0), make_environment, agent))
    asyncio.run(policy.engine.close())
    return results


def test_engine_and_learner_agree_on_constrained_replies(policy: TrainablePolicy, episodes: list[Trajectory]) -> None:
    grammars = policy.renderer.grammars
    samples = [sample for episode in episodes for sample in unweighted_samples(episode, 0.9, grammars=grammars)]
    assert sum(bool(sample.token_masks) for sample in samples) == len(samples) * 3 // 4
    result = torch.cat(compute_logprobs(policy.decoder, samples, policy.limits))
    text = torch.from_numpy(np.concatenate([sample.sampling_logprobs[sample.mask] for sample in samples]))
    assert float((result - text).abs().max()) < 1e-4
    unmasked = [replace(sample, token_masks=()) for sample in samples]
    other = torch.cat(compute_logprobs(policy.decoder, unmasked, policy.limits))
    assert float((other - text).abs().max()) > 1


def test_an_update_moves_the_better_reply_ahead(policy: TrainablePolicy, episodes: list[Trajectory]) -> None:
    constrained = [episode for episode in episodes if episode.turns[0].response_format is not None][:2]
    count = [sum(turn.num_sampled for turn in episode.turns) for episode in constrained]
    advantages = [np.full(count[0], 1.0), np.full(count[1], -1.0)]
    grammars = policy.renderer.grammars
    (weighted,) = build_samples([constrained], [advantages], "token-mean", 0.9, grammars=grammars)
    samples = [sample for episode in weighted for sample in episode.samples]
    learner = Learner(Decoder(loader.load_tiny(0).model), OptimizerSettings(lr=1e-3))
    before = [float(part.sum()) for part in learner.logprobs(samples)]
    learner.update(samples, float(sum(count)), policy_gradient(), 1e-3)
    after = [float(part.sum()) for part in learner.logprobs(samples)]
    assert after[0] - before[0] > after[1] - before[1]


def test_the_record_of_a_turn_has_its_response_format(episodes: list[Trajectory]) -> None:
    for episode in episodes:
        data = encode_episode(episode)
        again = decode_episode(data)
        assert [turn.response_format for turn in again.turns] == [turn.response_format for turn in episode.turns]
        assert (b'"response_format"' in data) == (episode.turns[0].response_format is not None)
        assert again.turns == episode.turns
        is_filtered = "min_p" in episode.provenance
        assert (b'"kept"' in data) == is_filtered
        assert has_policy_logprobs(again)
        if is_filtered:
            assert not has_policy_logprobs(decode_episode(re.sub(rb',"kept":"[^"]*"', b"", data)))


@given(st.lists(st.sets(st.integers(0, 160_000), min_size=1, max_size=40), max_size=6))
def test_kept_tokens_are_read_as_they_were_written(sets: list[set[int]]) -> None:
    arrays = [np.array(sorted(ids)) for ids in sets]
    assert [ids.tolist() for ids in decode_kept(encode_kept(arrays))] == [ids.tolist() for ids in arrays]
    if sets:
        assert [ids.tolist() for ids in mask_ids(KeptTokens(arrays).table)] == [ids.tolist() for ids in arrays]


@pytest.mark.parametrize("data", [b"x", zlib.compress(bytes([5, 1])), zlib.compress(b"\x80"), zlib.compress(b"\x00")])
def test_kept_tokens_that_are_broken_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="kept tokens of a reply cannot be read"):
        decode_kept(base64.b64encode(data).decode())


def test_a_run_with_top_p_agrees_with_its_engine_and_needs_the_local_one(policy: TrainablePolicy) -> None:
    make_environment, name = environment_maker("math", "hf", {})
    settings = rl_settings(train_batch_size=2, num_chains=2, total_training_steps=1)
    agent = Agent(name, 1, Sampling(1.0, top_p=0.7, max_tokens=12))
    source = OnlineSource(policy, make_environment().tasks("train", 2, 0), make_environment, agent, settings)
    policy.reset_optimizer(OptimizerSettings())
    metrics = asyncio.run(RLTrainer(policy, source, settings).step(0)).metrics
    asyncio.run(policy.engine.close())
    assert metrics["mismatch/logprob/mean"] < 1e-5
    policy.engine.name = "vllm"
    try:
        with pytest.raises(UserError, match="does not say which tokens top_k, top_p and min_p left"):
            RLTrainer(policy, source, settings)
    finally:
        policy.engine.name = "local"
