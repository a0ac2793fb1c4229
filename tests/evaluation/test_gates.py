"""HTDAG's gates by the interval: relative gain or fewer errors, and a lower end above a third of what is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from practicum.evaluation.compare import compare_pair
from practicum.evaluation.gates import NEXT_STEPS, Gate, Improvement, decide, relative_improvement
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.intervals import Interval

Make = Callable[..., EvalResult]


def improvement(baseline: float, trained: float, margin: float = 0.0) -> Improvement:
    difference = trained - baseline
    return Improvement(baseline, difference, Interval(difference - margin, difference + margin, 0.95))


@pytest.mark.parametrize(
    ("baseline", "trained", "gate"),
    [
        (0.60, 0.70, Gate.DEPLOY),
        (0.60, 0.69, Gate.PROMISING),  # exactly 15 %, which is not above it
        (0.60, 0.6901, Gate.DEPLOY),
        (0.40, 0.44, Gate.PROMISING),
        (0.40, 0.4399, Gate.MARGINAL),
        (0.40, 0.42, Gate.MARGINAL),
        (0.40, 0.4199, Gate.KEEP),
        (0.60, 0.60, Gate.KEEP),
        (0.60, 0.30, Gate.KEEP),
        (0.90, 0.93, Gate.DEPLOY),  # 3.3 % relative, and 30 % fewer errors
        (0.96, 1.00, Gate.DEPLOY),
        (0.96, 0.968, Gate.PROMISING),  # 20 % fewer errors
        (0.96, 0.965, Gate.MARGINAL),  # 12.5 %
        (0.001, 0.0012, Gate.KEEP),  # a fifth more of nothing
        (0.0, 0.16, Gate.DEPLOY),
        (0.0, 0.02, Gate.KEEP),  # infinitely much more than nothing, and still two points
        (0.0, 0.0, Gate.KEEP),
        (1.0, 1.0, Gate.KEEP),
    ],
)
def test_bands(baseline: float, trained: float, gate: Gate) -> None:
    assert decide(improvement(baseline, trained), significant=True).gate is gate
    unproven = decide(improvement(baseline, trained), significant=False).gate
    assert unproven is (Gate.KEEP if gate is Gate.KEEP else Gate.UNPROVEN)


@pytest.mark.parametrize(
    ("margin", "gate"),
    [
        (0.05, Gate.DEPLOY),
        (0.0749, Gate.DEPLOY),  # +20 % relative, lower end just above 5 %
        (0.0751, Gate.PROMISING),  # above 3.3 %
        (0.084, Gate.MARGINAL),  # above 1.7 %
        (0.0999, Gate.UNPROVEN),
    ],
)
def test_the_lower_end_of_the_interval_decides(margin: float, gate: Gate) -> None:
    """With errors as frequent as successes, 20 % fewer errors reach nothing that +20 % does not."""
    assert decide(improvement(0.5, 0.6, margin), significant=True).gate is gate


def test_the_sentence_has_points_relative_gain_error_reduction_and_intervals() -> None:
    text = decide(improvement(0.5, 0.6, 0.02), True).sentence
    assert text.startswith(
        "deploy, at +10.0 points [+8.0, +12.0], +20.0 % relative [+16.0, +24.0], 20.0 % fewer errors"
    )
    assert "95 % intervals" in text
    assert "the baseline is zero" in decide(improvement(0.0, 0.2), True).sentence
    worse = improvement(0.8, 0.6, 0.05).text()
    assert "-20.0 points" in worse
    assert "100.0 % more errors [75.0, 125.0]" in worse
    assert "fewer" not in worse
    assert set(NEXT_STEPS) == set(Gate)


def test_zero_baselines_have_no_ratio() -> None:
    assert relative_improvement(0.0, 0.5) is None
    assert relative_improvement(-1.0, 0.5) is None
    assert relative_improvement(0.5, 0.75) == 0.5


def test_four_errors_in_a_hundred_gone_is_a_deployment(make_result: Make) -> None:
    """96 -> 100 % of 500 tasks, p = 1e-6: formerly 'keep the baseline', because 4.2 % relative is below 5 %."""
    gone = compare_pair(make_result("a", [1] * 480 + [0] * 20), make_result("b", [1] * 500))
    assert gone.decision.gate is Gate.DEPLOY
    assert "100.0 % fewer errors" in gone.decision.sentence


def test_a_gate_needs_what_is_shown(make_result: Make) -> None:
    """Two of three tasks more is 200 %, and nothing."""
    few = compare_pair(make_result("a", [1, 0, 0]), make_result("b", [1, 1, 1]))
    assert few.decision.gate is Gate.UNPROVEN
    many = compare_pair(make_result("a", [1, 0, 0] * 20), make_result("b", [1, 1, 1] * 20))
    assert many.decision.gate is Gate.DEPLOY


def test_a_script_gets_no_gate(make_result: Make) -> None:
    expert = make_result("expert", [1] * 60, settings={"stage": "scripted", "temperature": 0.0})
    compared = compare_pair(make_result("a", [1] + [0] * 59, settings={"stage": "sft", "temperature": 1.0}), expert)
    assert compared.conclusion == "better"
    assert compared.decision.gate is Gate.WITHHELD
    assert "is a script" in compared.decision.sentence


def test_more_than_two_percent_unscored_gets_no_gate(make_result: Make) -> None:
    baseline = make_result("a", [1] * 50 + [0] * 50)
    for unscored, gate in ((2, Gate.DEPLOY), (3, Gate.WITHHELD)):
        trained = make_result("b", [None] * unscored + [1] * (100 - unscored))
        assert compare_pair(baseline, trained).decision.gate is gate
    assert "3.0 % of the episodes of 'b' have no score" in compare_pair(baseline, trained).decision.sentence
    worse = compare_pair(baseline, make_result("b", [None] * 30 + [0] * 70))
    assert worse.decision.gate is Gate.KEEP  # nothing unscored can make this an improvement
