"""A batch of trajectories that was collected and not yet trained on; as JSON it can be stored in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.data.store import decode_episode, encode_episode
from practicum.trajectory import Trajectory

Metrics = dict[str, float]
TrajectoryGroups = list[list[Trajectory]]
"""The trajectories of one task each, in the order in which the tasks were drawn."""


@dataclass(frozen=True)
class RolloutBatch:
    """What one training step learns from."""

    step: int
    episodes: list[Trajectory]
    """All episodes that were played for the step, scored or not; none where a log is read."""
    groups: TrajectoryGroups
    """The trajectories to train on, by task."""
    greedy_rewards: Metrics
    """By group: the reward of its greedy rollout, where the estimator compares with one."""
    metrics: Metrics
    stream_metrics: Metrics = field(default_factory=dict)
    """Metrics of the task stream after the draw; they are written after those of the update."""
    seconds: float = 0.0
    """Duration of the rollout. It is not stored: no record of a run depends on the clock."""
    temperatures: Sequence[Sequence[float]] | None = None
    """Sampling temperature of each trajectory of `groups`; None where all have the agent's."""

    def record(self) -> dict[str, Any]:
        """The batch as plain JSON values."""
        indices = {id(episode): index for index, episode in enumerate(self.episodes)}
        return {
            "step": self.step,
            "episodes": [encode_episode(episode).decode() for episode in self.episodes],
            "groups": [[indices[id(episode)] for episode in group] for group in self.groups],
            "greedy": _pairs(self.greedy_rewards),
            "metrics": _pairs(self.metrics),
            "drawn": _pairs(self.stream_metrics),
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> RolloutBatch:
        """The batch that `record` wrote."""
        episodes = [decode_episode(text.encode()) for text in record["episodes"]]
        return cls(
            step=int(record["step"]),
            episodes=episodes,
            groups=[[episodes[index] for index in group] for group in record["groups"]],
            greedy_rewards=_metrics(record["greedy"]),
            metrics=_metrics(record["metrics"]),
            stream_metrics=_metrics(record["drawn"]),
        )


def _pairs(metrics: Metrics) -> list[tuple[str, float | None]]:
    """Pairs in their order, which a writer of JSON objects may change; NaN is written as null."""
    return [(name, None if math.isnan(value) else value) for name, value in metrics.items()]


def _metrics(pairs: Iterable[tuple[str, float | None]]) -> Metrics:
    return {name: math.nan if value is None else float(value) for name, value in pairs}
