"""HALO's labels and files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.evaluation.hierarchy_metrics import CALLS, rate, rate_difference
from practicum.evaluation.matrix import COLUMNS, Usefulness, matrix, usefulness_label, write_matrix
from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult

Make = Callable[..., EvalResult]


def policy(result: EvalResult) -> PolicyResults:
    return PolicyResults(result.policy, {result.panel: result})


@pytest.mark.parametrize(
    ("delta", "steps", "label"),
    [
        (0.02, 40, Usefulness.USEFUL),
        (0.0199, 20, Usefulness.NOT),
        (0.01, 36, Usefulness.SPEED),
        (-0.01, 36, Usefulness.SPEED),
        (0.0, 37, Usefulness.NOT),
        (-0.011, 10, Usefulness.NOT),
        (0.0, 40, Usefulness.NOT),
    ],
)
def test_labels(delta: float, steps: float, label: Usefulness) -> None:
    assert usefulness_label((0.40, 40), (0.40 + delta, steps)) is label


def test_rows_and_files(make_result: Make, tmp_path: Path) -> None:
    base = make_result("base", [1, 0] * 25, turns=10)
    fast = make_result(
        "fast|x",
        [1, 0] * 25,
        turns=10,
        figures={
            "manager_calls": 2.0,
            "cache_hits": 3.0,
            "cache_misses": 1.0,
            "scripted_actions": 5.0,
            "recoveries": 1.0,
        },
    )
    good = make_result("=good", [1, 1] * 24 + [None, 1], turns=10)
    rows = matrix([policy(base), policy(fast), policy(good)], "base")
    assert [row.label for row in rows] == [Usefulness.UNKNOWN, Usefulness.SPEED, Usefulness.USEFUL]
    write_matrix(tmp_path, rows, "base")
    read = list(csv.DictReader((tmp_path / "matrix.csv").open()))
    assert tuple(read[0]) == COLUMNS
    assert read[1]["mode"] == "fast|x"
    assert read[2]["mode"] == "'=good"
    assert (read[1]["median_steps"], read[1]["manager_call_rate"], read[1]["cache_hit_rate"]) == ("8.0", "0.25", "0.75")
    assert (read[1]["model_calls_per_success"], read[1]["recovery_rate"]) == ("10.0", "0.125")
    assert (read[0]["manager_call_rate"], read[0]["usefulness_label"], read[0]["score_delta"]) == ("", "N/A", "")
    assert (read[2]["valid_tasks"], read[2]["total_tasks"], read[2]["init_or_agent_errors"]) == ("49", "50", "1")
    assert float(read[2]["success_rate"]) == 1.0  # what could not be scored is no failure
    text = (tmp_path / "matrix.md").read_text()
    assert "| Mode | Valid/Total | Errors | Success Rate | Δ pp | Median Steps | Usefulness | Shown |" in text
    assert "| fast\\|x | 50/50 | 0 | 50.0 % [36.5, 63.5] | +0.0 | 8 | Useful-for-speed | no |" in text
    assert "| fast\\|x | 10.00 [7." in text
    assert "] | -10.00 [-1" in text, "model calls per success, less those of the baseline"
    assert "| 25.0 % [25.0, 25.0] | 75.0 % [75.0, 75.0] | 12.5 % [12.5, 12.5] |" in text
    assert "| base | 20.00 [15" in text, "every turn of a worker alone is a model call"
    (error,) = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert error == {"mode": "=good", "task_id": "t48", "attempt": 0, "outcome": "env_error", "error": "broke"}


def test_the_difference_of_model_calls_is_paired_by_task(make_result: Make) -> None:
    """Tasks differ much from each other, and the second mode saves two calls of every success."""
    rewards = [[1, 0], [1, 1], [0, 0], [1, 0]] * 10
    first, second = (
        make_result("a", rewards, turns=10),
        make_result("b", rewards, turns=10, figures={"scripted_actions": 1}),
    )
    same = rate_difference(first, first, CALLS)
    assert same is not None
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    saved = rate_difference(second, first, CALLS)
    assert saved is not None
    assert saved.value == pytest.approx(-2.0)
    alone = rate(first, CALLS)
    assert alone is not None
    assert saved.high - saved.low < (alone.high - alone.low) / 5
    assert rate_difference(make_result("c", [[0, 0]] * 40), first, CALLS) is None


def test_without_a_baseline_nothing_is_labelled(make_result: Make) -> None:
    rows = matrix([policy(make_result("a", [1])), policy(make_result("b", [0]))], None)
    assert {row.label for row in rows} == {Usefulness.UNKNOWN}
    rows = matrix([policy(make_result("a", [None])), policy(make_result("b", [0]))], "a")
    assert {row.label for row in rows} == {Usefulness.UNKNOWN}


def test_the_baseline_may_stand_anywhere(make_result: Make) -> None:
    rows = matrix([policy(make_result("a", [1] * 10)), policy(make_result("b", [0] * 10))], "b")
    assert [(row.label, row.delta) for row in rows] == [(Usefulness.USEFUL, 1.0), (Usefulness.UNKNOWN, None)]


def test_what_does_not_fit_is_refused(make_result: Make) -> None:
    a = policy(make_result("a", [1]))
    with pytest.raises(UserError, match="no mode 'bass'.* Did you mean 'base'"):
        matrix([a, policy(make_result("base", [1]))], "bass")
    with pytest.raises(UserError, match="only results on one panel"):
        matrix([a, policy(make_result("b", [1], panel="other"))], "a")
    two = PolicyResults("b", {"x": make_result("b", [1], panel="x"), "y": make_result("b", [1], panel="y")})
    with pytest.raises(UserError, match="a matrix is of one panel"):
        matrix([a, two], "a")


def test_times_of_modes_that_ran_in_rounds_are_not_compared(make_result: Make, tmp_path: Path) -> None:
    base, cached = make_result("base", [1, 0]), make_result("cached", [1, 0], settings={"round_size": 1})
    write_matrix(tmp_path, matrix([policy(base), policy(cached)], "base"), "base")
    assert "Times cannot be compared: cached ran in rounds" in (tmp_path / "matrix.md").read_text()
    write_matrix(tmp_path, matrix([policy(base), policy(make_result("other", [1, 0]))], "base"), "base")
    assert "Times cannot be compared" not in (tmp_path / "matrix.md").read_text()
