"""One rollout worker, in this process: built from text, given weights, asked for episodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from practicum.config.overrides import to_yaml
from practicum.config.resolve import resolve_train
from practicum.data.store import decode_episode
from practicum.errors import UserError
from practicum.training import build
from practicum.training.cluster import rollout_worker, weights
from practicum.training.cluster.rollout_worker import (
    RolloutWorker,
    agent_hashes,
    agents_of,
    encode_attempt,
    threads_per_worker,
    trained_tensors,
)
from practicum.training.settings import resolve_device
from practicum.training.trainable_policy import PROBE_TOKENS, SHORT_PROBE_TOKENS, TrainablePolicy
from practicum.trajectory import Trajectory, plan_attempts
from tests.training.cluster.test_rollout_workers import overrides


class CountingWorker(RolloutWorker):
    """Notes for every episode that begins how many had been asked for; they end after `seconds`, without a result."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        config = resolve_train(overrides(folder, "x", 2)).config
        super().__init__(to_yaml(config), str(folder), str(Path.cwd()))
        self.version, self.seconds, self.num_come, self.begun = 1, seconds, 0, list[int]()
        (attempt, *_) = plan_attempts(self.components.environment.tasks("train", 1), 2, 0, "step-0/")
        self.attempt = encode_attempt(attempt)
        self.policy.roll_out = self._roll_out  # type: ignore[method-assign]

    def ask(self) -> asyncio.Task[tuple[str, bytes]]:
        return asyncio.create_task(self.run(self.attempt, "train", 1, "{}"))

    async def run(self, *arguments: Any, **options: Any) -> tuple[str, bytes]:
        self.num_come += 1
        return await super().run(*arguments, **options)

    async def _roll_out(self, *arguments: Any, **options: Any) -> list[Trajectory]:
        self.begun.append(self.num_come)
        await asyncio.sleep(self.seconds)
        raise UserError("ended")


def change(policy: TrainablePolicy) -> None:
    """Change the weights, as an update would."""
    generator = torch.Generator().manual_seed(0)
    for tensor in trained_tensors(policy).values():
        tensor.add_(0.02 * torch.randn(tensor.shape, generator=generator))
    policy.set_version(policy.version + 1)


def test_a_worker_plays_the_episodes_of_the_weights_that_it_was_sent(tmp_path: Path) -> None:
    config = resolve_train(overrides(tmp_path, "x", 2)).config
    on = resolve_device(config)
    components = build.build_components(config)
    policy = build.build_policy(config, tmp_path, on, None)
    agents = agents_of(config, components, ())
    assert set(agents) == {"train", "greedy", "val"}
    planned = plan_attempts(components.environment.tasks("train", 1), 2, 0, "step-0/")

    async def run_worker() -> None:
        worker = RolloutWorker(to_yaml(config), str(tmp_path), str(Path.cwd()))
        described = await worker.describe()
        assert described["failure"] is None
        assert described["agents"] == agent_hashes(agents)
        kind, text = await worker.run(encode_attempt(planned[0]), "train", 1, "{}")
        assert (kind, text) == ("error", b"it has weights of version None, not 1")

        change(policy)
        message = weights.encode(trained_tensors(policy), 1)
        damaged = [part.copy() for part in message]
        damaged[-1][-1] ^= 1
        refused = await worker.update_weights(damaged, [1])
        assert refused is not None
        assert "checksum" in refused
        for num_tokens in (SHORT_PROBE_TOKENS, PROBE_TOKENS):
            sampled = await worker.probe(num_tokens)
            assert len(sampled[1]) == num_tokens
            assert policy.score_difference(sampled) > 0.01  # it still has its first weights
        assert await worker.update_weights(message, [1]) is None
        for num_tokens in (SHORT_PROBE_TOKENS, PROBE_TOKENS):
            assert policy.score_difference(await worker.probe(num_tokens)) < 1e-4

        refused = await worker.update_weights(message, [1])
        assert refused is not None
        assert "the weights here are 1" in refused
        assert (await worker.run(encode_attempt(planned[0]), "train", 2, "{}"))[0] == "error"
        assert (await worker.run(encode_attempt(planned[0]), "train", 2, "{}", False))[0] == "error"

        for attempt in planned:  # one at a time, as on the worker: the same batch shapes
            (episode,) = await policy.roll_out([attempt], components.make_environment, agents["train"])
            kind, data = await worker.run(encode_attempt(attempt), "train", 1, "{}")
            assert kind == "episode"
            played = decode_episode(data)
            assert [turn.reply for turn in played.turns] == [turn.reply for turn in episode.turns]
            assert played.turns[0].policy_version == 1
            assert played.provenance == episode.provenance
            assert played.reward == pytest.approx(episode.reward)
        task = asyncio.create_task(worker.run(encode_attempt(planned[0]), "train", 1, "{}", False))
        await asyncio.sleep(0)
        change(policy)
        assert await worker.update_weights(weights.encode(trained_tensors(policy), 2), [2]) is None
        assert policy.score_difference(await worker.probe(num_tokens)) < 1e-4
        assert (await task)[0] == "episode"
        assert (await worker.run(encode_attempt(planned[0]), "train", 1, "{}", False))[0] == "episode"  # newer ones
        assert (await worker.run(encode_attempt(planned[0]), "train", 1, "{}"))[0] == "error"
        await worker.close()
        await policy.close()

    asyncio.run(run_worker())


