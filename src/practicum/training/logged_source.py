"""Trajectories from a log: group-relative policy gradients over episodes that were collected before.

Nothing is rolled out. The scored episodes of one task are a group, their logged rewards are compared as any estimator
compares those of online attempts, and the ratio of every token is π/μ, where μ is the policy that, by the log, sampled
it. μ stays the same for the whole run, so the clip bounds not one update but the run: a token of a good episode is
raised until it is 1 + clip_ratio_high times as likely as when it was logged, one of a bad episode is lowered to
1 - clip_ratio_low of that and no further. This is the floor: failures do lower probabilities, which SFT cannot do, but
the policy cannot leave the region that the log has evidence for. The clip only removes the gradient; what momentum and
other episodes move beyond it, the KL term to the start policy brings back, so both are required.
"""

from __future__ import annotations

import hashlib
import random
import time
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from practicum.agent import Agent
from practicum.data.preferences import group_by_task
from practicum.data.store import read_training_episodes
from practicum.errors import UserError
from practicum.models import loader
from practicum.training.estimators import ESTIMATORS, EstimatorSettings
from practicum.training.micro_batches import in_token_order, unweighted_samples
from practicum.training.monitor.loggers import summary_stats
from practicum.training.objective import compute_logprobs
from practicum.training.rollout_batch import RolloutBatch, TrajectoryGroups
from practicum.training.rollout_source import OnEpisode, TaskStream, has_signal
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Origin, Outcome, Span, Trajectory, is_trained

METHODS = ("grpo", "bandit")
GROUP_ESTIMATORS = tuple(name for name, estimator in ESTIMATORS.items() if estimator.min_group_size > 1)
"""Estimators that need nothing but the rewards of one task's episodes."""
METRIC_NAMES = {
    "mismatch/logprob/mean": "offline/distance/mean",
    "mismatch/logprob/max": "offline/distance/max",
    "actor/pg_clipfrac": "offline/bounded",
}
"""The learner's measures against the sampling log-probs have another meaning where these are a log's."""


@dataclass(frozen=True)
class TrajectoryLog:
    """The scored episodes below a folder, in the order of their paths."""

    folder: Path
    episodes: tuple[Trajectory, ...]
    num_unscored: int

    @property
    def template(self) -> str | None:
        """The chat template that the episodes name."""
        template = self.episodes[0].provenance.get("template")
        return None if template is None else str(template)

    def check_tokens(self, policy: TrainablePolicy, roles: Collection[str] | None = None) -> None:
        """Raise when a trained turn of an episode holds ids of another vocabulary than the policy's."""
        tokenizer, size = policy.loaded.tokenizer, policy.decoder.shape.vocabulary
        vocabulary = loader.tokenizer_hash(tokenizer)
        for episode in self.episodes:
            turns = [turn for turn in episode.turns if is_trained(turn, roles)]
            largest = max((i for turn in turns for span in turn.spans for i in span.ids), default=0)
            if episode.provenance.get("tokenizer", vocabulary) != vocabulary or largest >= size:
                raise UserError(
                    f"Episode '{episode.task.id}' below '{self.folder}' holds ids of another tokenizer "
                    f"({episode.provenance.get('model', 'unknown')}), not of '{policy.loaded.source}'; "
                    "collect with the model that is to be trained."
                )


def read_trajectory_log(folder: Path) -> TrajectoryLog:
    """The scored episodes of training tasks below a folder, each checked field by field."""
    read = [episode for _, episode in read_training_episodes(folder)]
    episodes = tuple(episode for episode in read if episode.scored and any(turn.spans for turn in episode.turns))
    if not episodes:
        raise UserError(f"None of the {len(read)} episodes below '{folder}' was scored; collect some that are.")
    templates = sorted({str(episode.provenance.get("template")) for episode in episodes})
    if len(templates) > 1:
        raise UserError(
            f"The episodes below '{folder}' were rendered under different chat templates ({', '.join(templates)}); "
            "train on one kind."
        )
    return TrajectoryLog(folder, episodes, len(read) - len(episodes))


