"""Practice: roll out, compare within groups, update, again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from practicum.agent import Agent
from practicum.algorithms import objectives
from practicum.errors import UserError, nearest
from practicum.metrics import spread
from practicum.rollout import MakeEnvironment, attempts
from practicum.task import Task
from practicum.training.apprentice import Apprentice
from practicum.training.estimators import ESTIMATORS, EstimatorSettings, Groups, sampled_count
from practicum.training.learner import Objective, OptimizerSettings
from practicum.training.samples import practice_samples
from practicum.training.schedule import learning_rate
from practicum.trajectory import Outcome, Trajectory


@dataclass(frozen=True)
class RLSettings:
    """How to practise. `mismatch_limit`: the mean |engine - learner| log-prob that stops the run."""

    steps: int = 50
    tasks_per_step: int = 16
    chains: int = 8
    estimator: str = "grpo"
    credit: EstimatorSettings = field(default_factory=EstimatorSettings)
    aggregation: str = "token-mean"
    lr: float = 3e-4
    warmup: int = 5
    schedule: str = "constant"
    objective: Objective = field(default_factory=Objective)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    error_budget: float = 0.5
    mismatch_limit: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise UserError(f"Unknown advantage estimator '{self.estimator}'.{nearest(self.estimator, ESTIMATORS)}")
        if self.tasks_per_step < 1 or self.steps < 1:
            raise UserError("data.train_batch_size and trainer.total_training_steps must be at least 1.")
        learning_rate(self.warmup, self.steps, self.lr, self.schedule)  # a misspelt schedule is an error now, not later
        objectives.token_weights([1], self.aggregation)
        needed = ESTIMATORS[self.estimator].smallest_group
        if self.chains < needed:
            raise UserError(
                f"{self.estimator} compares the chains of one task: agent.num_chains must be at least {needed}."
            )


class Practice:
    """The RL loop over a list of tasks that is walked in order, `tasks_per_step` at a time."""

    def __init__(
        self,
        apprentice: Apprentice,
        tasks: Sequence[Task],
        make_environment: MakeEnvironment,
        agent: Agent,
        settings: RLSettings,
    ) -> None:
        if agent.sampling.top_k or agent.sampling.top_p < 1:
            raise UserError("Training samples from the whole distribution: leave top_k at 0 and top_p at 1.")
        if agent.sampling.temperature <= 0:
            raise UserError("Training needs a temperature above 0: greedy chains are all alike.")
        if len(tasks) < settings.tasks_per_step:
            raise UserError(
                f"{len(tasks)} training tasks are fewer than the {settings.tasks_per_step} of one step; "
                "lower data.train_batch_size."
            )
        self.apprentice = apprentice
        self.tasks = tasks
        self.make_environment = make_environment
        self.agent = agent
        self.settings = settings
        apprentice.start_stage(settings.optimizer)

    def tasks_of(self, step: int) -> list[Task]:
        size = self.settings.tasks_per_step
        return [self.tasks[(step * size + i) % len(self.tasks)] for i in range(size)]

    async def step(
        self, step: int, on_episode: Callable[[Trajectory], None] | None = None, tick: Callable[[], None] | None = None
    ) -> tuple[dict[str, float], list[Trajectory]]:
        """One rollout and one update; metrics and the episodes."""
        settings = self.settings
        begun = time.perf_counter()
        planned = attempts(self.tasks_of(step), settings.chains, settings.seed, f"step-{step}/")
        episodes = await self.apprentice.roll_out(planned, self.make_environment, self.agent, on_done=on_episode)
        rolled = time.perf_counter()
        metrics = rollout_metrics(episodes)
        self._check_errors(step, episodes)
        estimator = ESTIMATORS[settings.estimator]
        groups = group_scored(episodes, estimator.smallest_group)
        greedy: dict[str, float] = {}
        if estimator.greedy:
            greedy = await self._greedy_rewards(step)
            groups = [group for group in groups if group[0].group in greedy]
        advantages = estimator.function(groups, settings.credit, greedy)
        samples, denominator = practice_samples(
            groups,
            advantages,
            settings.aggregation,
            self.agent.sampling.temperature,
            self.agent.sampling.max_tokens,
            keep_all=bool(settings.objective.entropy_coeff),
        )
        dead = sum(not any(np.any(row) for row in rows) for rows in advantages)
        metrics["rollout/dead_groups"] = dead / len(groups) if groups else 1.0
        if samples:
            lr = learning_rate(step, settings.steps, settings.lr, settings.schedule, settings.warmup)
            metrics |= self.apprentice.update(samples, denominator, settings.objective, lr, tick)
        elif groups:  # nothing to learn from is still something to check the engine by
            metrics |= self._mismatch(groups)
        if metrics.get("mismatch/logprob/mean", 0.0) > settings.mismatch_limit:
            raise UserError(
                f"Step {step}: engine and learner disagree by {metrics['mismatch/logprob/mean']:.3g} "
                "a token on average; "
                "the engine is not running the policy being trained, so the run stops."
            )
        metrics["timing/rollout"] = rolled - begun
        metrics["timing/update"] = time.perf_counter() - rolled
        return metrics, episodes

    def _mismatch(self, groups: Groups) -> dict[str, float]:
        """|engine - learner| log-probs of a step that brings no update."""
        zeros = [[np.zeros(sampled_count(episode)) for episode in group] for group in groups]
        samples, _ = practice_samples(groups, zeros, "token-mean", self.agent.sampling.temperature, keep_all=True)
        engine = np.concatenate([sample.sampling_logprobs[sample.mask] for sample in samples])
        learner = np.concatenate([values.numpy() for values in self.apprentice.learner.logprobs(samples)])
        difference = np.abs(engine - learner)
        return {"mismatch/logprob/mean": float(difference.mean()), "mismatch/logprob/max": float(difference.max())}

    async def _greedy_rewards(self, step: int) -> dict[str, float]:
        """Reward of one greedy rollout of the whole agent, tools included, for every task of the step."""
        sampling = replace(self.agent.sampling, temperature=0.0)
        planned = attempts(self.tasks_of(step), 1, self.settings.seed, f"step-{step}/")
        agent = replace(self.agent, sampling=sampling)
        episodes = await self.apprentice.roll_out(planned, self.make_environment, agent)
        return {episode.group: episode.reward for episode in episodes if episode.scored}

    def _check_errors(self, step: int, episodes: Sequence[Trajectory]) -> None:
        failed = [e for e in episodes if not e.scored]
        if len(failed) > self.settings.error_budget * len(episodes):
            first = failed[0]
            raise UserError(
                f"Step {step}: {len(failed)} of {len(episodes)} episodes could not be scored "
                f"(first: {first.outcome}, {first.error}); the run stops rather than learn from the rest."
            )


def group_scored(episodes: Sequence[Trajectory], smallest: int = 2) -> list[list[Trajectory]]:
    """Scored episodes by group, in order. A group that failures left too small to compare is not used."""
    groups: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.scored:
            groups.setdefault(episode.group, []).append(episode)
    return [group for group in groups.values() if len(group) >= smallest]


def rollout_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """What happened in a batch of episodes."""
    scored = [e for e in episodes if e.scored]
    metrics = spread("reward", [e.reward for e in scored])
    if scored:
        turns = sum(len(e.turns) for e in scored)
        sampled = [sum(sum(run.sampled) for run in e.sequences()) for e in scored]
        metrics |= {
            "success/mean": sum(e.outcome is Outcome.SUCCESS for e in scored) / len(scored),
            "rollout/turns/mean": turns / len(scored),
            "rollout/invalid_replies": sum(e.invalid_replies for e in scored) / turns,
            "rollout/tool_calls/mean": sum(len(t.action.calls) for e in scored for t in e.turns) / len(scored),
            "rollout/truncated": sum(e.outcome is Outcome.TRUNCATED for e in scored) / len(scored),
            **spread("response_length", [float(n) for n in sampled]),
        }
        for name in sorted({part for e in scored for part in e.parts}):
            metrics |= spread(f"reward_part/{name}", [e.parts.get(name, 0.0) for e in scored])
    for outcome in Outcome:
        if not outcome.scored:
            metrics[f"outcome/{outcome.value}"] = float(sum(e.outcome is outcome for e in episodes))
    return metrics
