"""Trajectories that the policy plays itself: several attempts at each task of a step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from practicum.agent import Agent
from practicum.chat.console import EpisodeWatcher
from practicum.data.attempts import plan_attempts
from practicum.rollout import MakeEnvironment
from practicum.task import Task
from practicum.training.curriculum import TaskStream
from practicum.training.estimators import ESTIMATORS
from practicum.training.group_filter import TrajectoryGroups, group_scored, has_signal
from practicum.training.monitor.rollout_metrics import rollout_metrics
from practicum.training.rl_settings import RLSettings
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnEpisode, check_error_budget
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory


class OnlineSource:
    """Rolls out the policy on a stream of tasks, `settings.num_chains` attempts at each of a step's tasks."""

    from_engine = True
    metric_names: Mapping[str, str] = {}

    def __init__(
        self,
        policy: TrainablePolicy,
        tasks: Sequence[Task],
        make_environment: MakeEnvironment,
        agent: Agent,
        settings: RLSettings,
        watcher: EpisodeWatcher | None = None,
    ) -> None:
        """`watcher` is shown the first episode of every rollout as it happens."""
        self.policy = policy
        self.make_environment = make_environment
        self.agent = agent
        self.settings = settings
        self.watcher = watcher
        self.estimator = ESTIMATORS[settings.adv_estimator]
        self.stream = TaskStream(tasks, settings.curriculum, settings.train_batch_size)

    def state(self) -> dict[str, Any]:
        return {"stream": self.stream.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.stream.restore(state["stream"])

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        """Episodes of a step's tasks; with the group filter, of more tasks until enough groups have signal."""
        begun, settings = time.perf_counter(), self.settings
        episodes: list[Trajectory] = []
        accepted: TrajectoryGroups = []
        greedy_rewards: dict[str, float] = {}
        num_groups = num_with_signal = 0
        for round_index in range(settings.filter_groups.max_num_gen_batches if settings.filter_groups.enable else 1):
            label = f"step-{step}/" if round_index == 0 else f"step-{step}+{round_index}/"
            tasks = self.stream.take(settings.train_batch_size)
            played = await self._roll_out(tasks, settings.num_chains, label, self.agent, on_episode, self.watcher)
            episodes += played
            check_error_budget(step, played, settings.error_budget)
            self.stream.update(played)
            groups = group_scored(played, self.estimator.min_group_size)
            if self.estimator.needs_greedy_rollout:
                greedy_rewards |= await self._greedy_rewards(tasks, label)
                groups = [group for group in groups if group[0].group in greedy_rewards]
            with_signal = [group for group in groups if has_signal(group, greedy_rewards)]
            num_groups += len(groups)
            num_with_signal += len(with_signal)
            accepted += with_signal if settings.filter_groups.enable else groups
            if len(accepted) >= settings.train_batch_size:
                break
        metrics = rollout_metrics(episodes)
        metrics["rollout/dead_groups"] = 1.0 - num_with_signal / num_groups if num_groups else 1.0
        if settings.filter_groups.enable:
            metrics["rollout/rounds"] = float(round_index + 1)
        return RolloutBatch(
            step,
            episodes,
            accepted[: settings.train_batch_size],
            greedy_rewards,
            metrics,
            self.stream.metrics(),
            time.perf_counter() - begun,
        )

    async def _greedy_rewards(self, tasks: Sequence[Task], label: str) -> dict[str, float]:
        """By group: the reward of one greedy rollout of the whole agent, tools included."""
        greedy = replace(self.agent, sampling=replace(self.agent.sampling, temperature=0.0))
        episodes = await self._roll_out(tasks, 1, label, greedy)
        return {episode.group: episode.reward for episode in episodes if episode.scored}

    async def _roll_out(
        self,
        tasks: Sequence[Task],
        chains: int,
        label: str,
        agent: Agent,
        on_episode: OnEpisode | None = None,
        watcher: EpisodeWatcher | None = None,
    ) -> list[Trajectory]:
        return await self.policy.roll_out(
            plan_attempts(tasks, chains, self.settings.seed, label),
            self.make_environment,
            agent,
            on_done=on_episode,
            watcher=watcher,
            # Beside an update, the weights are in motion: whoever runs both has given them to the engine before.
            refresh=not self.settings.overlap,
        )
