"""A batch that has been rolled out and not yet been trained on; as JSON it outlives the process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from practicum.data import store
from practicum.trajectory import Trajectory

Figures = dict[str, float]


@dataclass(frozen=True)
class RolloutBatch:
    """What a step learns from. `groups` are of its `episodes`; `drawn` are the task stream's figures after it."""

    step: int
    episodes: list[Trajectory]
    groups: list[list[Trajectory]]
    greedy: Figures
    metrics: Figures
    drawn: Figures = field(default_factory=dict)
    seconds: float = 0.0
    """That the rollout took. No record of a run depends on the clock, so this one is not kept."""

    def record(self) -> dict[str, Any]:
        places = {id(episode): number for number, episode in enumerate(self.episodes)}
        return {
            "step": self.step,
            "episodes": [store.dump(episode).decode() for episode in self.episodes],
            "groups": [[places[id(episode)] for episode in group] for group in self.groups],
            "greedy": _pairs(self.greedy),
            "metrics": _pairs(self.metrics),
            "drawn": _pairs(self.drawn),
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> RolloutBatch:
        episodes = [store.load(text.encode()) for text in record["episodes"]]
        return cls(
            step=int(record["step"]),
            episodes=episodes,
            groups=[[episodes[place] for place in group] for group in record["groups"]],
            greedy=_figures(record["greedy"]),
            metrics=_figures(record["metrics"]),
            drawn=_figures(record["drawn"]),
        )


def _pairs(figures: Figures) -> list[tuple[str, float | None]]:
    """In their order, which a JSON object's writer may change; what is no number as null."""
    return [(name, None if math.isnan(value) else value) for name, value in figures.items()]


def _figures(pairs: Iterable[tuple[str, float | None]]) -> Figures:
    return {name: math.nan if value is None else float(value) for name, value in pairs}
