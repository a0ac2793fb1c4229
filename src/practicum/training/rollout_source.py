"""Where a training step's trajectories come from.

`RLTrainer` trains on whatever a `RolloutSource` gives it. There are three: `online_source` plays episodes with the
policy, `logged_source` reads episodes that were collected before, `bandit_source` samples single replies to the
prompts of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from practicum.agent import Agent
from practicum.errors import UserError
from practicum.training.rollout_batch import RolloutBatch
from practicum.trajectory import Trajectory

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
