from __future__ import annotations

import pytest

from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.evaluation.panel import Panel, compare, score
from practicum.trajectory import Outcome, Seeds, Trajectory

PANEL = Panel(tuple(MathEnvironment().tasks("test", 40)), 0)


def results(name: str, *outcomes: Outcome, panel: Panel = PANEL) -> list[Trajectory]:
    return [
        Trajectory(task, 0, task.id, outcome, (), float(outcome is Outcome.SUCCESS), {}, Seeds(0, 0))
        for task, outcome in zip(panel.tasks, outcomes, strict=False)
    ]


def test_a_panel_is_named_by_tasks_and_seed() -> None:
    assert PANEL.hash == Panel(PANEL.tasks, 0).hash
    assert PANEL.hash != Panel(PANEL.tasks, 1).hash
    assert PANEL.hash != Panel(PANEL.tasks[1:], 0).hash
    assert PANEL.attempts() == Panel(PANEL.tasks, 0).attempts()


def test_what_could_not_be_scored_is_counted_not_scored() -> None:
    result = score("p", PANEL, results("p", Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.FAILURE))
    assert (result.count, result.success_rate, len(result.errors)) == (2, 0.5, 1)


def test_comparison_is_paired_and_says_when_nothing_is_shown() -> None:
    good = [Outcome.SUCCESS] * 30 + [Outcome.FAILURE] * 10
    poor = [Outcome.SUCCESS] * 15 + [Outcome.FAILURE] * 25
    better = compare(score("a", PANEL, results("a", *poor)), score("b", PANEL, results("b", *good)))
    assert better.verdict == "better"
    assert better.difference == pytest.approx(0.375)
    assert better.interval.low > 0
    same = compare(score("a", PANEL, results("a", *good)), score("b", PANEL, results("b", *good)))
    assert same.verdict == "no difference shown"


def test_other_panels_are_not_compared() -> None:
    other = Panel(PANEL.tasks, 5)
    with pytest.raises(UserError, match="only results on one panel"):
        compare(score("a", PANEL, []), score("b", other, []))
