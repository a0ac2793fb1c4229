"""Practice from a log: group-relative policy gradients over episodes that were played before.

Nothing is rolled out. The scored episodes of one task are a group, their logged rewards are compared as any
estimator compares those of chains, and every token's ratio is π/μ, where μ is the policy that the log says sampled
it. μ stays the same all through the run, so the clip is not the leash of one update but of the whole run: a token of
a good episode is raised until it is 1 + clip_high times as likely as it was when it was logged, one of a bad episode
is pushed down to 1 - clip_low of that and no further. That is the floor: failures do push, which imitation cannot do,
but the policy cannot run away from what the log can vouch for. The clip only stops the push; what momentum and other
episodes carry beyond it, the KL term to the start brings back, so neither goes without the other.
"""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from practicum.agent import Agent
from practicum.data.export import by_task, is_held_out, report_held_out
from practicum.data.jsonl import read_whole_episode
from practicum.errors import UserError
from practicum.models import loader
from practicum.rollout import MakeEnvironment
from practicum.task import Task
from practicum.training.estimators import ESTIMATORS
from practicum.training.monitor.metrics import summary_stats
from practicum.training.rl_trainer import RLSettings, RLTrainer, Scored, has_signal
from practicum.training.samples import WeightedTrajectory, unweighted_samples
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Origin, Outcome, Span, Trajectory
from practicum.utils.progress import Progress

METHODS = ("grpo", "bandit")
COMPARING = tuple(name for name, known in ESTIMATORS.items() if known.min_group_size > 1)
"""Estimators that need nothing but the rewards of one task's episodes."""
RENAMED = {
    "mismatch/logprob/mean": "offline/distance/mean",
    "mismatch/logprob/max": "offline/distance/max",
    "actor/pg_clipfrac": "offline/bounded",
}
"""What the learner measures against the sampling log-probs means something else where these are a log's."""


@dataclass(frozen=True)
class TrajectoryLog:
    """The scored episodes below a folder, in the order of their paths."""

    folder: Path
    episodes: tuple[Trajectory, ...]
    unscored: int

    @property
    def template(self) -> str | None:
        """The chat template that the episodes name."""
        named = self.episodes[0].provenance.get("template")
        return None if named is None else str(named)

    def check_tokens(self, policy: TrainablePolicy) -> None:
        """Ids of another vocabulary mean nothing to this model."""
        tokenizer, size = policy.loaded.tokenizer, policy.decoder.shape.vocabulary
        vocabulary = loader.tokenizer_hash(tokenizer)
        for episode in self.episodes:
            largest = max((i for turn in episode.turns for span in turn.spans for i in span.ids), default=0)
            if episode.provenance.get("tokenizer", vocabulary) != vocabulary or largest >= size:
                raise UserError(
                    f"Episode '{episode.task.id}' below '{self.folder}' holds ids of another tokenizer "
                    f"({episode.provenance.get('model', 'unknown')}), not of '{policy.loaded.source}'; "
                    "collect with the model that is to be trained."
                )


def read_trajectory_log(folder: Path) -> TrajectoryLog:
    """The episodes of training tasks below a folder, looked at field by field; those not scored teach nothing."""
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'; make one with `practicum collect`.")
    paths = sorted(folder.rglob("*__attempt_*.jsonl"))
    if not paths:
        raise UserError(f"There is no episode below '{folder}'; make some with `practicum collect`.")
    found, held_out = [], []
    with Progress("read", len(paths), "episodes") as progress:
        for path in paths:
            episode = read_whole_episode(path)
            if is_held_out(episode):
                held_out.append(episode.task.split)
            else:
                found.append(episode)
            progress.advance()
    report_held_out(folder, held_out, len(paths))
    episodes = tuple(episode for episode in found if episode.scored and any(turn.spans for turn in episode.turns))
    if not episodes:
        raise UserError(f"None of the {len(found)} episodes below '{folder}' was scored; collect some that are.")
    templates = sorted({str(episode.provenance.get("template")) for episode in episodes})
    if len(templates) > 1:
        raise UserError(
            f"The episodes below '{folder}' were rendered under different chat templates ({', '.join(templates)}); "
            "train on one kind."
        )
    return TrajectoryLog(folder, episodes, len(found) - len(episodes))


def signal_groups(log: TrajectoryLog, seed: int = 0) -> Scored:
    """A log's episodes by task, in an order drawn by the seed; a group whose rewards are all alike teaches nothing."""
    every = by_task(log.episodes)
    groups = [group for group in every if len(group) > 1 and has_signal(group, {})]
    if not groups:
        raise UserError(
            f"No task below '{log.folder}' ({len(every)} of them) has episodes of different reward, so there is "
            "nothing to compare; collect several attempts at tasks that are solved sometimes."
        )
    random.Random(f"offline/{seed}").shuffle(groups)
    return groups


