"""A rollout worker: one engine with its environments, in a process of its own that Ray places.

It is built from the configuration, as text. Tasks come as JSON and episodes go back as the records that are written to
files; weights come as messages of `weights`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from practicum import __version__
from practicum.agent import Agent
from practicum.config.overrides import from_yaml
from practicum.config.train import TrainConfig
from practicum.data.store import encode_episode
from practicum.errors import UserError
from practicum.rollout import with_models
from practicum.task import Task, content_hash
from practicum.training import build
from practicum.training.cluster import weights
from practicum.training.roles import asked_models
from practicum.training.rollout_source import greedy_agent
from practicum.training.settings import resolve_device, validates
from practicum.training.trainable_policy import SampledReply, TrainablePolicy
from practicum.trajectory import Attempt, Seeds

GATHER_SECONDS = 0.02
"""How long a worker without episodes waits for another one before it begins."""
MAX_GATHER_SECONDS = 0.2
"""How long it waits in all, however many come."""


def encode_attempt(attempt: Attempt) -> str:
    """Return an attempt as JSON."""
    task = attempt.task
    return json.dumps({
        "task": [task.id, task.environment, task.split, dict(task.fields)],
        "number": attempt.number, "seeds": asdict(attempt.seeds), "group": attempt.group,
    })  # fmt: skip


def decode_attempt(text: str) -> Attempt:
    """Return the attempt that was encoded."""
    record = json.loads(text)
    return Attempt(Task(*record["task"]), record["number"], Seeds(**record["seeds"]), record["group"])


def trained_tensors(policy: TrainablePolicy) -> dict[str, Tensor]:
    """The trained weights of a policy and of its roles' adapters, by name; those of a sharded one in one piece."""
    tensors: dict[str, Tensor] = {}
    for index, model in enumerate(policy.models):
        trained = set(model.trained_parameters())
        named = model.unsharded.model.named_parameters()
        tensors |= {f"{index}/{name}": parameter.data for name, parameter in named if name in trained}
    return tensors


def agents_of(config: TrainConfig, components: build.RunComponents, untrained: Sequence[str]) -> dict[str, Agent]:
    """The agents that a run rolls out, by name: of training, of greedy rollouts, of validation."""
    rollout = config.actor_rollout_ref.rollout
    agent = build.build_agent(config, components, rollout.temperature)
    agents = {"train": agent}
    if validates(config):
        agents["val"] = build.build_agent(config, components, rollout.val_temperature, validating=True)
    return {**agents, "greedy": greedy_agent(agent, untrained)}


def agent_hashes(agents: Mapping[str, Agent]) -> dict[str, str]:
    return {name: content_hash(repr(agent)) for name, agent in agents.items()}


def with_share_of_gpu(config: TrainConfig) -> TrainConfig:
    """The configuration of a worker that shares its GPU: keys and values have its share of their memory."""
    actor_rollout_ref = config.actor_rollout_ref
    rollout = actor_rollout_ref.rollout
    utilization = rollout.gpu_memory_utilization * min(1.0, rollout.gpus_per_worker)
    rollout = replace(rollout, gpu_memory_utilization=utilization)
    return replace(config, actor_rollout_ref=replace(actor_rollout_ref, rollout=rollout))


