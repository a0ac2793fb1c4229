"""Founding paper 000's gates: what a relative improvement is enough for, if it is shown at all."""

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


STEPS: Mapping[Gate, tuple[str, ...]] = {
    Gate.DEPLOY: (
        "hand the trained policy over, behind a switch that takes it back",
        "keep the panel for the next one",
    ),
    Gate.PROMISING: ("examine on more tasks", "train on, or with another seed, and compare again"),
    Gate.MARGINAL: (
        "refine the reward from the failures",
        "imitate expert episodes first",
        "train on ten times the episodes",
    ),
    Gate.KEEP: ("go on with the baseline", "improve prompts", "imitate expert episodes", "write down what was learned"),
    Gate.UNPROVEN: ("go on with the baseline until it is settled", "examine on more tasks"),
}
BANDS = ((0.15, Gate.DEPLOY), (0.10, Gate.PROMISING), (0.05, Gate.MARGINAL))


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
    """trained / baseline - 1; None where the baseline is zero or below and the ratio means nothing."""
    return trained / baseline - 1 if baseline > 0 else None


def decide(baseline: float, trained: float, shown: bool) -> Decision:
    """The gate of an improvement. `shown`: its interval is clear of zero and its test passed.

    Above 15 % deploy, from 10 % promising, from 5 % marginal, below that keep the baseline. Whatever would pass a gate
    and is not shown is `UNPROVEN`.
    """
    relative = relative_improvement(baseline, trained)
    # 0.69 / 0.6 - 1 is fifteen percent whatever the last bit says.
    improvement = round(trained - baseline if relative is None else relative, 9)
    gate = next((gate for limit, gate in BANDS if _passes(improvement, limit, gate)), Gate.KEEP)
    if gate is not Gate.KEEP and not shown:
        gate = Gate.UNPROVEN
    return Decision(gate, improvement, relative is None)


def _passes(improvement: float, limit: float, gate: Gate) -> bool:
    return improvement > limit if gate is Gate.DEPLOY else improvement >= limit
