"""Practice: roll out, credit, update, again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from practicum.agent import Agent
from practicum.algorithms import aggregation, kl, losses
from practicum.chat.console import EpisodeWatcher
from practicum.data.attempts import derive_seed, plan_attempts
from practicum.errors import UserError, did_you_mean
from practicum.models.decoder import Decoder
from practicum.rollout import MakeEnvironment
from practicum.task import Task
from practicum.training import forward
from practicum.training.critic import Critic, CriticSettings, ValuedSample, explained_variance, with_final_state
from practicum.training.curriculum import CurriculumSettings, TaskStream
from practicum.training.estimators import ESTIMATORS, Advantages, EstimatorSettings, TokenRewards, token_rewards
from practicum.training.lr_schedule import learning_rate
from practicum.training.micro_batches import Sample
from practicum.training.monitor.metrics import summary_stats
from practicum.training.monitor.rollout_metrics import rollout_metrics
from practicum.training.objective import Objective
from practicum.training.optimizer import OptimizerSettings
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.samples import WeightedTrajectory, build_samples, collate, scatter, unweighted_samples
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory
from practicum.utils.arrays import FloatArray

Scored = list[list[Trajectory]]


@dataclass(frozen=True)
class GroupFilter:
    """Which groups may teach: with `enable`, only those with signal, drawing up to `rounds` batches to fill a step."""

    enable: bool = False
    rounds: int = 1


@dataclass(frozen=True)
class RLSettings:
    """How to practise.

    `aggregation` of None is the estimator's own. `mini_batch` counts tasks (None: all of a step's).
    `importance_cap` above 0 recomputes the old log-probs in the learner and corrects for the engine's
    with ratios cut there. `mismatch_limit`: the mean |engine - learner| log-prob that stops the run.
    `overlap` rolls out the next step's batch while this one's is trained on: from the second step on, what is
    trained on was sampled by the weights of the step before, and ratios are taken against those.
    """

    steps: int = 50
    tasks_per_step: int = 16
    chains: int = 8
    estimator: str = "grpo"
    credit: EstimatorSettings = field(default_factory=EstimatorSettings)
    aggregation: str | None = None
    lr: float = 3e-4
    warmup: int = 5
    schedule: str = "constant"
    min_lr_ratio: float = 0.1
    objective: Objective = field(default_factory=Objective)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    epochs: int = 1
    mini_batch: int | None = None
    importance_cap: float = 0.0
    kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_control: kl.Controller = field(default_factory=kl.Controller)
    critic: CriticSettings = field(default_factory=CriticSettings)
    critic_mini_batch: int | None = None
    critic_warmup: int = 0
    admission: GroupFilter = field(default_factory=GroupFilter)
    curriculum: CurriculumSettings | None = None
    error_budget: float = 0.5
    mismatch_limit: float = 0.1
    overlap: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise UserError(
                f"Unknown advantage estimator '{self.estimator}'.{did_you_mean(self.estimator, ESTIMATORS)}"
            )
        if self.tasks_per_step < 1 or self.steps < 1:
            raise UserError("data.train_batch_size and trainer.total_training_steps must be at least 1.")
        learning_rate(0, self.steps, self.lr, self.schedule)  # a misspelt schedule is an error now, not later
        aggregation.token_weights([[1]], self.weighing)
        kl.check(self.kl_penalty)
        needed = ESTIMATORS[self.estimator].min_group_size
        if self.chains < needed:
            raise UserError(
                f"{self.estimator} compares the chains of one task: agent.num_chains must be at least {needed}."
            )
        if self.critic_warmup > 0 and not ESTIMATORS[self.estimator].needs_critic:
            raise UserError(
                f"trainer.critic_warmup={self.critic_warmup} trains a critic alone, and {self.estimator} has none; "
                "leave it out."
            )
        if self.admission.enable and self.chains < 2:
            raise UserError(
                "algorithm.filter_groups compares the chains of one task: agent.num_chains must be above 1."
            )
        if self.epochs < 1 or self.critic.epochs < 1 or self.admission.rounds < 1:
            raise UserError("ppo_epochs and algorithm.filter_groups.max_num_gen_batches must be at least 1.")

    @property
    def weighing(self) -> str:
        return self.aggregation or ESTIMATORS[self.estimator].aggregation

    @property
    def needs_reference(self) -> bool:
        return self.kl_in_reward or self.objective.kl_coeff != 0


class RLTrainer:
    """The RL loop over a stream of tasks. What must outlive the process is in `state`."""

    def __init__(
        self,
        policy: TrainablePolicy,
        tasks: Sequence[Task],
        make_environment: MakeEnvironment,
        agent: Agent,
        settings: RLSettings,
        critic_model: Decoder | None = None,
    ) -> None:
        if agent.sampling.top_k or agent.sampling.top_p < 1:
            raise UserError("Training samples from the whole distribution: leave top_k at 0 and top_p at 1.")
        if agent.sampling.temperature <= 0:
            raise UserError("Training needs a temperature above 0: greedy chains are all alike.")
        self.policy = policy
        self.stream = TaskStream(tasks, settings.curriculum, settings.tasks_per_step)
        self.make_environment = make_environment
        self.agent = agent
        self.settings = settings
        self.estimator = ESTIMATORS[settings.estimator]
        self.kl_control = replace(settings.kl_control)
        self.watcher: EpisodeWatcher | None = None
        """Hears of the first episode of every rollout."""
        self.lr_scale = self.clip_scale = 1.0
        """Set by whoever watches the run's health."""
        self.on_credit: Callable[[Scored, list[list[FloatArray]]], None] = lambda groups, advantages: None
        """Hears what the estimator gave to the groups of a step."""
        self._ahead: RolloutBatch | None = None
        """With `overlap`: the batch of the next step."""
        if settings.overlap and not policy.apart:
            raise ValueError("overlap needs an engine with weights of its own")
        policy.reset_optimizer(settings.optimizer)
        if settings.needs_reference:
            policy.freeze_reference()
        self.critic: Critic | None = None
        if self.estimator.needs_critic:
            self.critic = Critic(
                policy.decoder,
                settings.critic,
                critic_model,
                policy.limits,
                seed=derive_seed("critic", settings.seed) % 2**31,
            )

    # -- state ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What the next step depends on besides weights and optimizers, as plain JSON."""
        return {
            "stream": self.stream.state(),
            "kl_coefficient": self.kl_control.coefficient,
            "lr_scale": self.lr_scale,
            "clip_scale": self.clip_scale,
            "version": self.policy.version,
            **({"ahead": self._ahead.record()} if self._ahead is not None else {}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.stream.restore(state["stream"])
        self.kl_control.coefficient = float(state["kl_coefficient"])
        self.lr_scale, self.clip_scale = float(state["lr_scale"]), float(state["clip_scale"])
        self.policy.set_version(int(state["version"]))
        self.policy.learner.version = int(state["version"])
        self._ahead = RolloutBatch.read(state["ahead"]) if "ahead" in state else None

    # -- one step ---------------------------------------------------------------------------

    async def step(
        self, step: int, on_episode: Callable[[Trajectory], None] | None = None, tick: Callable[[], None] | None = None
    ) -> tuple[dict[str, float], list[Trajectory]]:
        """One rollout and its updates; metrics and the episodes."""
        if self.settings.overlap:
            return await self._overlapped(step, on_episode, tick)
        gathered = await self._gathered(step, on_episode)
        return self._learn(step, gathered, tick), gathered.episodes

    async def _overlapped(
        self, step: int, on_episode: Callable[[Trajectory], None] | None, tick: Callable[[], None] | None
    ) -> tuple[dict[str, float], list[Trajectory]]:
        """The updates of one batch and the rollout of the next, both from the weights as they are now."""
        begun, gathered = time.perf_counter(), self._ahead
        if gathered is None or gathered.step != step:
            await self.policy.refresh()
            gathered = self._measured(await self._gathered(step, on_episode))
        self._ahead, coming = None, None
        await self.policy.refresh()
        turns = [turn for episode in gathered.episodes for turn in episode.turns]
        ages = [float(self.policy.version - turn.policy_version) for turn in turns]
        if step + 1 < self.settings.steps:
            coming = asyncio.create_task(self._gathered(step + 1, on_episode))
        try:
            metrics = await asyncio.to_thread(self._learn_aside, step, gathered, tick)
        except BaseException:
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            raise
        if coming is not None:
            self._ahead = self._measured(await coming)
        metrics |= {"staleness/versions/mean": sum(ages) / len(ages)} if ages else {}
        metrics["timing/step"] = time.perf_counter() - begun
        return metrics, gathered.episodes

    def _learn_aside(self, step: int, gathered: RolloutBatch, tick: Callable[[], None] | None) -> dict[str, float]:
        with self.policy.aside():
            return self._learn(step, gathered, tick)

    async def _gathered(self, step: int, on_episode: Callable[[Trajectory], None] | None) -> RolloutBatch:
        begun = time.perf_counter()
        found = await self._gather(step, on_episode)
        return RolloutBatch(step, *found, self.stream.metrics(), time.perf_counter() - begun)

    def _measured(self, gathered: RolloutBatch) -> RolloutBatch:
        """With the engine's disagreement with the learner's own pass over the very weights that it sampled with, on
        the first group: the learner itself has moved on. A server's weights are its own affair, and its canary's."""
        decoder = self.policy.spoken
        samples, _ = self._samples(gathered.groups[:1])
        if decoder is None or not samples:
            return gathered
        torch.set_num_threads(self.policy.learner.threads)
        known = forward.logprobs(decoder, samples, self.policy.logprob_limits)
        return replace(gathered, metrics=gathered.metrics | _disagreement(samples, known))

    def _learn(self, step: int, gathered: RolloutBatch, tick: Callable[[], None] | None) -> dict[str, float]:
        """Credit and updates of one batch; metrics."""
        begun, groups, metrics = time.perf_counter(), gathered.groups, dict(gathered.metrics)
        rated, found = self._rate(groups, gathered.greedy)
        metrics |= found
        rated, valued = self._value(groups, rated)
        credit = self.estimator.function(rated, self.settings.credit)
        self.on_credit(groups, credit.advantages)
        metrics |= _credit_metrics(rated, credit)
        credited = time.perf_counter()
        if self.critic is not None and valued:
            metrics |= self._teach_critic(step, valued, credit, tick)
        taught = build_samples(
            groups, credit.advantages, self.settings.weighing, self.agent.sampling.temperature,
            self.agent.sampling.max_tokens,
        )  # fmt: skip
        learnt = self._teach_actor(step, taught, tick) if step >= self.settings.critic_warmup else {}
        if self.settings.overlap:  # the learner is ahead of the policy that sampled: that is no mismatch
            learnt = {name.replace("mismatch/", "staleness/"): value for name, value in learnt.items()}
        elif not learnt and groups:  # nothing to learn from is still something to check the engine by
            learnt = self._mismatch(groups)
        metrics |= learnt | gathered.drawn
        self._check_mismatch(step, metrics)
        metrics["timing/rollout"] = gathered.seconds
        metrics["timing/credit"] = credited - begun
        metrics["timing/update"] = time.perf_counter() - credited
        return metrics

    async def _gather(
        self, step: int, on_episode: Callable[[Trajectory], None] | None
    ) -> tuple[list[Trajectory], Scored, dict[str, float], dict[str, float]]:
        """Episodes, the groups that may teach, and the greedy rollouts' rewards where they are wanted."""
        settings = self.settings
        episodes: list[Trajectory] = []
        admitted: Scored = []
        greedy: dict[str, float] = {}
        seen = alive = 0
        for number in range(settings.admission.rounds if settings.admission.enable else 1):
            label = f"step-{step}/" if number == 0 else f"step-{step}+{number}/"
            tasks = self.stream.take(settings.tasks_per_step)
            planned = plan_attempts(tasks, settings.chains, settings.seed, label)
            rolled = await self.policy.roll_out(
                planned,
                self.make_environment,
                self.agent,
                on_done=on_episode,
                watcher=self.watcher,
                refresh=not settings.overlap,
            )
            episodes += rolled
            self._check_errors(step, rolled)
            self.stream.hear(rolled)
            groups = group_scored(rolled, self.estimator.min_group_size)
            if self.estimator.needs_greedy_rollout:
                greedy |= await self._greedy_rewards(tasks, label)
                groups = [group for group in groups if group[0].group in greedy]
            lively = [group for group in groups if has_signal(group, greedy)]
            seen += len(groups)
            alive += len(lively)
            admitted += lively if settings.admission.enable else groups
            if len(admitted) >= settings.tasks_per_step:
                break
        metrics = rollout_metrics(episodes)
        metrics["rollout/dead_groups"] = 1.0 - alive / seen if seen else 1.0
        if settings.admission.enable:
            metrics["rollout/rounds"] = float(number + 1)
        return episodes, admitted[: settings.tasks_per_step], greedy, metrics

    async def _greedy_rewards(self, tasks: Sequence[Task], label: str) -> dict[str, float]:
        """Reward of one greedy rollout of the whole agent, tools included, for every task."""
        agent = replace(self.agent, sampling=replace(self.agent.sampling, temperature=0.0))
        planned = plan_attempts(tasks, 1, self.settings.seed, label)
        episodes = await self.policy.roll_out(planned, self.make_environment, agent, refresh=not self.settings.overlap)
        return {episode.group: episode.reward for episode in episodes if episode.scored}

    # -- credit -----------------------------------------------------------------------------

    def _rate(self, groups: Scored, greedy: dict[str, float]) -> tuple[list[list[TokenRewards]], dict[str, float]]:
        """Rewards on tokens, less the KL penalty where it belongs to the reward."""
        rated = [[token_rewards(episode, self.settings.credit) for episode in group] for group in groups]
        if greedy:
            rated = [
                [replace(item, greedy_reward=greedy[group[0].group]) for item in items]
                for group, items in zip(groups, rated, strict=True)
            ]
        if not self.settings.kl_in_reward or not groups:
            return rated, {}
        samples, owners = self._samples(groups)
        found = forward.divergences(
            self.policy.decoder, self._reference(), samples, self.settings.kl_penalty, self.policy.limits
        )
        by_episode = _join(found, owners, sum(map(len, groups)))
        distances = iter(by_episode)
        coefficient = self.kl_control.coefficient
        charged = [
            [replace(item, rewards=item.rewards - coefficient * next(distances)) for item in items] for items in rated
        ]
        mean = float(np.mean([row.mean() for row in by_episode if len(row)]))
        self.kl_control.update(mean, len(by_episode))
        return charged, {"reward_kl/mean": mean, "reward_kl/coefficient": coefficient}

    def _value(
        self, groups: Scored, rated: list[list[TokenRewards]]
    ) -> tuple[list[list[TokenRewards]], list[list[list[ValuedSample]]]]:
        """The critic's values beside the rewards, and what it will learn from: group, episode, run."""
        if self.critic is None or not groups:
            return rated, []
        flat = [episode for group in groups for episode in group]
        runs = [unweighted_samples(episode, self.agent.sampling.temperature) for episode in flat]
        longer = [[*own[:-1], with_final_state(own[-1])] if own else [] for own in runs]
        values = iter(self.critic.values([sample for own in longer for sample in own]))
        lists = [[next(values) for _ in own] for own in longer]
        items = iter(zip(runs, lists, strict=True))
        result: list[list[TokenRewards]] = []
        valued: list[list[list[ValuedSample]]] = []
        for group in rated:
            result.append([])
            valued.append([])
            for item in group:
                own, found = next(items)
                last = float(found[-1][-1]) if found else 0.0
                kept = [value if number + 1 < len(found) else value[:-1] for number, value in enumerate(found)]
                joined = torch.cat(kept).double().numpy() if kept else np.zeros(0)
                result[-1].append(replace(item, values=joined, last_value=last))
                valued[-1].append([ValuedSample(sample, value) for sample, value in zip(own, kept, strict=True)])
        return result, valued

    # -- updates ----------------------------------------------------------------------------

    def _teach_critic(
        self, step: int, valued: list[list[list[ValuedSample]]], credit: Advantages, tick: Callable[[], None] | None
    ) -> dict[str, float]:
        assert self.critic is not None
        assert credit.returns is not None
        groups: list[list[ValuedSample]] = []
        for episodes, targets in zip(valued, credit.returns, strict=True):
            groups.append([])
            for runs, target in zip(episodes, targets, strict=True):
                used = 0
                for run in runs:
                    wanted = torch.from_numpy(target[used : used + len(run.values)]).float()
                    groups[-1].append(replace(run, returns=wanted))
                    used += len(run.values)
        settings = self.settings
        lr = learning_rate(step, settings.steps, settings.critic.lr, settings.schedule, 0, settings.min_lr_ratio)
        found: list[dict[str, float]] = []
        for epoch in range(settings.critic.epochs):
            for chunk in self._mini_batches(step, epoch, len(groups), settings.critic_mini_batch, "critic"):
                found.append(self.critic.update([item for place in chunk for item in groups[place]], lr, tick))
        return _mean_of([values for values in found if values])

    def _teach_actor(
        self, step: int, taught: list[list[WeightedTrajectory]], tick: Callable[[], None] | None
    ) -> dict[str, float]:
        """All epochs and mini-batches of a step; empty when no token teaches anything."""
        settings = self.settings
        objective = replace(
            settings.objective,
            clip_low=settings.objective.clip_low * self.clip_scale,
            clip_high=settings.objective.clip_high * self.clip_scale,
        )
        keep_all = bool(objective.entropy_coeff or objective.kl_coeff)
        rate_now = learning_rate(
            step, settings.steps, settings.lr, settings.schedule, settings.warmup, settings.min_lr_ratio
        )
        if settings.importance_cap > 0:
            taught = self._corrected(taught)
        found: list[dict[str, float]] = []
        for epoch in range(settings.epochs):
            for chunk in self._mini_batches(step, epoch, len(taught), settings.mini_batch, "actor"):
                samples, denominator = collate((one for place in chunk for one in taught[place]), keep_all)
                if samples:
                    lr = rate_now * self.lr_scale
                    found.append(self.policy.update(samples, denominator, objective, lr, tick))
        if not found:
            return {}
        # Only before the first update are learner and engine the same policy.
        mismatch = {key: value for key, value in found[0].items() if key.startswith("mismatch/")}
        return _mean_of(found) | mismatch | {"actor/updates": float(len(found))}

    def _corrected(self, taught: list[list[WeightedTrajectory]]) -> list[list[WeightedTrajectory]]:
        """Old log-probs by the learner, and each token's weight for having been sampled by the engine."""
        samples = [sample for group in taught for one in group for sample in one.samples]
        known = iter(zip(samples, self.policy.learner.logprobs(samples, self.policy.logprob_limits), strict=True))

        def corrected(sample: Sample) -> Sample:
            same, old = next(known)
            assert same is sample
            engine = torch.from_numpy(sample.sampling_logprobs[sample.mask])
            weight = losses.truncated_importance(old, engine, self.settings.importance_cap)
            return replace(
                sample, old_logprobs=scatter(sample, old.numpy()), corrections=scatter(sample, weight.numpy())
            )

        return [
            [replace(one, samples=tuple(corrected(sample) for sample in one.samples)) for one in group]
            for group in taught
        ]

    def _mini_batches(self, step: int, epoch: int, count: int, size: int | None, who: str) -> list[list[int]]:
        """Groups by number, cut into mini-batches; shuffled when there is more than one."""
        order = list(range(count))
        if size is None or size >= count:
            return [order] if order else []
        random.Random(derive_seed("mini-batches", who, self.settings.seed, step, epoch)).shuffle(order)
        return [order[start : start + size] for start in range(0, count, size)]

    # -- checks -----------------------------------------------------------------------------

    def _samples(self, groups: Scored) -> tuple[list[Sample], list[int]]:
        """Bare samples of all episodes, and which episode each belongs to."""
        flat = [episode for group in groups for episode in group]
        pairs = [(s, i) for i, e in enumerate(flat) for s in unweighted_samples(e, self.agent.sampling.temperature)]
        return [sample for sample, _ in pairs], [owner for _, owner in pairs]

    def _mismatch(self, groups: Scored) -> dict[str, float]:
        """|engine - learner| log-probs of a step that brings no update."""
        samples, _ = self._samples(groups)
        return _disagreement(samples, self.policy.learner.logprobs(samples, self.policy.logprob_limits))

    def _reference(self) -> Decoder:
        assert self.policy.reference is not None
        return self.policy.reference

    def _check_mismatch(self, step: int, metrics: dict[str, float]) -> None:
        if metrics.get("mismatch/logprob/mean", 0.0) > self.settings.mismatch_limit:
            raise UserError(
                f"Step {step}: engine and learner disagree by {metrics['mismatch/logprob/mean']:.3g} "
                "a token on average; the engine is not running the policy being trained, so the run stops."
            )

    def _check_errors(self, step: int, episodes: Sequence[Trajectory]) -> None:
        failed = [e for e in episodes if not e.scored]
        if len(failed) > self.settings.error_budget * len(episodes):
            first = failed[0]
            raise UserError(
                f"Step {step}: {len(failed)} of {len(episodes)} episodes could not be scored "
                f"(first: {first.outcome}, {first.error}); the run stops rather than learn from the rest."
            )


def group_scored(episodes: Sequence[Trajectory], smallest: int = 2) -> Scored:
    """Scored episodes by group, in order. A group that failures left too small to compare is not used."""
    groups: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.scored:
            groups.setdefault(episode.group, []).append(episode)
    return [group for group in groups.values() if len(group) >= smallest]


def has_signal(group: Sequence[Trajectory], greedy: dict[str, float]) -> bool:
    """Whether a group's rewards differ, from each other or from its greedy rollout's."""
    rewards = {episode.reward for episode in group}
    if group[0].group in greedy:
        rewards.add(greedy[group[0].group])
    return len(group) == 1 or max(rewards) - min(rewards) > 1e-9


def _disagreement(samples: Sequence[Sample], known: Sequence[torch.Tensor]) -> dict[str, float]:
    """|engine - learner| log-probs of tokens that the learner has just looked at."""
    engine = np.concatenate([sample.sampling_logprobs[sample.mask] for sample in samples])
    difference = np.abs(engine - np.concatenate([values.numpy() for values in known]))
    return {"mismatch/logprob/mean": float(difference.mean()), "mismatch/logprob/max": float(difference.max())}


def _join(values: Sequence[torch.Tensor], owners: Sequence[int], count: int) -> list[np.ndarray[Any, Any]]:
    """Per-sample numbers joined per episode."""
    parts: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(count)]
    for value, owner in zip(values, owners, strict=True):
        parts[owner].append(value.double().numpy())
    return [np.concatenate(own) if own else np.zeros(0) for own in parts]


def _credit_metrics(rated: Sequence[Sequence[TokenRewards]], credit: Advantages) -> dict[str, float]:
    flat = [row for group in credit.advantages for row in group if len(row)]
    if not flat:
        return {}
    joined = np.concatenate(flat)
    found = {"advantage/mean": float(joined.mean()), "advantage/min": float(joined.min()),
             "advantage/max": float(joined.max())}  # fmt: skip
    if credit.returns is None:
        return found
    returns = np.concatenate([row for group in credit.returns for row in group])
    values = np.concatenate([item.values for group in rated for item in group if item.values is not None])
    asked = np.isfinite(returns)
    return found | {
        **summary_stats("critic/values", values[asked].tolist()),
        **summary_stats("critic/returns", returns[asked].tolist()),
        "critic/vf_explained_var": explained_variance(values[asked], returns[asked]),
    }


def _mean_of(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means over a step's updates; tokens are summed."""
    if not found:
        return {}
    return {
        key: sum(values[key] for values in found) / (1 if key == "actor/tokens" else len(found)) for key in found[0]
    }
