"""The policy in training: one model, the engine that samples from it and the learner that updates it.

Engine and learner share the same weights: an update by the learner is a new policy version of the engine at once, and
the engine drops its caches of the old one. An engine that samples during an update has a copy of the trained weights
instead, which `refresh` brings up to date.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from practicum.agent import Agent
from practicum.chat.console import EpisodeWatcher
from practicum.chat.renderer import Renderer
from practicum.data.store import decode_episode, encode_episode
from practicum.engines.base import Engine, PolicyEngine, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Message, Observation
from practicum.errors import UserError
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, result_from_episodes
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.loader import LoadedModel
from practicum.models.sharding import free_gathered, shard
from practicum.policy import Policy
from practicum.resources import RunResources
from practicum.rollout import MakeEnvironment, run_episodes
from practicum.rollout_setup import ROLES
from practicum.task import Task
from practicum.training import ranks
from practicum.training.learner import Learner, OptimizerSettings
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.objective import Objective, head_logprobs, hidden_states, per_own_sample
from practicum.training.unsharded_copy import UnshardedCopy
from practicum.trajectory import Attempt, Trajectory

PROBE, PROBE_TOKENS, SHORT_PROBE_TOKENS = "What is 17 + 25, and how do you know?", 16, 4
SampledReply = tuple[list[int], list[int], list[float]]
"""A prompt, a reply to it, and the log-probs of the reply's tokens."""
GPU_MICRO_BATCH_TOKENS = 16384
"""Maximum number of tokens in one micro-batch on a GPU."""


@dataclass(frozen=True)
class RolloutRequest:
    """Episodes to run; `on_done` is called with each that has ended.

    `updates_weights`: with the policy's current weights, and no others; otherwise with those that were sent last, or
    that are sent meanwhile.
    """

    planned: Sequence[Attempt]
    agent: Agent
    provenance: Mapping[str, Any]
    on_done: Callable[[Trajectory], None] | None = None
    updates_weights: bool = True


