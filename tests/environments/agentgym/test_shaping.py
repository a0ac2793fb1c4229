from __future__ import annotations

import pytest

from practicum.environments.agentgym.shaping import PENALTY, ShapedRewards, Shaping


def total(*parts: dict[str, float]) -> float:
    return sum(sum(part.values()) for part in parts)


def test_the_papers_household_example_totals_two() -> None:
    ledger = ShapedRewards(Shaping(step=0.2))
    steps = [ledger.step(verb) for verb in ("goto", "take", "goto", "clean", "goto")]
    assert [sum(step.values()) for step in steps] == [0.2] * 5
    # Completion replaces the last step's 0.2; it does not come on top of it.
    assert total(*steps, ledger.end(1.0)) == pytest.approx(2.0)


def test_the_papers_shop_example_totals_one_point_four() -> None:
    ledger = ShapedRewards(Shaping(kinds={"search": 0.1, "click": 0.3}, once=True))
    assert total(ledger.step("search"), ledger.step("click"), ledger.end(1.0)) == pytest.approx(1.4)


def test_a_kind_pays_once_where_it_is_said() -> None:
    ledger = ShapedRewards(Shaping(kinds={"click": 0.3}, once=True))
    assert [ledger.step("click")["step"] for _ in range(3)] == [0.3, 0.0, 0.0]
    assert [ShapedRewards(Shaping(step=0.15)).step("get")["step"] for _ in range(2)] == [0.15, 0.15]


def test_looks_are_free_and_errors_cost() -> None:
    ledger = ShapedRewards(Shaping(step=0.2))
    assert ledger.step("") == {"step": 0.0, "completion": 0.0, "penalty": 0.0}
    assert ledger.error() == {"step": 0.0, "completion": 0.0, "penalty": PENALTY}
    assert PENALTY < 0
    # An end that is worth nothing is an error; a graded one pays its grade.
    assert ledger.end(0.0) == ledger.error()
    assert ledger.end(0.5)["completion"] == 0.5
