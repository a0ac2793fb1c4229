"""Affine's shaped reward: small for a successful step, large for completion, negative for errors.

The worked example of Affine's guide: five steps of AlfWorld at 0.2 and a sixth that completes the task at 1.0 total
2.0. So completion *replaces* the step's own reward. WebShop's search (0.1), click (0.3) and purchase (1.0) total 1.4.

The guide rewards a step whenever it works, so that repeating the same step collects rewards without end. `once`
prevents that: each kind of step is rewarded once per episode. Both totals stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PENALTY = -0.05
"""The guide asks for "small negative values for errors" and gives no number; this one is ours."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """Rewards of an environment."""

    step: float = 0.0
    """Reward of a successful step whose kind is not in `kinds`."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Rewards of successful steps by kind."""
    completion: float = 1.0
    penalty: float = PENALTY
    once: bool = False
    """Whether a kind is rewarded only once per episode."""


class ShapedRewards:
    """Shaped rewards of one episode. Components: `step`, `completion`, `penalty`."""

    def __init__(self, shaping: Shaping) -> None:
        self.shaping = shaping
        self._rewarded_kinds: set[str] = set()

    def step(self, kind: str) -> dict[str, float]:
        """Return the reward of a successful step; a kind of '' (looking around) has none."""
        if not kind or (self.shaping.once and kind in self._rewarded_kinds):
            return _components()
        self._rewarded_kinds.add(kind)
        return _components(step=self.shaping.kinds.get(kind, self.shaping.step))

    def end(self, worth: float) -> dict[str, float]:
        """Return the reward of the last step: `worth` is 1 for success, 0 for failure, between if graded."""
        return _components(completion=self.shaping.completion * worth) if worth > 0 else self.error()

    def error(self) -> dict[str, float]:
        """Return the reward of a command that could not be read or executed."""
        return _components(penalty=self.shaping.penalty)


def _components(step: float = 0.0, completion: float = 0.0, penalty: float = 0.0) -> dict[str, float]:
    return {"step": step, "completion": completion, "penalty": penalty}