class RolloutWorkers(Protocol):
    """Processes that run the episodes of a policy, each with an engine and environments of its own."""

    async def roll_out(self, policy: TrainablePolicy, request: RolloutRequest) -> list[Trajectory]:
        """Episodes of the policy's current weights, in the order of the plan; the same on every rank."""
        ...

    async def update_weights(self, policy: TrainablePolicy) -> float:
        """Send the policy's current weights; episodes may be under way. Returns the mean |engine - learner| log-prob
        of replies that are sampled after it."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class ShardingSettings:
    """A learner whose weights, gradients and moments are divided among the ranks (FSDP2).

    `has_engine`: every rank has an engine with full weights. `param_offload`, `reference_offload`: the shards of the
    model and of the reference are in host memory.
    """

    has_engine: bool = True
    param_offload: bool = False
    reference_offload: bool = False


class TrainablePolicy:
    """A model with the engine that samples from it, the learner that updates it, and a frozen reference."""

    episode_slots: asyncio.Semaphore | None = None
    """Where several rollouts run at the same time: the episodes of all of them, oldest first."""
    ranks_per_engine: int = 1
    """How many ranks share an engine; the first of them runs the episodes of all."""

    def __init__(
        self,
        loaded: LoadedModel,
        template: str | None = None,
        *,
        max_batch: int = 64,
        kv_bytes: int | None = None,
        gpu_memory_utilization: float = 0.5,
        limits: MicroBatchLimits | None = None,
        logprob_limits: MicroBatchLimits | None = None,
        make_engine: Callable[[Renderer], PolicyEngine] | None = None,
        separate_engine_weights: bool = False,
        sharding: ShardingSettings | None = None,
    ) -> None:
        """`separate_engine_weights` gives the engine a copy of the trained weights, to sample from during updates.

        `sharding` divides the learner's weights among the ranks; the engine then has full ones of its own.

        An engine of `make_engine` has weights of its own in any case. `limits` are those of micro-batches with a
        gradient, `logprob_limits` of those without. `kv_bytes`, `gpu_memory_utilization`: see `LocalEngine`.
        """
        self.loaded = loaded
        self.sharding = sharding
        self.unsharded_copy = None if sharding is None else shard_with_copy(loaded, sharding)
        """The full weights, where the learner's are sharded."""
        self.decoder = Decoder(loaded.model)
        self.renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
        self.engine: PolicyEngine
        self.has_engine_weights = separate_engine_weights or make_engine is not None
        """Whether the engine may sample during an update: its weights are not the learner's."""
        self.engine_decoder: Decoder | None = self.decoder
        """The decoder of an engine in this process."""
        # Engine and learner that take turns may each have all threads; at the same time they have one each, so that
        # the results are the same bits every time.
        self._threads = 1 if separate_engine_weights and self.decoder.device.type == "cpu" else None
        if make_engine is None:
            if self.unsharded_copy is not None:
                self.engine_decoder = self.unsharded_copy.decoder()
            elif separate_engine_weights:
                self.engine_decoder = Decoder(frozen_copy(loaded.model))
            self.engine = self._local_engine(max_batch, kv_bytes, gpu_memory_utilization)
        else:
            self.engine_decoder, self.engine = None, make_engine(self.renderer)
        self.max_batch = max_batch
        self.concurrency = 2 * max_batch
        """Episodes that run at the same time, at most."""
        default_tokens = GPU_MICRO_BATCH_TOKENS if self.decoder.device.type == "cuda" else MicroBatchLimits.tokens
        self.limits = limits or MicroBatchLimits(default_tokens)
        self.logprob_limits = logprob_limits or self.limits
        self.role_policies: dict[str, TrainablePolicy] = {}
        """Roles with an adapter of their own over the same base model."""
        self.role_engines: dict[str, tuple[Engine, Renderer]] = {}
        """Roles whose model is not trained: another local model, or a server."""
        self.workers: RolloutWorkers | None = None
        """Other processes that run the episodes instead of this one's engine."""
        self.version = 0
        self.engine_is_current = False
        self.reference: Decoder | None = None
        self._learner: Learner | None = None
        self._update_stream: torch.cuda.Stream | None = None

    def _local_engine(self, max_batch: int, kv_bytes: int | None, gpu_memory_utilization: float) -> LocalEngine:
        return LocalEngine(
            self.engine_decoder or self.decoder,
            self.renderer,
            max_batch=max_batch,
            kv_bytes=kv_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            threads=self._threads,
            prefill_threads=self._threads,
        )

    @property
    def models(self) -> tuple[TrainablePolicy, ...]:
        """This model and those of the roles that have an adapter of their own."""
        return (self, *self.role_policies.values())

    def reset_optimizer(self, settings: OptimizerSettings) -> None:
        """Begin a training stage: a new optimizer over the current weights."""
        self._learner = Learner(self.decoder, settings, self.limits, self._threads)

    def freeze_reference(self) -> None:
        """Make the current weights the reference of KL terms.

        The reference is a frozen copy of what is trained; of an adapter that has no effect yet, it is the model
        without the adapter, and nothing is copied.
        """
        model = self.unsharded.model
        if self.loaded.adapter is not None and adapter_is_zero(model):
            self.reference = Decoder(self.loaded.model, adapted=False)
            return
        copied = frozen_copy(model) if self.sharding is None else copy.deepcopy(model)
        if self.sharding is not None:
            shard(copied, self.sharding.reference_offload)
        self.reference = Decoder(copied)

    @property
    def unsharded(self) -> LoadedModel:
        """The model with full weights: the trained one, or the unsharded copy of it."""
        return self.loaded if self.unsharded_copy is None else self.unsharded_copy.model

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The trained weights by name; of a sharded model, this rank's shards."""
        if self.sharding is not None:
            free_gathered(self.loaded.model)  # a module whose weights are gathered has these instead of its shards
        return {name: parameter for name, parameter in self.loaded.model.named_parameters() if parameter.requires_grad}

    def gather(self) -> None:
        """Bring the full weights and moments of a sharded model up to date; all ranks have to call this."""
        if self.unsharded_copy is not None:
            self.unsharded_copy.gather_weights(self.trained_parameters())
            self.unsharded_copy.gather_moments(self.trained_parameters(), self.learner.optimizer)

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise UserError("Start a training stage before updating.")
        return self._learner

    def update(
        self,
        samples: Sequence[Sample],
        denominator: float,
        objective: Objective,
        lr: float,
        on_micro_batch: Callable[[], None] | None = None,
        without_gradient: Sequence[Sample] = (),
    ) -> dict[str, float]:
        """Do one optimizer step; the engine has a new policy version after it. Returns the metrics.

        They cover the samples and those `without_gradient`, which are computed forward only.
        """
        metrics = self.learner.update(
            samples, denominator, objective, lr, self.reference, on_micro_batch, without_gradient
        )
        self.set_version(self.version + 1)
        return metrics

    @contextlib.contextmanager
    def update_stream(self) -> Iterator[None]:
        """A context for updates during a rollout: on a GPU they run on a CUDA stream of their own.

        On one stream, update and rollout would wait for each other. All work of the stream is done at the exit.
        """
        if self.decoder.device.type != "cuda":
            yield
            return
        if self._update_stream is None:
            self._update_stream = torch.cuda.Stream(self.decoder.device)  # type: ignore[no-untyped-call]
        self._update_stream.wait_stream(torch.cuda.default_stream(self.decoder.device))
        with torch.cuda.stream(self._update_stream):
            yield
        self._update_stream.synchronize()

    def clear_engine_caches(self) -> None:
        """Empty the engines' caches: what comes from one may differ in the last bit from what is computed again.

        Every step begins so, resumed or not, also after a validation or a step without an update.
        """
        for model in self.models:
            model.set_version(model.version)

    def set_version(self, version: int) -> None:
        """Declare the weights to be those of `version`.

        Before the next rollout the engine is brought up to date and its cache emptied, also where the version is the
        one from before.
        """
        self.version = version
        self.engine_is_current = False

    async def refresh(self) -> None:
        """Bring the engine up to date with the current weights. No reply and no update may be in progress."""
        for model in self.role_policies.values():
            await model.refresh()
        if self.engine_is_current:
            return
        if self.unsharded_copy is not None:
            self.unsharded_copy.gather_weights(self.trained_parameters())
        elif self.engine_decoder is not None and self.engine_decoder is not self.decoder:
            parameters = zip(self.engine_decoder.model.parameters(), self.loaded.model.parameters(), strict=True)
            pairs = [(target.data, source.data) for target, source in parameters if source.requires_grad]
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs])
        await self.engine.update_weights(self.version, self)
        self.engine_is_current = True

    async def refresh_between_turns(self) -> float:
        """Bring the engines up to date while episodes are under way; returns the mean |engine - learner| log-prob.

        Replies that are being sampled end first, those that come next are sampled with the new weights: every reply is
        of one version.
        """
        if self.workers is not None:
            self.engine_is_current = True  # it is not used
            return await self.workers.update_weights(self)
        async with self.paused():
            await self.refresh()
        return max([model.score_difference(await model.probe()) for model in self.models])

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """A time in which no engine of the policy samples; replies that have begun end first."""
        async with contextlib.AsyncExitStack() as stack:
            for model in self.models:
                assert isinstance(model.engine, LocalEngine)
                await stack.enter_async_context(model.engine.gate.paused())
            yield

    async def probe(self, num_tokens: int = PROBE_TOKENS) -> SampledReply:
        """Sample a short reply with the engine: a prompt, the reply and its log-probs, for `score_difference`."""
        observation = Observation((Message("user", PROBE),))
        prompt = tuple(token for span in self.renderer.start(observation.messages, ()) for token in span.ids)
        sampling = Sampling(max_tokens=num_tokens, seed=0)
        task = Task("probe", "probe", "val")
        request = Request(prompt, sampling, task, observation, observation.messages, final=True)
        generation = await self.engine.generate(request)
        return list(prompt), list(generation.ids), list(generation.logprobs or ())

    def score_difference(self, sampled: SampledReply) -> float:
        """Return the mean |engine - learner| log-prob of a reply that an engine has sampled."""
        prompt, reply, logprobs = sampled
        if not reply:
            return 0.0
        expected = torch.tensor(self.score(prompt, reply))
        return float((expected - torch.tensor(logprobs)).abs().mean())

    def policies(self, agent: Agent) -> dict[str, Policy]:
        """The policies of the agent's roles, each with the engine of its model."""
        policies = {}
        for name, role in agent.roles.items():
            engine, renderer = self.role_engines.get(name, (self.engine, self.renderer))
            if name in self.role_policies:
                engine, renderer = self.role_policies[name].engine, self.role_policies[name].renderer
            policies[name] = role.policy(engine, renderer, agent, name)
        return policies

    def score(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """Log-probs of the tokens of a reply under the current weights, computed by this process alone.

        Those of a sharded model are its engine's weights.
        """
        decoder = self.decoder if self.unsharded_copy is None else self.unsharded_copy.decoder()
        assert decoder is not None
        ids = (*prompt, *reply)
        mask = np.arange(len(ids)) >= len(prompt)
        zeros = np.zeros(len(ids), dtype=np.float32)
        (logprobs,) = per_own_sample(
            [Sample(ids, mask, zeros, zeros, zeros)],
            self.limits,
            decoder.device,
            lambda micro: head_logprobs(decoder, hidden_states(decoder, micro), micro),
        )
        values: list[float] = logprobs.tolist()
        return values

    async def roll_out(
        self,
        planned: Sequence[Attempt],
        make_environment: MakeEnvironment,
        agent: Agent,
        *,
        concurrency: int | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
        provenance: Mapping[str, Any] | None = None,
        watcher: EpisodeWatcher | None = None,
        refresh: bool = True,
        resources: RunResources | None = None,
    ) -> list[Trajectory]:
        """Episodes of the current policy; without `refresh`, of the weights that the engine has.

        Several ranks divide them among them by group, and each gets all of them. Rollout workers, where there are any,
        run them in environments of their own.
        """
        several_ranks = dist.is_initialized()
        if refresh:
            with ranks.shared_failure() if several_ranks else contextlib.nullcontext():
                await self.refresh()
        if self.workers is not None:
            return await self.workers.roll_out(self, RolloutRequest(planned, agent, provenance or {}, on_done, refresh))
        own: Sequence[int] = range(len(planned))
        if several_ranks:
            groups = [attempt.group or attempt.task.id for attempt in planned]
            own = ranks.own_positions(groups, self.ranks_per_engine)
        with ranks.shared_failure() if several_ranks else contextlib.nullcontext():
            episodes = await run_episodes(
                [planned[position] for position in own],
                make_environment,
                agent,
                self.engine,
                self.renderer,
                concurrency=self.episode_slots or concurrency or self.concurrency,
                retries=1,
                provenance={"model": self.loaded.source, **(provenance or {})},
                on_done=on_done,
                watcher=watcher,
                policies=self.policies(agent),
                resources=resources,
            )
        return gather_episodes(len(planned), own, episodes, on_done) if several_ranks else episodes

    async def evaluate(
        self,
        name: str,
        panel: Panel,
        make_environment: MakeEnvironment,
        agent: Agent,
        on_done: Callable[[Trajectory], None] | None = None,
        resources: RunResources | None = None,
    ) -> tuple[EvalResult, list[Trajectory]]:
        """Score the current policy on a panel; the result, and the episodes. Shared state is the first in here."""
        with contextlib.nullcontext() if resources is None else resources.evaluation():
            episodes = await self.roll_out(
                panel.attempts(),
                make_environment,
                agent,
                on_done=on_done,
                provenance={"panel": panel.hash},
                resources=resources,
            )
        return result_from_episodes(name, panel, episodes), episodes

    def write(self, folder: Path) -> None:
        """Write the model (or only its adapter) and its tokenizer, as Hugging Face and PEFT do."""
        loader.save_weights(self.unsharded, folder)
        self.loaded.tokenizer.chat_template = self.renderer.template  # what it was trained under
        self.loaded.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """Write the model (or only its adapter) and its tokenizer; after a crash the folder is complete or absent."""
        self.loaded.tokenizer.chat_template = self.renderer.template  # what it was trained under
        loader.save(self.unsharded, folder)
        for name, model in self.role_policies.items():
            model.save(folder / ROLES / name)

    async def close(self) -> None:
        if self.workers is not None:
            await self.workers.close()
        await self.engine.close()
        for model in self.role_policies.values():
            await model.close()
        for engine, _ in self.role_engines.values():
            await engine.close()


def gather_episodes(
    num_planned: int,
    positions: Sequence[int],
    own: Sequence[Trajectory],
    on_other: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Return the episodes of all ranks in the order of the plan, the same on every rank.

    They travel as the records that are written to files. `positions` are those of this rank's `own` in the plan;
    `on_other` is called with the episodes of other ranks.
    """
    records = [[position, encode_episode(episode).decode()] for position, episode in zip(positions, own, strict=True)]
    episodes: dict[int, Trajectory] = {}
    for rank, part in enumerate(ranks.gather_json(records)):
        for position, text in part:
            episodes[position] = decode_episode(text.encode())
            if rank != ranks.own_rank() and on_other is not None:
                on_other(episodes[position])
    return [episodes[position] for position in range(num_planned)]


def shard_with_copy(loaded: LoadedModel, sharding: ShardingSettings) -> UnshardedCopy:
    """Divide a model among the ranks, in place; returns an unsharded copy. Frozen weights have to be the same."""
    unsharded = UnshardedCopy(loaded, on_every_rank=sharding.has_engine)
    ranks.check_same_weights(parameter for parameter in loaded.model.parameters() if not parameter.requires_grad)
    shard(loaded.model, sharding.param_offload)
    return unsharded


def adapter_is_zero(model: PreTrainedModel) -> bool:
    """Whether a model's adapter has no effect: all its B matrices are zero."""
    return not any(weight.any() for name, weight in model.named_parameters() if ".lora_B." in name)


def sharing_weights(loaded: LoadedModel) -> LoadedModel:
    """The model as another object with the same weights: each may have an adapter of its own."""
    shared: dict[int, Any] = {id(weight): weight for weight in (*loaded.model.parameters(), *loaded.model.buffers())}
    return replace(loaded, model=copy.deepcopy(loaded.model, shared))


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A frozen copy of a model; trained weights are copied, frozen ones are shared with it."""
    shared: dict[int, Any] = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    return copy.deepcopy(model, shared).requires_grad_(False)
