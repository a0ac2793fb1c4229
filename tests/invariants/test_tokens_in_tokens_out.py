"""The promise behind every loss mask: what is trained is what the engine saw and sampled, id for id."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.chat.templates import TEMPLATES
from practicum.data.store import decode_episode, encode_episode
from practicum.engines.base import Engine, Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.training.estimators import num_sampled_tokens
from practicum.training.learner import Learner, OptimizerSettings
from practicum.training.objective import build_samples, collate
from practicum.trajectory import Origin, Trajectory, plan_attempts

WORDS = ["calc", "12", "+", "7", "=", "get", "iron", "nugget", "<tool_call>", "{}", "naïve", "🙂", "\n", "\t", "''"]


class Chatter(Environment):
    """A world that answers random text for a random number of turns, whatever the agent says."""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.rng = random.Random(seed)
        return Observation((Message("system", self.text()), Message("user", self.text())))

    async def step(self, action: Action) -> Step:
        messages = tuple(Message("user", self.text()) for _ in range(self.rng.randint(1, 2)))
        return Step(Observation(messages), self.rng.random(), terminated=self.rng.random() < 0.3)

    def text(self) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, 12))).strip() or "x"


class RecordingEngine:
    """Passes everything on to an engine and remembers exactly what it saw and said."""

    name = "witness"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: dict[str, list[tuple[Request, Generation]]] = {}

    async def generate(self, request: Request) -> Generation:
        reply = await self.engine.generate(request)
        self.seen.setdefault(request.session, []).append((request, reply))
        return reply

    def end_session(self, session: str) -> None:
        self.engine.end_session(session)

    async def close(self) -> None:
        await self.engine.close()


@pytest.fixture(scope="module", params=["own", *TEMPLATES])
def rolled(
    request: pytest.FixtureRequest, llama_tokenizer: PreTrainedTokenizerBase
) -> tuple[list[Trajectory], RecordingEngine, Decoder]:
    loaded = loader.load_tiny(11)
    if request.param == "llama-3":
        loaded.model.resize_token_embeddings(len(llama_tokenizer))
        loaded = replace(loaded, tokenizer=llama_tokenizer)
    with torch.no_grad():
        loaded.model.model.embed_tokens.weight.mul_(2.0)  # varied replies, ends among them
    renderer = Renderer(loaded.tokenizer, None if request.param == "own" else request.param)
    decoder = Decoder(loaded.model)
    recorder = RecordingEngine(LocalEngine(decoder, renderer, max_batch=16))
    agent = Agent(max_turns=4, sampling=Sampling(max_tokens=12, temperature=0.9))
    planned = plan_attempts([Task(f"t{k}", "chatter", "train") for k in range(24)], 2, 0)

    async def run() -> list[Trajectory]:
        try:
            return await run_episodes(planned, Chatter, agent, recorder, renderer)
        finally:
            await recorder.close()

    return asyncio.run(run()), recorder, decoder


def session_of(episode: Trajectory) -> str:
    return f"{episode.group}#{episode.attempt}#{episode.seeds.sampling}"


def test_the_record_is_what_the_engine_saw_and_said(rolled: tuple[list[Trajectory], RecordingEngine, Decoder]) -> None:
    episodes, recorder, _ = rolled
    assert max(len(e.turns) for e in episodes) > 2
    for episode in episodes:
        (run,) = episode.sequences()
        at = 0
        for (requests, reply), turn in zip(recorder.seen[session_of(episode)], episode.turns, strict=True):
            end = len(requests.ids) + len(reply.ids)
            assert run.ids[: len(requests.ids)] == requests.ids
            assert run.ids[len(requests.ids) : end] == reply.ids
            assert not any(run.sampled[at : len(requests.ids)])
            assert all(run.sampled[len(requests.ids) : end])
            assert run.logprobs[len(requests.ids) : end] == reply.logprobs
            assert turn.spans[-1].origin is Origin.SAMPLED
            at = end
        assert at == len(run.ids)


def test_the_learner_trains_exactly_that(rolled: tuple[list[Trajectory], RecordingEngine, Decoder]) -> None:
    """After a trip through the store: mask 1 exactly on sampled tokens, log-probs within 1e-4 of the learner's."""
    episodes, _, decoder = rolled
    again = [decode_episode(encode_episode(e)) for e in episodes]
    (taught,) = build_samples([again], [[np.ones(num_sampled_tokens(e)) for e in again]], "token-mean", 0.9)
    samples = collate(taught).samples
    learner = Learner(decoder, OptimizerSettings())
    for episode, sample, logprobs in zip(episodes, samples, learner.logprobs(samples), strict=True):
        (run,) = episode.sequences()
        assert sample.ids == run.ids
        assert sample.mask.tolist() == list(run.sampled)
        recorded = sample.sampling_logprobs[sample.mask]
        assert np.abs(recorded - logprobs.numpy()).max() <= 1e-4


def test_a_reply_cut_short_is_closed_by_the_template_and_not_trained(
    rolled: tuple[list[Trajectory], RecordingEngine, Decoder],
) -> None:
    episodes, recorder, _ = rolled
    num_cut = 0
    for episode in episodes:
        requests = [request for request, _ in recorder.seen[session_of(episode)]]
        for number, turn in enumerate(episode.turns[:-1]):
            if turn.stop_reason.value == "length":
                num_cut += 1
                following = episode.turns[number + 1].spans[0]
                assert following.origin is Origin.TEMPLATE
                length = len(requests[number].ids) + len(turn.spans[-1].ids)
                assert requests[number + 1].ids[length] == following.ids[0]
    assert num_cut > 0
