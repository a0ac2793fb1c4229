"""HTDAG's gate bands, with the one that its guide leaves open."""

from __future__ import annotations

import pytest

from practicum.evaluation.gates import NEXT_STEPS, Gate, decide, relative_improvement


@pytest.mark.parametrize(
    ("baseline", "trained", "gate"),
    [
        (0.60, 0.70, Gate.DEPLOY),
        (0.60, 0.69, Gate.PROMISING),  # exactly 15 %, which is not above it
        (0.60, 0.6901, Gate.DEPLOY),
        (0.60, 0.66, Gate.PROMISING),
        (0.60, 0.659, Gate.MARGINAL),
        (0.60, 0.63, Gate.MARGINAL),
        (0.60, 0.629, Gate.KEEP),
        (0.60, 0.60, Gate.KEEP),
        (0.60, 0.30, Gate.KEEP),
        (0.0, 0.16, Gate.DEPLOY),
        (0.0, 0.02, Gate.KEEP),  # infinitely much more than nothing, and still two points
        (0.0, 0.0, Gate.KEEP),
    ],
)
def test_bands(baseline: float, trained: float, gate: Gate) -> None:
    assert decide(baseline, trained, significant=True).gate is gate
    unproven = decide(baseline, trained, significant=False).gate
    assert unproven is (Gate.KEEP if gate is Gate.KEEP else Gate.UNPROVEN)


def test_words() -> None:
    assert decide(0.5, 0.6, True).sentence == "deploy, at +20.0 %"
    assert "+20.0 points" in decide(0.0, 0.2, True).sentence
    assert set(NEXT_STEPS) == set(Gate)


def test_zero_baselines_have_no_ratio() -> None:
    assert relative_improvement(0.0, 0.5) is None
    assert relative_improvement(-1.0, 0.5) is None
    assert relative_improvement(0.5, 0.75) == 0.5