class RolloutWorker:
    """Runs episodes with weights that it is sent. A setting that is wrong here is told by `describe`."""

    def __init__(self, config: str, folder: str, working_folder: str, num_threads: int | None = None) -> None:
        """`num_threads` are those of torch; None: as many as the process has been given."""
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.failure: str | None = None
        self.version: int | None = None
        self._num_begun = self._num_ended = 0
        """Episodes that were asked for, and those of them that have ended."""
        self._gathering: asyncio.Task[None] | None = None
        if Path(working_folder).is_dir():  # paths in the configuration may be relative
            os.chdir(working_folder)
        try:
            self._build(with_share_of_gpu(from_yaml(TrainConfig, config)), Path(folder))
        except UserError as error:
            self.failure = str(error)

    def _build(self, config: TrainConfig, folder: Path) -> None:
        placement = resolve_device(config)
        components = build.build_components(config)
        build.check_components(config, components)
        components.resources.check()
        self.policy = build.build_policy(config, folder, placement, None)
        self.agents = agents_of(config, components, tuple(self.policy.role_engines))
        if components.environment.model_names():
            models = asked_models(self.policy, components.environment, self.agents["train"], config)
            components = replace(components, make_environment=with_models(components.make_environment, models))
        self.components = components

    async def describe(self) -> dict[str, Any]:
        """Where this worker is, and whether it has understood the configuration as the learner has."""
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "version": __version__, "failure": self.failure}
        return facts if self.failure is not None else {**facts, "agents": agent_hashes(self.agents)}

    async def update_weights(self, message: weights.Message, versions: Sequence[int]) -> str | None:
        """Load a message of weights; `versions` are those of the models. Returns why it is refused, or None.

        Replies that are being sampled end first; those that come next are sampled with the new weights.
        """
        async with self.policy.paused():
            try:
                self.version = weights.apply(message, trained_tensors(self.policy), self.version)
            except weights.WeightsRefused as refused:
                return str(refused)
            await self._set_versions(versions)
        return None

    async def reset(self, versions: Sequence[int]) -> None:
        """Empty the caches of the engines; replies from here on are of these versions."""
        async with self.policy.paused():
            await self._set_versions(versions)

    async def _set_versions(self, versions: Sequence[int]) -> None:
        for model, version in zip(self.policy.models, versions, strict=True):
            model.set_version(version)
        await self.policy.refresh()

    async def probe(self, num_tokens: int) -> SampledReply:
        """A reply of the engine of at most so many tokens; the learner scores the same one."""
        return await self.policy.probe(num_tokens)

    async def run(
        self, attempt: str, agent: str, version: int, provenance: str, exact: bool = True
    ) -> tuple[str, bytes]:
        """Run an episode with the weights of a version; ("episode", its record) or ("error", why none can be run).

        Unless `exact`, newer weights are right too: they may come while the episode is under way.
        """
        if self.version is None or version > self.version or (exact and version != self.version):
            return "error", f"it has weights of version {self.version}, not {version}".encode()
        self._num_begun += 1
        try:
            await self._wait_for_others()
            (episode,) = await self.policy.roll_out(
                [decode_attempt(attempt)],
                self.components.make_environment,
                self.agents[agent],
                provenance=json.loads(provenance),
                refresh=False,
                resources=self.components.resources,
            )
        except UserError as error:
            return "error", str(error).encode()
        finally:
            self._num_ended += 1
        return "episode", encode_episode(episode)

    async def _wait_for_others(self) -> None:
        """Where no episode is under way, wait until no more come, so that those of a rollout begin together.

        They come one by one. An engine that has begun with the first would decode some steps for it alone.
        """
        if self._num_begun == self._num_ended + 1:
            self._gathering = asyncio.create_task(self._until_no_more_come())
        if self._gathering is not None:
            await asyncio.shield(self._gathering)

    async def _until_no_more_come(self) -> None:
        num_seen, latest = 0, time.monotonic() + MAX_GATHER_SECONDS
        while num_seen != self._num_begun and time.monotonic() < latest:
            num_seen = self._num_begun
            await asyncio.sleep(GATHER_SECONDS)
        self._gathering = None

    async def close(self) -> None:
        """Close environments and engines."""
        if self.failure is None:
            await self.components.resources.close()
            await self.policy.close()


def threads_per_worker(num_workers: int, num_nodes: int) -> int:
    """Threads of torch for a worker: OMP_NUM_THREADS where it is set, else its share of this machine's cores.

    Ray gives a process that asks for one CPU one thread. Workers generate while the learner waits for them, so all
    cores are theirs; machines are taken to be alike.
    """
    if (text := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        return int(text)
    return max(1, len(os.sched_getaffinity(0)) // -(-num_workers // num_nodes))
