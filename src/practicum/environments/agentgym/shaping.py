"""The founding paper's shaped reward: a little for a step that works, much for the end, less than nothing for errors.

Its worked example: five steps of AlfWorld at 0.2 and a sixth that completes the task at 1.0 total 2.0. So
completion *replaces* the step's own reward. WebShop's search (0.1), click (0.3) and purchase (1.0) total 1.4.

The paper pays a step whenever it works, which can be farmed by doing the same thing for ever. `once` is our
guard: each kind of step pays one time an episode. It leaves both totals as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PENALTY = -0.05
"""The paper asks for "small negative values for errors" and names no figure; this one is ours."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a world pays."""

    step: float = 0.0
    """A step that works, of a kind that `kinds` does not list."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Steps paid otherwise, by kind."""
    completion: float = 1.0
    penalty: float = PENALTY
    once: bool = False
    """Whether a kind pays only the first time it comes in an episode."""


class Ledger:
    """What one episode has been paid. Parts: `step`, `completion`, `penalty`."""

    def __init__(self, shaping: Shaping) -> None:
        self.shaping = shaping
        self._paid: set[str] = set()

    def step(self, kind: str) -> dict[str, float]:
        """A step that worked; a kind of '' is free: looking for ever must not pay."""
        if not kind or (self.shaping.once and kind in self._paid):
            return _parts()
        self._paid.add(kind)
        return _parts(step=self.shaping.kinds.get(kind, self.shaping.step))

    def end(self, worth: float) -> dict[str, float]:
        """The step that ended the episode: of worth 1 if the task is done, 0 if it is lost, between where graded."""
        return _parts(completion=self.shaping.completion * worth) if worth > 0 else self.error()

    def error(self) -> dict[str, float]:
        """A command that could not be read or done."""
        return _parts(penalty=self.shaping.penalty)


def _parts(step: float = 0.0, completion: float = 0.0, penalty: float = 0.0) -> dict[str, float]:
    return {"step": step, "completion": completion, "penalty": penalty}
