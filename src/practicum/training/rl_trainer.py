"""Reinforcement learning, one step at a time: collect rollouts, compute rewards and advantages, update.

The trajectories come from a `RolloutSource`; `run.Run` is the loop around the steps.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from practicum.algorithms import losses
from practicum.engines.local.sampling import is_filtered
from practicum.errors import UserError
from practicum.models.decoder import Decoder
from practicum.resources import RunResources
from practicum.training.async_source import AsyncSource
from practicum.training.critic import Critic, ValuedSample, explained_variance, with_next_state
from practicum.training.estimators import ESTIMATORS, Advantages, TokenRewards, estimate, token_rewards
from practicum.training.learner import learning_rate, utilisation
from practicum.training.micro_batches import Sample, cache_token_masks, in_token_order, scatter, unweighted_samples
from practicum.training.monitor.loggers import summary_stats, tool_time_metrics
from practicum.training.objective import (
    WeightedTrajectory,
    build_samples,
    collate,
    compute_divergences,
    compute_logprobs,
)
from practicum.training.rollout_batch import RolloutBatch, TrajectoryGroups
from practicum.training.rollout_source import OnEpisode, RolloutSource
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.training.trainer import Evaluated, StepResult, Trainer, Validation, panel_validation
from practicum.trajectory import Outcome, Trajectory, derive_seed, is_trained
from practicum.utils.arrays import FloatArray


def engine_mismatch(samples: Sequence[Sample], learner_logprobs: Sequence[Tensor]) -> dict[str, float]:
    """Mean and maximum of |engine - learner| log-prob over the sampled tokens; one tensor per sample."""
    engine = np.concatenate([sample.sampling_logprobs[sample.mask] for sample in samples])
    difference = np.abs(engine - np.concatenate([values.numpy() for values in learner_logprobs]))
    return {"mismatch/logprob/mean": float(difference.mean()), "mismatch/logprob/max": float(difference.max())}


def check_mismatch(step: int, metrics: Mapping[str, float], limit: float) -> None:
    """Raise when the mean mismatch per token is above the limit."""
    mean = max([value for key, value in metrics.items() if key.endswith("mismatch/logprob/mean")], default=0.0)
    if not mean <= limit:
        raise UserError(
            f"Step {step}: engine and learner disagree by {mean:.3g} per token on average; "
            "the engine is not running the policy being trained, so the run stops."
        )


OnAdvantages = Callable[[TrajectoryGroups, list[list[FloatArray]]], None]


class RLTrainer(Trainer):
    """Trains a policy on the trajectories of a source, with the advantages of `settings.adv_estimator`."""

    stops_by_exception = False  # the engine and the tools have threads of their own, which an exception would wait for

    def __init__(
        self,
        policy: TrainablePolicy,
        source: RolloutSource,
        settings: RLSettings,
        critic_model: Decoder | None = None,
        evaluate: Callable[[], Awaitable[Evaluated]] | None = None,
        on_episode: OnEpisode | None = None,
        on_micro_batch: Callable[[], None] | None = None,
        resources: RunResources | None = None,
    ) -> None:
        """`critic_model` is the critic's own model; without one the critic is a head on the policy.

        `evaluate` scores the policy on the validation panel. `on_episode` is called with each episode played,
        `on_micro_batch` after each micro-batch of an update. `resources` are what all episodes of the run share: their
        state is part of the trainer's, and they are closed with it.
        """
        sampling = source.agent.sampling
        if is_filtered(sampling) and policy.engine.name != "local":
            raise UserError(
                f"The engine '{policy.engine.name}' does not say which tokens top_k, top_p and min_p left to sample "
                "from; leave them out, or set actor_rollout_ref.rollout.name=local."
            )
        if sampling.temperature <= 0:
            raise UserError("Training needs a temperature above 0: greedy chains are all alike.")
        own_weights = policy.workers is not None or all(model.has_engine_weights for model in policy.models)
        if settings.updates_during_rollouts and not own_weights:
            raise ValueError("updates during rollouts need an engine with weights of its own")
        self.policy = policy
        self.source = source
        self.settings = settings
        self.roles = settings.estimation.train_roles
        """The trained roles; None: all."""
        self._check_roles()
        self.stops_in_rollout = not settings.updates_during_rollouts and not dist.is_initialized()
        self.keeps_engine_caches = self.gives_up_rollouts = settings.max_staleness > 0
        self.evaluate = evaluate
        self.resources = resources if resources is not None else RunResources({})
        self.on_episode, self.on_micro_batch = on_episode, on_micro_batch
        self.estimator = ESTIMATORS[settings.adv_estimator]
        self.kl_control = replace(settings.kl_ctrl)
        self.on_advantages: OnAdvantages = lambda groups, advantages: None
        """Called with the groups of a step and their advantages per token."""
        self._next_batch: RolloutBatch | None = None
        """With `overlap`: the batch of the next step."""
        for model in policy.models:
            model.reset_optimizer(settings.optimizer)
            if settings.needs_reference:
                model.freeze_reference()
        if self.estimator.needs_critic:
            self.critic = Critic(
                policy.decoder,
                settings.critic,
                critic_model,
                policy.limits,
                seed=derive_seed("critic", settings.seed) % 2**31,
            )

    def _check_roles(self) -> None:
        """Refuse what cannot be trained with several roles."""
        for name, role in self.source.agent.roles.items():
            if role.temperature is not None and role.temperature <= 0 and (self.roles is None or name in self.roles):
                raise UserError(
                    f"agent.roles.{name}.temperature must be above 0, because '{name}' is trained: greedy chains are "
                    "all alike."
                )
        own = self.settings.estimation.role_credit == "own"
        if own and ESTIMATORS[self.settings.adv_estimator].needs_greedy_rollout:
            raise UserError(
                f"algorithm.role_credit=own compares each role with itself; {self.settings.adv_estimator} goes by the "
                "episode's reward of a greedy rollout: use role_credit=shared with it."
            )

    @property
    def models(self) -> list[tuple[str, TrainablePolicy, tuple[str, ...] | None]]:
        """The models in training: name ("" is the policy's own), model, and the roles that it trains; None: all."""
        if not self.policy.role_policies:
            return [("", self.policy, None)]
        trained = self.roles or ()
        shared = tuple(role for role in trained if role not in self.policy.role_policies)
        result: list[tuple[str, TrainablePolicy, tuple[str, ...] | None]] = []
        if shared:
            result.append(("", self.policy, shared))
        return result + [(n, model, (n,)) for n, model in self.policy.role_policies.items() if n in trained]

    # -- state ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What the next step depends on besides weights and optimizers, as plain JSON."""
        return {
            "practice": {
                **self.source.state(),
                "kl_coefficient": self.kl_control.kl_coef,
                "lr_scale": self.lr_scale,
                "clip_scale": self.clip_scale,
                "version": self.policy.version,
                **(
                    {"role_versions": {name: policy.version for name, policy in self.policy.role_policies.items()}}
                    if self.policy.role_policies
                    else {}
                ),
                **({"ahead": self._next_batch.record()} if self._next_batch is not None else {}),
                **({"resources": states} if (states := self.resources.state_dict()) else {}),
            }
        }

    async def close(self) -> None:
        if isinstance(self.source, AsyncSource):
            await self.source.close()
        await self.resources.close()

    def restore(self, state: dict[str, Any]) -> None:
        own = state["practice"]
        self.source.restore(own)
        self.kl_control.kl_coef = float(own["kl_coefficient"])
        self.lr_scale, self.clip_scale = float(own["lr_scale"]), float(own["clip_scale"])
        self.policy.set_version(int(own["version"]))
        self.policy.learner.version = int(own["version"])
        for name, model in self.policy.role_policies.items():
            model.set_version(int(own["role_versions"][name]))
            model.learner.version = model.version
        self._next_batch = RolloutBatch.read(own["ahead"]) if "ahead" in own else None
        self.resources.load_state_dict(own.get("resources", {}))

    # -- one step ---------------------------------------------------------------------------

    async def step(self, step: int) -> StepResult:
        """Collect the batch of a step and train on it."""
        if self.settings.overlap:
            return await self._step_overlapped(step)
        if self.settings.max_staleness:
            return await self._step_asynchronous(step)
        batch = await self.source.collect(step, self.on_episode)
        return StepResult(self._train(step, batch), batch.episodes)

    async def validate(self) -> Validation | None:
        """Score the policy on the validation panel."""
        return None if self.evaluate is None else panel_validation(await self.evaluate())

    async def _step_overlapped(self, step: int) -> StepResult:
        """Train on one batch while the next one is rolled out, both from the weights at the start of the step."""
        started, batch = time.perf_counter(), self._next_batch
        if batch is None or batch.step != step:
            await self.policy.refresh()
            batch = self._with_mismatch(await self.source.collect(step, self.on_episode))
        self._next_batch, rollout = None, None
        await self.policy.refresh()
        all_turns = [turn for episode in batch.episodes for turn in episode.turns]
        turns = [turn for turn in all_turns if turn.num_sampled and is_trained(turn, self.roles)]
        models = self.policy.role_policies
        ages = [float(models.get(turn.role, self.policy).version - turn.policy_version) for turn in turns]
        if step + 1 < self.settings.total_training_steps:
            rollout = asyncio.create_task(self.source.collect(step + 1, self.on_episode))
        try:
            metrics = await asyncio.to_thread(self._train_beside_rollout, step, batch)
        except BaseException:
            if rollout is not None:
                rollout.cancel()
                await asyncio.gather(rollout, return_exceptions=True)
            raise
        if rollout is not None:
            self._next_batch = self._with_mismatch(await rollout)
        metrics |= {"staleness/versions/mean": sum(ages) / len(ages)} if ages else {}
        metrics["timing/step"] = time.perf_counter() - started
        return StepResult(metrics, batch.episodes)

    async def _step_asynchronous(self, step: int) -> StepResult:
        """Train on a batch while those of the next steps are rolled out; then give the new weights to the engines."""
        started = time.perf_counter()
        collecting = self._collect_with_current_engine(step)
        batch = await (collecting if self.wait_for_rollouts is None else self.wait_for_rollouts(collecting))
        metrics = await asyncio.to_thread(self._train_beside_rollout, step, batch)
        trained = time.perf_counter()
        metrics["mismatch/logprob/mean"] = await self.policy.refresh_between_turns()
        check_mismatch(step, metrics, self.settings.mismatch_limit)
        metrics["timing/refresh"] = time.perf_counter() - trained
        metrics["timing/step"] = time.perf_counter() - started
        return StepResult(metrics, batch.episodes)

    async def _collect_with_current_engine(self, step: int) -> RolloutBatch:
        if not self.policy.engine_is_current:
            await self.policy.refresh_between_turns()
        return await self.source.collect(step, self.on_episode)

    def _train_beside_rollout(self, step: int, batch: RolloutBatch) -> dict[str, float]:
        with self.policy.update_stream():
            return self._train(step, batch)

    def _train(self, step: int, batch: RolloutBatch) -> dict[str, float]:
        """Compute the advantages of one batch and update critic and actor; returns the metrics."""
        started, groups, metrics = time.perf_counter(), batch.groups, dict(batch.metrics)
        rewards, reward_metrics = self._token_rewards(groups, batch.greedy_rewards)
        metrics |= reward_metrics
        rewards, critic_samples = self._add_values(groups, rewards)
        advantages = estimate(self.estimator, groups, rewards, self.settings.estimation)
        self.on_advantages(groups, advantages.advantages)
        metrics |= _advantage_metrics(rewards, advantages)
        estimated, learners = time.perf_counter(), [model.learner for _, model, _ in self.models]
        flops = sum(learner.model_flops for learner in learners)
        if self.critic is not None and critic_samples and advantages.returns is not None:
            metrics |= self._update_critic(step, critic_samples, advantages)
        updated = self._update_models(step, batch, advantages) if step >= self.settings.critic_warmup else {}
        if self.settings.updates_during_rollouts:  # the learner is ahead of the policy that sampled: no mismatch
            updated = {name.replace("mismatch/", "staleness/"): value for name, value in updated.items()}
        elif not updated and groups and self.source.from_engine:  # without an update the engine is checked all the same
            updated = self._measure(groups)
        metrics |= {self.source.metric_names.get(name, name): value for name, value in updated.items()}
        metrics |= batch.stream_metrics
        check_mismatch(step, metrics, self.settings.mismatch_limit)
        metrics |= {"timing/rollout": batch.seconds, **tool_time_metrics(batch.episodes)}
        metrics["timing/credit"] = estimated - started
        metrics["timing/update"] = time.perf_counter() - estimated
        return metrics | utilisation(learners, flops, metrics["timing/update"])

    # -- rewards and values -----------------------------------------------------------------

    def _token_rewards(
        self, groups: TrajectoryGroups, greedy_rewards: dict[str, float]
    ) -> tuple[list[list[TokenRewards]], dict[str, float]]:
        """Rewards per token, less the KL penalty where it is part of the reward; and the metrics of the penalty."""
        rewards = [[token_rewards(episode, self.settings.estimation) for episode in group] for group in groups]
        if greedy_rewards:
            rewards = [
                [replace(item, greedy_reward=greedy_rewards[group[0].group]) for item in items]
                for group, items in zip(groups, rewards, strict=True)
            ]
        if not self.settings.use_kl_in_reward or not groups:
            return rewards, {}
        samples: list[Sample] = []
        owners: list[int] = []
        per_sample: list[Tensor] = []
        for _, model, own_roles in self.models:
            assert model.reference is not None
            own, own_owners = self._samples(groups, own_roles)
            per_sample += compute_divergences(
                model.decoder, model.reference, own, self.settings.kl_penalty, model.limits
            )
            samples, owners = samples + own, owners + own_owners
        per_episode = _join(samples, per_sample, owners, sum(map(len, groups)))
        divergences = iter(per_episode)
        coefficient = self.kl_control.kl_coef
        penalised = [
            [replace(item, rewards=item.rewards - coefficient * next(divergences)) for item in items]
            for items in rewards
        ]
        means = [row.mean() for row in per_episode if len(row)]
        if not means:  # no trained role has acted
            return rewards, {}
        mean = float(np.mean(means))
        self.kl_control.update(mean, len(per_episode))
        return penalised, {"reward_kl/mean": mean, "reward_kl/coefficient": coefficient}

    def _add_values(
        self, groups: TrajectoryGroups, rewards: list[list[TokenRewards]]
    ) -> tuple[list[list[TokenRewards]], list[list[list[ValuedSample]]]]:
        """The critic's values beside the rewards, and the samples to update it with, by group and episode."""
        if self.critic is None or not groups:
            return rewards, []
        episodes = [episode for group in groups for episode in group]
        temperature = self.source.agent.sampling.temperature
        samples = [unweighted_samples(episode, temperature, self.roles) for episode in episodes]
        extended = [self._with_next_state(episode, own) for episode, own in zip(episodes, samples, strict=True)]
        flat_values = iter(self.critic.values([sample for own in extended for sample in own]))
        pairs = iter(zip(samples, extended, strict=True))
        with_values: list[list[TokenRewards]] = []
        valued: list[list[list[ValuedSample]]] = []
        for group in rewards:
            with_values.append([])
            valued.append([])
            for item in group:
                own, longer = next(pairs)
                values = [next(flat_values) for _ in longer]
                last = 0.0
                if own and longer[-1] is not own[-1]:
                    last, values[-1] = float(values[-1][-1]), values[-1][:-1]
                joined = in_token_order(own, [value.double().numpy() for value in values])
                with_values[-1].append(replace(item, values=joined, last_value=last))
                valued[-1].append([ValuedSample(sample, value) for sample, value in zip(own, values, strict=True)])
        return with_values, valued

    def _with_next_state(self, episode: Trajectory, samples: list[Sample]) -> list[Sample]:
        """The samples of an episode, the last one with the state that the critic values for what truncation cut off.

        Where the next prompt would not fit into the model's window, no turn could follow, and there is no such state.
        Nor is there one where several roles act: the next turn may be another role's.
        """
        if len(episode.roles) > 1:
            return samples
        if not samples or episode.outcome is not Outcome.TRUNCATED or not self.settings.estimation.bootstraps:
            return samples
        last = samples[-1]
        context = last.ids[: int(np.flatnonzero(last.mask)[-1]) + 1]
        spans = self.policy.renderer.extend(context, episode.closing)
        longer = with_next_state(last, [token for span in spans for token in span.ids])
        fits = len(longer.ids) <= self.policy.decoder.shape.context
        return [*samples[:-1], longer] if fits else samples

    # -- updates ----------------------------------------------------------------------------

    def _update_critic(
        self, step: int, valued: list[list[list[ValuedSample]]], advantages: Advantages
    ) -> dict[str, float]:
        """All epochs and mini-batches of the critic in one step."""
        assert self.critic is not None
        assert advantages.returns is not None
        groups: list[list[ValuedSample]] = []
        for episodes, targets in zip(valued, advantages.returns, strict=True):
            groups.append([])
            for samples, target in zip(episodes, targets, strict=True):
                groups[-1] += [
                    replace(valued, returns=torch.from_numpy(target[valued.sample.positions]).float())
                    for valued in samples
                ]
        settings = self.settings
        lr = learning_rate(
            step, settings.total_training_steps, settings.critic.lr, settings.warmup_style, 0, settings.min_lr_ratio
        )
        updates: list[dict[str, float]] = []
        for epoch in range(settings.critic.ppo_epochs):
            for indices in self._mini_batches(step, epoch, len(groups), settings.critic.ppo_mini_batch_size, "critic"):
                batch = [item for index in indices for item in groups[index]]
                updates.append(self.critic.update(batch, lr, self.on_micro_batch))
        return _mean_of([metrics for metrics in updates if metrics])

    def _update_models(self, step: int, batch: RolloutBatch, advantages: Advantages) -> dict[str, float]:
        """Update every model in training with the tokens of its roles; metrics of a role's own begin with its name."""
        metrics: dict[str, float] = {}
        for name, model, own_roles in self.models:
            updated = self._update_actor(step, model, self._weighted(batch, advantages, own_roles))
            metrics |= updated if not name else {f"role/{name}/{key}": value for key, value in updated.items()}
        return metrics

    def _weighted(
        self, batch: RolloutBatch, advantages: Advantages, own_roles: tuple[str, ...] | None
    ) -> list[list[WeightedTrajectory]]:
        """Trajectories with an advantage and a loss weight per token, at the temperature they were sampled with."""
        sampling = self.source.agent.sampling
        weighted = build_samples(
            batch.groups,
            advantages.advantages,
            self.settings.loss_aggregation,
            sampling.temperature,
            sampling.max_tokens,
            self.roles,
            own_roles,
            self.policy.renderer.grammars,
        )
        if batch.temperatures is None:
            return weighted
        return [
            [
                replace(
                    trajectory,
                    samples=tuple(replace(sample, temperature=temperature) for sample in trajectory.samples),
                )
                for trajectory, temperature in zip(group, temperatures, strict=True)
            ]
            for group, temperatures in zip(weighted, batch.temperatures, strict=True)
        ]

    def _update_actor(
        self, step: int, policy: TrainablePolicy, weighted: list[list[WeightedTrajectory]]
    ) -> dict[str, float]:
        """All epochs and mini-batches of a model in one step; empty when no token has an advantage."""
        settings = self.settings
        objective = replace(
            settings.objective,
            clip_ratio_low=settings.objective.clip_ratio_low * self.clip_scale,
            clip_ratio_high=settings.objective.clip_ratio_high * self.clip_scale,
        )
        keep_all = bool(objective.entropy_coeff or objective.kl_loss_coef)
        scheduled = learning_rate(
            step,
            settings.total_training_steps,
            settings.lr,
            settings.warmup_style,
            settings.lr_warmup_steps,
            settings.min_lr_ratio,
        )
        if settings.filter_groups.enable:  # a batch that the filter could not fill is a smaller sample
            scheduled *= min(1.0, len(weighted) / settings.train_batch_size)
        if settings.tis_imp_ratio_cap > 0:
            weighted = self._with_importance_weights(policy, weighted)
        updates: list[dict[str, float]] = []
        for epoch in range(settings.ppo_epochs):
            unmeasured: list[Sample] = []
            for indices in self._mini_batches(step, epoch, len(weighted), settings.ppo_mini_batch_size, "actor"):
                batch = collate((trajectory for index in indices for trajectory in weighted[index]), keep_all)
                unmeasured += batch.without_gradient
                if batch.samples:
                    lr = scheduled * self.lr_scale
                    updates.append(
                        policy.update(batch.samples, batch.denominator, objective, lr, self.on_micro_batch, unmeasured)
                    )
                    unmeasured = []
        if not updates:
            return {}
        # Only before the first update are learner and engine the same policy.
        mismatch = {key: value for key, value in updates[0].items() if key.startswith("mismatch/")}
        return _mean_of(updates) | mismatch | {"actor/updates": float(len(updates))}

    def _with_importance_weights(
        self, policy: TrainablePolicy, weighted: list[list[WeightedTrajectory]]
    ) -> list[list[WeightedTrajectory]]:
        """Old log-probs by the learner, and each token's importance weight for having been sampled by the engine."""
        samples = [sample for group in weighted for trajectory in group for sample in trajectory.samples]
        logprobs = iter(zip(samples, policy.learner.logprobs(samples, policy.logprob_limits), strict=True))

        def corrected(sample: Sample) -> Sample:
            same, old = next(logprobs)
            assert same is sample
            engine = torch.from_numpy(sample.sampling_logprobs[sample.mask])
            weight = losses.truncated_importance(old, engine, self.settings.tis_imp_ratio_cap)
            return replace(
                sample, old_logprobs=scatter(sample, old.numpy()), corrections=scatter(sample, weight.numpy())
            )

        return [
            [
                replace(trajectory, samples=tuple(corrected(sample) for sample in trajectory.samples))
                for trajectory in group
            ]
            for group in weighted
        ]

    def _mini_batches(self, step: int, epoch: int, count: int, size: int | None, model: str) -> list[list[int]]:
        """Indices of groups in mini-batches of about `size`; shuffled when there is more than one."""
        order = list(range(count))
        if size is None or size >= count:
            return [order] if order else []
        random.Random(derive_seed("mini-batches", model, self.settings.seed, step, epoch)).shuffle(order)
        num_batches = round(count / size)  # where groups were dropped, no mini-batch is much smaller than the others
        bounds = [round(index * count / num_batches) for index in range(num_batches + 1)]
        return [order[start:end] for start, end in itertools.pairwise(bounds)]

    # -- engine mismatch --------------------------------------------------------------------

    def _samples(
        self, groups: TrajectoryGroups, own_roles: tuple[str, ...] | None = None
    ) -> tuple[list[Sample], list[int]]:
        """Samples of all episodes without weights, and the index of the episode that each belongs to."""
        episodes = [episode for group in groups for episode in group]
        temperature, grammars = self.source.agent.sampling.temperature, self.policy.renderer.grammars
        cache_token_masks(episodes, self.roles, grammars)
        pairs = [
            (sample, index)
            for index, episode in enumerate(episodes)
            for sample in unweighted_samples(episode, temperature, self.roles, own_roles, grammars)
        ]
        return [sample for sample, _ in pairs], [owner for _, owner in pairs]

    def _measure(self, groups: TrajectoryGroups) -> dict[str, float]:
        """Entropy and engine mismatch of a step that brings no update."""
        metrics: dict[str, float] = {}
        for name, model, own_roles in self.models:
            samples, _ = self._samples(groups, own_roles)
            if not samples:  # none of its roles has acted
                continue
            measured = model.learner.measure(samples, replace(self.settings.objective, kl_loss_coef=0.0))
            for key, value in measured.items():
                if key == "actor/entropy" or key.startswith("mismatch/"):
                    metrics[f"role/{name}/{key}" if name else key] = value
        return metrics

    def _with_mismatch(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the engine mismatch of its first group, against the very weights that it was sampled with.

        The learner's own weights have changed meanwhile. An engine in another process has no decoder to compare with;
        its weights are checked by its canary.
        """
        metrics = dict(batch.metrics)
        for name, model, own_roles in self.models:
            samples, _ = self._samples(batch.groups[:1], own_roles)
            if model.engine_decoder is None or not samples:
                continue
            torch.set_num_threads(model.learner.threads)
            logprobs = compute_logprobs(model.engine_decoder, samples, model.logprob_limits)
            mismatch = engine_mismatch(samples, logprobs)
            metrics |= {f"role/{name}/{key}" if name else key: value for key, value in mismatch.items()}
        return replace(batch, metrics=metrics)


def _join(
    samples: Sequence[Sample], values: Sequence[torch.Tensor], owners: Sequence[int], count: int
) -> list[FloatArray]:
    """Values per sample joined to values per episode, in the order of its trained tokens."""
    parts: list[tuple[list[Sample], list[FloatArray]]] = [([], []) for _ in range(count)]
    for sample, value, owner in zip(samples, values, owners, strict=True):
        parts[owner][0].append(sample)
        parts[owner][1].append(value.double().numpy())
    return [in_token_order(own, arrays) for own, arrays in parts]


def _advantage_metrics(rewards: Sequence[Sequence[TokenRewards]], advantages: Advantages) -> dict[str, float]:
    rows = [row for group in advantages.advantages for row in group if len(row)]
    if not rows:
        return {}
    joined = np.concatenate(rows)
    metrics = {"advantage/mean": float(joined.mean()), "advantage/min": float(joined.min()),
               "advantage/max": float(joined.max())}  # fmt: skip
    if advantages.returns is None:
        return metrics
    returns = np.concatenate([row for group in advantages.returns for row in group])
    values = np.concatenate([item.values for group in rewards for item in group if item.values is not None])
    valued = np.isfinite(returns)
    return metrics | {
        **summary_stats("critic/values", values[valued].tolist()),
        **summary_stats("critic/returns", returns[valued].tolist()),
        "critic/vf_explained_var": explained_variance(values[valued], returns[valued]),
    }


def _mean_of(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over the updates of a step; numbers of tokens are summed."""
    if not updates:
        return {}
    return {
        key: sum(metrics[key] for metrics in updates) / (1 if key == "actor/tokens" else len(updates))
        for key in updates[0]
    }
