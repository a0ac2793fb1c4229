"""Where a training step's trajectories come from.

`RLTrainer` trains on whatever a `RolloutSource` gives it. There are three: `OnlineSource` plays episodes with the
policy, `logged_source` reads episodes that were collected before, `bandit_source` samples single replies to the
prompts of a log. `EpisodeSaver` writes some of the episodes with the advantages that their tokens were trained with.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from practicum.agent import Agent
from practicum.chat.console import EpisodeWatcher
from practicum.data import store
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.rollout import MakeEnvironment
from practicum.task import Task
from practicum.training.curriculum import (
    TaskStream,
    TrajectoryGroups,
    group_scored,
    has_signal,
)
from practicum.training.estimators import ESTIMATORS, num_sampled_tokens
from practicum.training.monitor.loggers import summary_stats
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Origin, Outcome, StopReason, Trajectory, Turn, plan_attempts
from practicum.utils.arrays import FloatArray


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
        more_tasks: Callable[[int], Sequence[Task]] | None = None,
        shuffle_seed: int | None = None,
    ) -> None:
        """`watcher` is shown the first episode of every rollout as it happens; the others: see `TaskStream`."""
        self.policy = policy
        self.make_environment = make_environment
        self.agent = agent
        self.settings = settings
        self.watcher = watcher
        self.estimator = ESTIMATORS[settings.adv_estimator]
        self.stream = TaskStream(tasks, settings.curriculum, settings.train_batch_size, shuffle_seed, more_tasks)

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
        metrics["rollout/groups_trained"] = float(min(len(accepted), settings.train_batch_size))
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


TOP, GROUPS = "top_episodes", "groups"
ADVANTAGES = "practicum advantages 1"

Group = Sequence[Trajectory]
EpisodeKey = tuple[str, str, int, int]


class EpisodeSaver:
    """Writes a run's episodes; `set_advantages` comes before a step's episodes are saved, `clear` after it."""

    def __init__(self, folder: Path, estimator: str) -> None:
        self.folder, self.estimator = folder, estimator
        self._groups: Sequence[Group] = ()
        self._advantages: dict[EpisodeKey, FloatArray] = {}

    def set_advantages(self, groups: Sequence[Group], advantages: Sequence[Sequence[FloatArray]]) -> None:
        """The groups of a step and their advantages per token."""
        self._groups = groups
        self._advantages = {
            _key(episode): row
            for group, rows in zip(groups, advantages, strict=True)
            for episode, row in zip(group, rows, strict=True)
        }

    def clear(self) -> None:
        """Release the groups of the step."""
        self._groups, self._advantages = (), {}

    def save_group(self, step: int) -> None:
        """Save the first group of a step whose number is a power of two: about a dozen groups in a long run."""
        if self._groups and step & (step - 1) == 0:
            for episode in self._groups[0]:
                self._write(self.folder / GROUPS / f"step_{step}", episode)

    def save_top(self, step: int, new: Group, top: Collection[tuple[int, str, int]]) -> None:
        """Save the new episodes among those of the highest reward, and delete all but `top` (step, task, attempt)."""
        folder = self.folder / TOP
        for episode in new:
            self._write(folder / f"step_{step}", episode)
        paths = {store.episode_path(folder / f"step_{at}", task, attempt) for at, task, attempt in top}
        for path in folder.glob("step_*/*.jsonl"):
            if path not in paths:
                path.unlink()
                advantages_path(path).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other episodes are still in it
                    path.parent.rmdir()

    def _write(self, folder: Path, episode: Trajectory) -> None:
        row = self._advantages.get(_key(episode))
        if row is not None:  # before the episode: a reader of that finds these
            path = advantages_path(store.episode_path(folder, episode.task.id, episode.attempt))
            write_atomic(path, _encoded(row, self.estimator))
        store.write_episode(folder, episode)


def advantages_path(episode: Path) -> Path:
    """The path of the advantages of an episode's file."""
    return episode.with_name(episode.name.removesuffix(".jsonl") + ".advantages.json")


def _key(episode: Trajectory) -> EpisodeKey:
    """Identifies an episode of a step, whether or not it was read back from a checkpoint."""
    return episode.group, episode.task.id, episode.attempt, episode.seeds.sampling