class OfflineTrainer(RLTrainer):
    """The RL loop over a log's groups; a step takes the next `tasks_per_step` of them, round and round."""

    def __init__(
        self,
        policy: TrainablePolicy,
        groups: Scored,
        make_environment: MakeEnvironment,
        agent: Agent,
        settings: RLSettings,
        say: Callable[[str], None] = print,
    ) -> None:
        if settings.estimator not in COMPARING:
            raise UserError(
                f"A log is learnt from by comparing the episodes of one task, which {settings.estimator} does not; "
                f"set algorithm.adv_estimator to one of {', '.join(COMPARING)}."
            )
        if settings.objective.policy_loss == "cispo":
            raise UserError("cispo has no floor, and a log needs one; set policy_loss.loss_mode to vanilla or gspo.")
        if settings.objective.kl_coeff <= 0:
            raise UserError(
                "A policy that never plays must be held near its start: set actor_rollout_ref.actor.use_kl_loss=true "
                "and kl_loss_coef above 0 (0.1, say)."
            )
        super().__init__(policy, [group[0].task for group in groups], make_environment, agent, settings)
        self.groups = dict(zip((group[0].task for group in groups), self._completed(groups, say), strict=True))
        self.temperatures = {group[0].task: [self._heat(episode) for episode in group] for group in groups}
        self.log = fingerprint(groups)
        self._drawn: list[Task] = []

    def state(self) -> dict[str, Any]:
        return {**super().state(), "log": self.log}

    def restore(self, state: dict[str, Any]) -> None:
        check_same_log(state, self.log)
        super().restore(state)

    def _heat(self, episode: Trajectory) -> float:
        """The temperature that an episode's log-probs, its own or the start policy's, belong to."""
        if not knows_its_policy(episode):
            return self.agent.sampling.temperature
        return float(episode.provenance.get("temperature", self.agent.sampling.temperature))

    def _completed(self, groups: Scored, say: Callable[[str], None]) -> Scored:
        """Groups in which every sampled token has a log-prob: where the log has none, the start policy's stands in."""
        strangers = [episode for group in groups for episode in group if not knows_its_policy(episode)]
        if not strangers:
            return groups
        total = sum(map(len, groups))
        say(
            f"{len(strangers)} of {total} logged episodes lack the log-probs they were sampled with (an expert's, a "
            "greedy or a truncated policy's): the start policy stands in for theirs, so their ratios begin at 1."
        )
        temperature = self.agent.sampling.temperature
        runs = [unweighted_samples(episode, temperature) for episode in strangers]
        known = iter(
            self.policy.learner.logprobs([sample for own in runs for sample in own], self.policy.logprob_limits)
        )
        made = {
            id(episode): with_logprobs(episode, [value for _ in own for value in next(known).tolist()])
            for episode, own in zip(strangers, runs, strict=True)
        }
        return [[made.get(id(episode), episode) for episode in group] for group in groups]

    async def _gather(
        self, step: int, on_episode: Callable[[Trajectory], None] | None
    ) -> tuple[list[Trajectory], Scored, dict[str, float], dict[str, float]]:
        """The next groups of the log. No episode was played, so none is shown to whoever watches the policy's own."""
        self._drawn = self.stream.take(self.settings.tasks_per_step)
        groups = [self.groups[task] for task in self._drawn]
        flat = [episode for group in groups for episode in group]
        metrics = {
            "logged/episodes": float(len(flat)),
            "logged/success/mean": sum(e.outcome is Outcome.SUCCESS for e in flat) / len(flat),
            **summary_stats("logged/reward", [e.reward for e in flat]),
        }
        return [], groups, {}, metrics

    def _teach_actor(
        self, step: int, taught: list[list[WeightedTrajectory]], tick: Callable[[], None] | None
    ) -> dict[str, float]:
        heated = [
            [
                replace(one, samples=tuple(replace(sample, temperature=temperature) for sample in one.samples))
                for one, temperature in zip(group, self.temperatures[task], strict=True)
            ]
            for group, task in zip(taught, self._drawn, strict=True)
        ]
        found = super()._teach_actor(step, heated, tick)
        return {RENAMED.get(name, name): value for name, value in found.items()}

    def _mismatch(self, groups: Scored) -> dict[str, float]:
        """There is no engine that could disagree."""
        return {}


def fingerprint(groups: Scored) -> str:
    """Names groups by what they teach: tasks, rewards, ids."""
    running = hashlib.sha256()
    for episode in (episode for group in groups for episode in group):
        running.update(repr((episode.task.id, episode.task.hash, episode.attempt, episode.reward)).encode())
        for turn in episode.turns:
            for span in turn.spans:
                running.update(array("q", span.ids))
    return running.hexdigest()[:16]


def check_same_log(state: Mapping[str, Any], log: str) -> None:
    """A run goes on only over what it began with: a folder that has grown since is another log."""
    if state.get("log") != log:
        raise UserError(
            "The episodes below data.from_trajectories are not those this run began with; "
            "put them back, or choose another trainer.experiment_name."
        )


def knows_its_policy(episode: Trajectory) -> bool:
    """Whether the log-probs are those of a whole softmax at some temperature: of nothing less can a ratio be taken."""
    about = episode.provenance
    if about.get("temperature", 1.0) <= 0 or about.get("top_k", 0) or about.get("top_p", 1.0) < 1:
        return False
    return all(span.logprobs is not None for turn in episode.turns for span in turn.spans if _sampled(span))


def with_logprobs(episode: Trajectory, values: Sequence[float]) -> Trajectory:
    """The episode with these log-probs on its sampled tokens, in their order."""
    rest = iter(values)

    def filled(spans: Sequence[Span]) -> Iterator[Span]:
        for span in spans:
            yield replace(span, logprobs=tuple(next(rest) for _ in span.ids)) if _sampled(span) else span

    turns = tuple(replace(turn, spans=tuple(filled(turn.spans))) for turn in episode.turns)
    if next(rest, None) is not None:
        raise ValueError("more log-probs than sampled tokens")
    return replace(episode, turns=turns)


def _sampled(span: Span) -> bool:
    return span.origin is Origin.SAMPLED