def test_episodes_that_come_one_by_one_begin_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the engine decodes for the first alone what it could decode for all."""
    monkeypatch.setattr(rollout_worker, "GATHER_SECONDS", 0.2)
    monkeypatch.setattr(rollout_worker, "MAX_GATHER_SECONDS", 10)
    worker = CountingWorker(tmp_path, seconds=0.8)

    async def come() -> None:
        tasks = []
        for _ in range(2):  # two rollouts, and an episode that comes while others are under way
            for _ in range(4):
                tasks.append(worker.ask())
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.7)
            tasks.append(worker.ask())
            await asyncio.gather(*tasks)
        cancelled = worker.ask()
        await asyncio.sleep(0)
        cancelled.cancel()  # the others do not wait for it
        await asyncio.gather(worker.ask(), cancelled, return_exceptions=True)
        await worker.close()

    asyncio.run(come())
    assert worker.begun == [4, 4, 4, 4, 5, 9, 9, 9, 9, 10, 12]


def test_a_worker_begins_where_episodes_never_cease_to_come(tmp_path: Path) -> None:
    worker = CountingWorker(tmp_path)

    async def come() -> int:
        tasks = []
        while not worker.begun and len(tasks) < 5000:
            tasks.append(worker.ask())
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)
        await worker.close()
        return len(tasks)

    assert asyncio.run(come()) < 5000


def test_a_worker_says_what_it_lacks(tmp_path: Path) -> None:
    config = resolve_train(overrides(tmp_path, "x", 2)).config
    config.agent.environment = "no/such/file.py:Environment"
    worker = RolloutWorker(to_yaml(config), str(tmp_path), str(Path.cwd()))
    assert "no/such/file.py" in str(asyncio.run(worker.describe())["failure"])
    asyncio.run(worker.close())


def test_the_trained_weights_of_a_model_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing them for every parameter took 0.1 s of every update for SmolLM2-135M, on both sides."""
    config = resolve_train(overrides(tmp_path, "x", 2)).config
    policy = build.build_policy(config, tmp_path, resolve_device(config), None)
    listed: list[TrainablePolicy] = []
    listing = TrainablePolicy.trained_parameters

    def counted(model: TrainablePolicy) -> dict[str, torch.nn.Parameter]:
        listed.append(model)
        return listing(model)

    monkeypatch.setattr(TrainablePolicy, "trained_parameters", counted)
    tensors = trained_tensors(policy)
    assert listed == [policy]
    assert set(tensors) == {f"0/{name}" for name in listing(policy)}
    asyncio.run(policy.close())


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    assert [threads_per_worker(workers, 1) for workers in (1, 2, 3, 32)] == [16, 8, 5, 1]
    assert threads_per_worker(4, 2) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_per_worker(1, 1) == 3