def _encoded(row: FloatArray, estimator: str) -> bytes:
    # In the learner's precision; NaN stops the run, and its record must not hide why.
    values = [float(value) if np.isfinite(value) else None for value in row.astype(np.float32)]
    encoded: Any = values[0] if values and len(set(values)) == 1 else values
    record = {"format": ADVANTAGES, "estimator": estimator, "advantages": encoded}
    return (json.dumps(record, allow_nan=False) + "\n").encode()


OnEpisode = Callable[[Trajectory], None]


class RolloutSource(Protocol):
    """Gives grouped and scored trajectories, one batch per training step."""

    agent: Agent
    """Its sampling settings are those that trajectories were sampled with, unless a batch says otherwise."""
    from_engine: bool
    """Whether the trajectories' log-probs are those of the engine at the weights being trained.

    Then their difference from the learner's log-probs is an engine mismatch, and is measured at every step.
    """
    metric_names: Mapping[str, str]
    """Names for what the learner measures against the sampling log-probs, where these are not the engine's."""

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        """The batch of a step; `on_episode` is called with each episode that was played for it."""
        ...

    def state(self) -> dict[str, Any]:
        """What the next batch depends on besides the weights, as plain JSON."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; other keys than those that `state` gave are ignored."""
        ...


def check_error_budget(step: int, episodes: Sequence[Trajectory], budget: float) -> None:
    """Raise when more than a share of `budget` of the episodes could not be scored."""
    failed = [episode for episode in episodes if not episode.scored]
    if len(failed) > budget * len(episodes):
        first = failed[0]
        raise UserError(
            f"Step {step}: {len(failed)} of {len(episodes)} episodes could not be scored "
            f"(first: {first.outcome}, {first.error}); the run stops rather than learn from the rest."
        )


def repetition(ids: Sequence[int], n: int = 4) -> float:
    """Return the share of a reply's n-grams that occurred in it before: 0 when all differ, near 1 in a loop."""
    count = len(ids) - n + 1
    return 1.0 - len(set(zip(*(ids[start:] for start in range(n)), strict=False))) / count if count > 0 else 0.0


def rollout_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of rewards, success, lengths, tool calls and unscored outcomes."""
    scored = [e for e in episodes if e.scored]
    metrics = {"rollout/episodes": float(len(episodes)), **summary_stats("reward", [e.reward for e in scored])}
    if scored:
        turns = sum(len(e.turns) for e in scored)
        replies = [_reply_ids(turn) for e in scored for turn in e.turns]
        lengths = [float(num_sampled_tokens(e)) for e in scored]
        num_cut = sum(t.stop_reason in (StopReason.LENGTH, StopReason.CONTEXT) for e in scored for t in e.turns)
        metrics |= {
            "success/mean": sum(e.outcome is Outcome.SUCCESS for e in scored) / len(scored),
            "rollout/turns/mean": turns / len(scored),
            "rollout/invalid_replies": sum(e.invalid_replies for e in scored) / turns,
            "rollout/tool_calls/mean": sum(len(t.action.calls) for e in scored for t in e.turns) / len(scored),
            "rollout/truncated": sum(e.outcome is Outcome.TRUNCATED for e in scored) / len(scored),
            "rollout/length_clipped": num_cut / turns,
            "rollout/repetition": sum(map(repetition, replies)) / turns,
            "rollout/groups": float(len({e.group for e in scored})),
            **summary_stats("response_length", lengths),
        }
        environments = sorted({e.task.environment for e in scored})
        for name in environments if len(environments) > 1 else ():
            own = [e for e in scored if e.task.environment == name]
            metrics |= {
                f"reward/{name}/mean": sum(e.reward for e in own) / len(own),
                f"success/{name}/mean": sum(e.outcome is Outcome.SUCCESS for e in own) / len(own),
            }
        for name in sorted({component for e in scored for component in e.components}):
            metrics |= summary_stats(f"reward_part/{name}", [e.components.get(name, 0.0) for e in scored])
    for outcome in Outcome:
        if not outcome.scored:
            metrics[f"outcome/{outcome.value}"] = float(sum(e.outcome is outcome for e in episodes))
    return metrics


def _reply_ids(turn: Turn) -> tuple[int, ...]:
    sampled = [span.ids for span in turn.spans if span.origin is Origin.SAMPLED]
    return sampled[0] if len(sampled) == 1 else tuple(itertools.chain.from_iterable(sampled))
