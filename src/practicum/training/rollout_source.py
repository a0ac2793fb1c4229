"""Where a training step's trajectories come from.

`RLTrainer` trains on whatever a `RolloutSource` gives it. There are three: `OnlineSource` plays episodes with the
policy, `logged_source` reads episodes that were collected before, `bandit_source` samples single replies to the
prompts of a log. `TaskStream` draws the tasks: one after another, round and round, or from easy to hard as the success
rate rises (a curriculum). A group is trained on when it is scored, large enough to compare, and its rewards differ.
`EpisodeSaver` writes some of the episodes with the advantages that their tokens were trained with.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from practicum.agent import Agent
from practicum.chat.console import EpisodeWatcher
from practicum.data import store
from practicum.data.run_folder import ADVANTAGES, GROUPS, TOP, advantages_path, write_atomic
from practicum.errors import UserError
from practicum.resources import RunResources
from practicum.rollout import MakeEnvironment
from practicum.task import Task
from practicum.training.estimators import (
    ESTIMATORS,
    EstimatorSettings,
    num_sampled_tokens,
    role_turn_rewards,
    turn_lengths,
)
from practicum.training.group_reward import find_group_reward
from practicum.training.monitor.loggers import summary_stats
from practicum.training.rollout_batch import RolloutBatch, TrajectoryGroups
from practicum.training.settings import CurriculumSettings, RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import (
    EXTERNAL_AGENT,
    Origin,
    Outcome,
    StopReason,
    Trajectory,
    Turn,
    derive_seed,
    is_trained,
    plan_attempts,
)
from practicum.utils.arrays import FloatArray

MIN_REWARD_DIFFERENCE = 1e-9


def group_scored(episodes: Sequence[Trajectory], min_size: int = 2) -> TrajectoryGroups:
    """Scored episodes by group, in order; a group that failures left with fewer than `min_size` is dropped."""
    groups: dict[str, list[Trajectory]] = {}
    for episode in episodes:
        if episode.scored:
            groups.setdefault(episode.group, []).append(episode)
    return [group for group in groups.values() if len(group) >= min_size]


def has_signal(
    group: Sequence[Trajectory], greedy_rewards: Mapping[str, float], estimation: EstimatorSettings | None = None
) -> bool:
    """Whether a group's rewards differ, from each other or from the reward of its greedy rollout.

    Where the roles have rewards of their own (`estimation.role_credit`), those of one trained role have to differ.
    """
    if estimation is not None and estimation.role_credit == "own":
        totals = role_totals(group, estimation.train_roles)
        return len(group) == 1 or any(max(own) - min(own) > MIN_REWARD_DIFFERENCE for own in totals.values())
    rewards = {episode.reward for episode in group}
    if group[0].group in greedy_rewards:
        rewards.add(greedy_rewards[group[0].group])
    return len(group) == 1 or max(rewards) - min(rewards) > MIN_REWARD_DIFFERENCE


def role_totals(group: Sequence[Trajectory], roles: Collection[str] | None) -> dict[str, list[float]]:
    """The rewards of each trained role in the episodes of a group in which it acted."""
    totals: dict[str, list[float]] = {}
    for episode in group:
        for role in sorted({turn.role for turn in episode.turns if turn.num_sampled and is_trained(turn, roles)}):
            totals.setdefault(role, []).append(sum(role_turn_rewards(episode, role)))
    return totals


class TaskStream:
    """Draws tasks from a list; no task comes twice in one draw.

    The tasks of a file are drawn in an order of their own in every epoch (`shuffle_seed`), and the rest of an epoch
    that is smaller than a draw is left out. Generated tasks come in order; with `more`, which returns a longer list
    that begins with the same tasks, they do not repeat as long as it has new ones.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        curriculum: CurriculumSettings | None = None,
        draw: int = 1,
        shuffle_seed: int | None = None,
        more: Callable[[int], Sequence[Task]] | None = None,
    ) -> None:
        self.curriculum, self.shuffle_seed, self.more = curriculum, shuffle_seed, more
        self.levels: list[list[Task]] = []
        self._set_tasks(tasks)
        if len(self.levels[0]) < draw:
            easiest = "" if curriculum is None else " of the easiest level"
            raise UserError(
                f"{len(self.levels[0])} training tasks{easiest} are fewer than the {draw} of one step; "
                "lower data.train_batch_size."
            )
        self.open = 1
        self.cursors = [0] * len(self.levels)
        window = curriculum.window if curriculum is not None else 1
        self.recent: list[deque[int]] = [deque(maxlen=window) for _ in self.levels]

    def _set_tasks(self, tasks: Sequence[Task]) -> None:
        self.num_tasks, self._ids = len(tasks), [task.id for task in tasks]
        levels = [list(tasks)] if self.curriculum is None else _by_level(tasks, self.curriculum.field)
        if self.levels and len(levels) != len(self.levels):
            raise UserError(
                f"{len(tasks)} generated tasks have {len(levels)} levels, fewer tasks had {len(self.levels)}: "
                "name another data.curriculum.field, or give the tasks as data.train_files."
            )
        self.levels = levels
        self._level_of = {task.id: index for index, level in enumerate(self.levels) for task in level}

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks, from the open levels in turn; fewer where these have fewer tasks."""
        num_per_level = [0] * self.open
        left = [len(level) for level in self.levels[: self.open]]
        for draw in itertools.count():
            if sum(num_per_level) == count or not any(left):
                break
            level = draw % self.open
            if left[level]:
                left[level] -= 1
                num_per_level[level] += 1
        drawn = [iter(self._draw(level, count)) for level, count in enumerate(num_per_level)]
        return [task for row in itertools.zip_longest(*drawn) for task in row if task is not None]

    def _draw(self, level: int, count: int) -> list[Task]:
        """The next tasks of a level, at most as many as it has."""
        start = self.cursors[level]
        self._extend(level, start + count)
        tasks = self.levels[level]
        if self.shuffle_seed is not None and start % len(tasks) + count > len(tasks):
            start += len(tasks) - start % len(tasks)  # the next epoch
        self.cursors[level] = start + count
        if self.shuffle_seed is None:
            return [tasks[index % len(tasks)] for index in range(start, start + count)]
        order = list(range(len(tasks)))
        random.Random(derive_seed("shuffle", self.shuffle_seed, level, start // len(tasks))).shuffle(order)
        return [tasks[order[index % len(tasks)]] for index in range(start, start + count)]

    def _extend(self, level: int, count: int) -> None:
        """Generate more tasks until a level has `count`, or a longer list brings it none: then they come again."""
        while self.more is not None and len(self.levels[level]) < count:
            tasks, before = self.more(2 * self.num_tasks), len(self.levels[level])
            if len(tasks) > self.num_tasks and [task.id for task in tasks[: self.num_tasks]] == self._ids:
                self._set_tasks(tasks)
            if len(self.levels[level]) == before:
                self.more = None

    def update(self, episodes: Sequence[Trajectory]) -> None:
        """Count the successes of scored episodes; open the next level once the hardest open one is mastered."""
        if self.curriculum is None:
            return
        for episode in episodes:
            if episode.scored:
                self.recent[self._level_of[episode.task.id]].append(int(episode.outcome is Outcome.SUCCESS))
        recent = self.recent[self.open - 1]
        mastered = len(recent) == recent.maxlen and sum(recent) >= self.curriculum.threshold * len(recent)
        if mastered and self.open < len(self.levels):
            self.open += 1

    def metrics(self) -> dict[str, float]:
        return {} if self.curriculum is None else {"curriculum/open_levels": float(self.open)}

    def state(self) -> dict[str, Any]:
        return {"open": self.open, "cursors": list(self.cursors), "recent": [list(recent) for recent in self.recent]}

    def restore(self, state: dict[str, Any]) -> None:
        self.open, self.cursors = int(state["open"]), [int(n) for n in state["cursors"]]
        for recent, values in zip(self.recent, state["recent"], strict=True):
            recent.clear()
            recent.extend(values)


def _by_level(tasks: Sequence[Task], field: str) -> list[list[Task]]:
    """Tasks by the rank of their field's value among those of their own environment.

    So the levels of several environments, whatever their values are, are opened together. An environment whose tasks
    have no such field is open from the start, unless it is the only one.
    """
    if not any(field in task.fields for task in tasks):
        raise _no_field(field, tasks[0])
    by_environment: dict[str, dict[Any, list[Task]]] = {}
    without_field = {task.environment for task in tasks} - {task.environment for task in tasks if field in task.fields}
    for task in tasks:
        if field not in task.fields and task.environment not in without_field:
            raise _no_field(field, task)
        by_environment.setdefault(task.environment, {}).setdefault(task.fields.get(field), []).append(task)
    levels: list[list[Task]] = []
    for by_value in by_environment.values():
        try:
            ranked = sorted(by_value)
        except TypeError:
            raise UserError(f"data.curriculum.field={field}: its values cannot be put in order.") from None
        for rank, value in enumerate(ranked):
            levels.extend([] for _ in range(rank + 1 - len(levels)))
            levels[rank] += by_value[value]
    position = {task.id: index for index, task in enumerate(tasks)}
    return [sorted(level, key=lambda task: position[task.id]) for level in levels]


def _no_field(field: str, task: Task) -> UserError:
    return UserError(
        f"data.curriculum.field={field}: task '{task.id}' has no such field; name one that all tasks have."
    )


AttemptKey = tuple[str, int]
"""The group of an episode and the number of the attempt."""


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
        resources: RunResources | None = None,
    ) -> None:
        """`watcher` is shown the first episode of every rollout as it happens; `resources` are what all episodes of the
        run share; the others: see `TaskStream`."""
        self.policy = policy
        self.make_environment = make_environment
        self.agent = agent
        self.settings = settings
        self.watcher = watcher
        self.resources = resources
        self.estimator = ESTIMATORS[settings.adv_estimator]
        name, weight = settings.group_reward, settings.group_reward_weight
        self.group_reward = None if name is None else find_group_reward(name, weight)
        self.stream = TaskStream(tasks, settings.curriculum, settings.train_batch_size, shuffle_seed, more_tasks)
        self.finished: dict[AttemptKey, Trajectory] = {}
        """Episodes that were run before, by group and attempt: they are not run again."""

    def state(self) -> dict[str, Any]:
        return {"stream": self.stream.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.stream.restore(state["stream"])

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        """Episodes of a step's tasks; with the group filter, of more tasks until enough groups have signal.

        What they write to shared resources is visible from the next step on.
        """
        started, settings = time.perf_counter(), self.settings
        episodes: list[Trajectory] = []
        accepted: TrajectoryGroups = []
        greedy_rewards: dict[str, float] = {}
        num_groups = num_with_signal = 0
        for round_index in range(settings.filter_groups.max_num_gen_batches if settings.filter_groups.enable else 1):
            label = f"step-{step}/" if round_index == 0 else f"step-{step}+{round_index}/"
            tasks = self.stream.take(settings.train_batch_size)
            played = await self._roll_out(tasks, settings.num_chains, label, self.agent, on_episode, self.watcher)
            check_error_budget(step, played, settings.error_budget)
            self.stream.update(played)
            groups = group_scored(played, self.estimator.min_group_size)
            if self.group_reward is not None:
                groups, played = self.group_reward.apply(groups, played)
            episodes += played
            if self.estimator.needs_greedy_rollout:
                greedy_rewards |= await self.greedy_rewards(tasks, label)
                groups = [group for group in groups if group[0].group in greedy_rewards]
            with_signal = [group for group in groups if has_signal(group, greedy_rewards, settings.estimation)]
            num_groups += len(groups)
            num_with_signal += len(with_signal)
            accepted += with_signal if settings.filter_groups.enable else groups
            if len(accepted) >= settings.train_batch_size:
                break
        if self.resources is not None:
            self.resources.commit()
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
            time.perf_counter() - started,
        )

    async def greedy_rewards(self, tasks: Sequence[Task], label: str) -> dict[str, float]:
        """By group: the reward of one greedy rollout of the whole agent, tools included."""
        episodes = await self._roll_out(tasks, 1, label, greedy_agent(self.agent, self.policy.role_engines))
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
        planned = plan_attempts(tasks, chains, self.settings.seed, label)
        known = self.finished if agent is self.agent else {}
        missing = [attempt for attempt in planned if (attempt.group, attempt.number) not in known]
        played = await self.policy.roll_out(
            missing,
            self.make_environment,
            agent,
            on_done=on_episode,
            watcher=watcher,
            # While an update runs beside it the weights change; the trainer gave the engine its copy beforehand.
            refresh=not self.settings.updates_during_rollouts,
            resources=self.resources,
        )
        new = iter(played)
        keys = [(attempt.group, attempt.number) for attempt in planned]
        return [known.pop(key) if key in known else next(new) for key in keys]


def greedy_agent(agent: Agent, untrained: Collection[str]) -> Agent:
    """The agent of greedy rollouts; roles with an untrained model act as they do in training."""
    roles = {name: role if name in untrained else replace(role, temperature=None) for name, role in agent.roles.items()}
    return replace(agent, sampling=replace(agent.sampling, temperature=0.0), roles=roles)


Group = Sequence[Trajectory]
EpisodeKey = tuple[str, str, int, int, tuple[str, ...]]


class EpisodeSaver:
    """Writes a run's episodes; `set_advantages` comes before a step's episodes are saved, `clear` after it."""

    def __init__(self, folder: Path, estimator: str, roles: Collection[str] | None = None) -> None:
        """`roles` are the trained ones, None: all; the tokens of others have no advantage."""
        self.folder, self.estimator, self.roles = folder, estimator, roles
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
        """Save the first group of a step whose number is a power of two: about a dozen groups in a long run.

        Logged episodes of several policies may have the same attempt number; they are numbered anew.
        """
        if not self._groups or step & (step - 1) != 0:
            return
        group = self._groups[0]
        is_numbered = len({episode.attempt for episode in group}) == len(group)
        for index, episode in enumerate(group):
            attempt = episode.attempt if is_numbered else index
            self._write(self.folder / GROUPS / f"step_{step}", episode, attempt)

    def save_top(self, step: int, new: Group, top: Collection[tuple[int, str, int]]) -> None:
        """Save the new episodes among those of the highest reward, and delete all but `top` (step, task, attempt)."""
        folder = self.folder / TOP
        for episode in new:
            self._write(folder / f"step_{step}", episode, episode.attempt)
        paths = {store.episode_path(folder / f"step_{at}", task, attempt) for at, task, attempt in top}
        for path in folder.glob("step_*/*.jsonl"):
            if path not in paths:
                path.unlink()
                advantages_path(path).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # other episodes are still in it
                    path.parent.rmdir()

    def _write(self, folder: Path, episode: Trajectory, attempt: int) -> None:
        row = self._advantages.get(_key(episode))
        if row is not None:  # before the episode: a reader of that finds these
            path = advantages_path(store.episode_path(folder, episode.task.id, attempt))
            write_atomic(path, _encoded(_of_all_tokens(episode, row, self.roles), self.estimator))
        store.write_episode(folder, replace(episode, attempt=attempt))


def _key(episode: Trajectory) -> EpisodeKey:
    """Identifies an episode of a step, whether or not it was read back from a checkpoint. The replies are part of it:
    logged episodes of one task may come from several policies, each with an attempt 0 of the same seed."""
    replies = tuple(turn.reply for turn in episode.turns)
    return episode.group, episode.task.id, episode.attempt, episode.seeds.sampling, replies


def _of_all_tokens(episode: Trajectory, row: FloatArray, roles: Collection[str] | None) -> FloatArray:
    """Advantages of the trained tokens, put among those of all sampled tokens; NaN where a token is not trained."""
    if len(row) == num_sampled_tokens(episode):
        return row
    trained = np.repeat([is_trained(turn, roles) for turn in episode.turns], turn_lengths(episode))
    result = np.full(len(trained), np.nan)
    result[trained] = row
    return result


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
    """Return metrics of rewards, success, the environment's figures, lengths, tool calls and unscored outcomes."""
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
        external = [e for e in scored if EXTERNAL_AGENT in e.provenance]
        if external:
            metrics |= branch_metrics(external)
        environments = sorted({e.task.environment for e in scored})
        for name in environments if len(environments) > 1 else ():
            own = [e for e in scored if e.task.environment == name]
            metrics |= {
                f"reward/{name}/mean": sum(e.reward for e in own) / len(own),
                f"success/{name}/mean": sum(e.outcome is Outcome.SUCCESS for e in own) / len(own),
            }
        for name in sorted({component for e in scored for component in e.components}):
            metrics |= summary_stats(f"reward_part/{name}", [e.components.get(name, 0.0) for e in scored])
        figures = [episode.environment_figures for episode in scored]
        for name in sorted(set().union(*figures)):
            values = [own[name] for own in figures if name in own]
            metrics[f"figure/{name}/mean"] = sum(values) / len(values)
    for outcome in Outcome:
        if not outcome.scored:
            metrics[f"outcome/{outcome.value}"] = float(sum(e.outcome is outcome for e in episodes))
    return metrics


def branch_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """How often per episode agents' programs changed earlier messages or began anew, in all and by the reason."""
    reasons = Counter(
        turn.branch_reason.partition(" after turn ")[0].replace(" ", "_")
        for episode in episodes
        for turn in episode.turns
        if turn.branch_reason
    )
    by_reason = {f"rollout/branches/{reason}": count / len(episodes) for reason, count in sorted(reasons.items())}
    return {"rollout/branches/mean": reasons.total() / len(episodes), **by_reason}


def _reply_ids(turn: Turn) -> tuple[int, ...]:
    sampled = [span.ids for span in turn.spans if span.origin is Origin.SAMPLED]
    return sampled[0] if len(sampled) == 1 else tuple(itertools.chain.from_iterable(sampled))