def signal_groups(log: TrajectoryLog, seed: int = 0, estimation: EstimatorSettings | None = None) -> TrajectoryGroups:
    """A log's episodes by task, in an order drawn from the seed, without groups whose rewards are all equal."""
    all_groups = group_by_task(log.episodes)
    groups = [group for group in all_groups if len(group) > 1 and has_signal(group, {}, estimation)]
    if not groups:
        raise UserError(
            f"No task below '{log.folder}' ({len(all_groups)} of them) has episodes of different reward, so there is "
            "nothing to compare; collect several attempts at tasks that are solved sometimes."
        )
    random.Random(f"offline/{seed}").shuffle(groups)
    return groups


class LogStream:
    """A source whose tasks are a stream over a log; its state has the position in the stream, and names the log."""

    stream: TaskStream
    fingerprint: str

    def state(self) -> dict[str, Any]:
        return {"stream": self.stream.state(), "log": self.fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raise unless this is the log that the run began with; a folder that has grown since is another log."""
        if state.get("log") != self.fingerprint:
            raise UserError(
                "The episodes below data.from_trajectories are not those this run began with; "
                "put them back, or choose another trainer.experiment_name."
            )
        self.stream.restore(state["stream"])


class LoggedSource(LogStream):
    """Gives the groups of a log, `train_batch_size` of them per step, round and round."""

    from_engine = False
    metric_names: Mapping[str, str] = METRIC_NAMES

    def __init__(
        self,
        policy: TrainablePolicy,
        groups: TrajectoryGroups,
        agent: Agent,
        settings: RLSettings,
        say: Callable[[str], None] = print,
    ) -> None:
        """`policy` has the weights of the start: they fill in the log-probs that the log lacks."""
        _check_settings(settings)
        self.policy, self.agent, self.settings = policy, agent, settings
        self.roles = settings.estimation.train_roles
        self.fingerprint = fingerprint(groups)
        tasks = [group[0].task for group in groups]
        self.stream = TaskStream(tasks, settings.curriculum, settings.train_batch_size)
        self.groups = dict(zip(tasks, self._fill_logprobs(groups, say), strict=True))
        self.temperatures = {group[0].task: [self._temperature(episode) for episode in group] for group in groups}

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        """The next groups of the log. No episode was played, so `on_episode` is not called."""
        started = time.perf_counter()
        tasks = self.stream.take(self.settings.train_batch_size)
        groups = [self.groups[task] for task in tasks]
        episodes = [episode for group in groups for episode in group]
        metrics = {
            "logged/episodes": float(len(episodes)),
            "logged/success/mean": sum(e.outcome is Outcome.SUCCESS for e in episodes) / len(episodes),
            **summary_stats("logged/reward", [episode.reward for episode in episodes]),
        }
        return RolloutBatch(
            step,
            [],
            groups,
            {},
            metrics,
            self.stream.metrics(),
            time.perf_counter() - started,
            [self.temperatures[task] for task in tasks],
        )

    def _temperature(self, episode: Trajectory) -> float:
        """The temperature that an episode's log-probs, its own or the start policy's, belong to."""
        if not has_policy_logprobs(episode, self.roles):
            return self.agent.sampling.temperature
        return float(episode.provenance.get("temperature", self.agent.sampling.temperature))

    def _fill_logprobs(self, groups: TrajectoryGroups, say: Callable[[str], None]) -> TrajectoryGroups:
        """Groups in which every sampled token has a log-prob: where the log has none, the start policy's is used."""
        episodes = [episode for group in groups for episode in group]
        without_logprobs = [episode for episode in episodes if not has_policy_logprobs(episode, self.roles)]
        if not without_logprobs:
            return groups
        say(
            f"{len(without_logprobs)} of {len(episodes)} logged episodes lack the log-probs they were sampled "
            "with (an expert's, a greedy or a truncated policy's): those of the start policy are used instead, so "
            "their ratios begin at 1."
        )
        temperature = self.agent.sampling.temperature
        # All of them at one temperature: the turns' own belong to the log-probs that are replaced.
        unlogged = [without_turn_temperatures(episode) for episode in without_logprobs]
        grammars = self.policy.renderer.grammars
        samples = [unweighted_samples(episode, temperature, self.roles, grammars=grammars) for episode in unlogged]
        flat = [sample for own in samples for sample in own]
        logprobs = iter(compute_logprobs(self.policy.decoder, flat, self.policy.logprob_limits))
        filled = {
            id(episode): with_logprobs(
                blank, in_token_order(own, [next(logprobs).double().numpy() for _ in own]).tolist(), self.roles
            )
            for episode, blank, own in zip(without_logprobs, unlogged, samples, strict=True)
        }
        return [[filled.get(id(episode), episode) for episode in group] for group in groups]


def _check_settings(settings: RLSettings) -> None:
    """Refuse settings under which a log cannot be learnt from."""
    if settings.adv_estimator not in GROUP_ESTIMATORS:
        raise UserError(
            f"A log is learnt from by comparing the episodes of one task, which {settings.adv_estimator} does not; "
            f"set algorithm.adv_estimator to one of {', '.join(GROUP_ESTIMATORS)}."
        )
    if settings.objective.loss_mode == "cispo":
        raise UserError("cispo has no floor, and a log needs one; set policy_loss.loss_mode to vanilla or gspo.")
    if settings.objective.kl_loss_coef <= 0:
        raise UserError(
            "A policy that plays no episodes must be held near its start: set "
            "actor_rollout_ref.actor.use_kl_loss=true and kl_loss_coef above 0 (0.1, say)."
        )


def fingerprint(groups: TrajectoryGroups) -> str:
    """A hash of what is learnt from groups: tasks, rewards and ids."""
    digest = hashlib.sha256()
    for episode in (episode for group in groups for episode in group):
        digest.update(repr((episode.task.id, episode.task.hash, episode.attempt, episode.reward)).encode())
        for turn in episode.turns:
            for span in turn.spans:
                digest.update(array("q", span.ids))
    return digest.hexdigest()[:16]


def has_policy_logprobs(episode: Trajectory, roles: Collection[str] | None = None) -> bool:
    """Whether all trained tokens have log-probs of a softmax that is known: only from those can a ratio be computed.

    It is known where all tokens could be sampled, or where the record says which (`Span.kept`).
    """
    provenance = episode.provenance
    default = provenance.get("temperature", 1.0)
    turns = [turn for turn in episode.turns if is_trained(turn, roles) and turn.num_sampled]
    is_filtered = provenance.get("top_k", 0) or provenance.get("top_p", 1.0) < 1 or provenance.get("min_p", 0.0) > 0
    replies = [span for turn in turns for span in turn.spans if _sampled(span) and span.ids]
    if is_filtered and any(span.kept is None for span in replies):
        return False
    if (default if not turns else min(default if t.temperature is None else t.temperature for t in turns)) <= 0:
        return False
    return all(span.logprobs is not None for turn in turns for span in turn.spans if _sampled(span))


def without_turn_temperatures(episode: Trajectory) -> Trajectory:
    """The episode with one temperature for all of its turns."""
    if all(turn.temperature is None for turn in episode.turns):
        return episode
    return replace(episode, turns=tuple(replace(turn, temperature=None) for turn in episode.turns))


def with_logprobs(episode: Trajectory, values: Sequence[float], roles: Collection[str] | None = None) -> Trajectory:
    """The episode with these log-probs on its trained tokens, in the order of the turns."""
    rest = iter(values)

    def filled(spans: Sequence[Span]) -> Iterator[Span]:
        for span in spans:
            yield replace(span, logprobs=tuple(next(rest) for _ in span.ids)) if _sampled(span) else span

    turns = tuple(
        replace(turn, spans=tuple(filled(turn.spans))) if is_trained(turn, roles) else turn for turn in episode.turns
    )
    if next(rest, None) is not None:
        raise ValueError("more log-probs than sampled tokens")
    return replace(episode, turns=turns)


def _sampled(span: Span) -> bool:
    return span.origin is Origin.SAMPLED
