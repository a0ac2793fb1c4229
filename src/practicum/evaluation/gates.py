"""HTDAG's gates: what to do with a trained policy, given its relative improvement and whether that is significant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Gate(StrEnum):
    """What to do with the trained policy."""

    DEPLOY = "deploy"
    PROMISING = "promising: run more"
    MARGINAL = "marginal: find the cause"
    KEEP = "keep the baseline"
    UNPROVEN = "not shown: run more"


NEXT_STEPS: Mapping[Gate, tuple[str, ...]] = {
    Gate.DEPLOY: (
        "deploy the trained policy behind a switch that can roll it back",
        "keep the panel for the next one",
    ),
    Gate.PROMISING: ("evaluate on more tasks", "train longer, or with another seed, and compare again"),
    Gate.MARGINAL: (
        "refine the reward from the failures",
        "run SFT on expert episodes first",
        "train on ten times the episodes",
    ),
    Gate.KEEP: (
        "keep using the baseline",
        "improve prompts",
        "run SFT on expert episodes",
        "write down what was learned",
    ),
    Gate.UNPROVEN: ("keep using the baseline until a difference is shown", "evaluate on more tasks"),
}
THRESHOLDS = ((0.15, Gate.DEPLOY), (0.10, Gate.PROMISING), (0.05, Gate.MARGINAL))
"""The relative improvement that each gate needs, the highest first."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A gate and the improvement it was decided by; `absolute`: in points, because the baseline is zero."""

    gate: Gate
    improvement: float
    absolute: bool

    @property
    def sentence(self) -> str:
        unit = "points (the baseline is zero, so there is no ratio)" if self.absolute else "%"
        return f"{self.gate.value}, at {100 * self.improvement:+.1f} {unit}"


def relative_improvement(baseline: float, trained: float) -> float | None:
    """trained / baseline - 1; None where the baseline is zero or below and the ratio has no meaning."""
    return trained / baseline - 1 if baseline > 0 else None


def decide(baseline: float, trained: float, significant: bool) -> Decision:
    """The gate of an improvement: above 15 % deploy, from 10 % promising, from 5 % marginal, below that keep.

    An improvement that would pass a gate but is not significant is `UNPROVEN`.
    """
    relative = relative_improvement(baseline, trained)
    # 0.69 / 0.6 - 1 is fifteen percent whatever the last bit says.
    improvement = round(trained - baseline if relative is None else relative, 9)
    gate = next((gate for limit, gate in THRESHOLDS if _passes(improvement, limit, gate)), Gate.KEEP)
    if gate is not Gate.KEEP and not significant:
        gate = Gate.UNPROVEN
    return Decision(gate, improvement, relative is None)


def _passes(improvement: float, limit: float, gate: Gate) -> bool:
    return improvement > limit if gate is Gate.DEPLOY else improvement >= limit
