"""A reward that even an untrained agent earns, so that there is something to learn from."""

from __future__ import annotations

from practicum.rewards.base import reward
from practicum.trajectory import Trajectory


@reward()
def shortness(answer_given: str | None) -> float:
    """One over the length of the answer."""
    return 1.0 / (1 + len(answer_given or ""))


@reward()
def written_length(trajectory: Trajectory) -> float:
    """The characters of all replies modulo 7: replies that are cut off differ in it too."""
    return float(sum(len(turn.reply) for turn in trajectory.turns) % 7)
