"""Comparisons: which test, which interval, which sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from practicum.errors import UserError
from practicum.evaluation.compare import compare_pair, compare_policies
from practicum.evaluation.diagnosis import diagnose
from practicum.evaluation.policy_results import PolicyResults, read_policy_results
from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.intervals import clustered_mean, paired_rate_interval
from practicum.evaluation.stats.paired import mcnemar, permutation_test

Make = Callable[..., EvalResult]


def policy(result: EvalResult, *more: EvalResult) -> PolicyResults:
    return PolicyResults(result.policy, {e.panel: e for e in (result, *more)})


def test_success_of_distinct_tasks_is_mcnemar(make_result: Make) -> None:
    first, second = make_result("a", [1] * 10 + [0] * 30), make_result("b", [1] * 7 + [0] * 3 + [1] * 15 + [0] * 15)
    results = compare_pair(first, second)
    change = results.success
    assert (change.gained, change.lost, change.test) == (15, 3, "mid-p McNemar")
    assert change.p_value == mcnemar(15, 3, 40)
    assert change.interval == paired_rate_interval(15, 3, 40, 0.95)
    assert change.improvement == pytest.approx(22 / 10 - 1)
    assert results.conclusion == "better"
    assert "'b' is better than 'a' by 30.0 points" in results.sentence
    assert compare_pair(second, first).conclusion == "worse"


def test_attempts_are_averaged_and_permuted(make_result: Make) -> None:
    rng = np.random.default_rng(0)
    first = make_result("a", [list(map(float, rng.integers(0, 2, 4))) for _ in range(12)])
    second = make_result("b", [list(map(float, rng.integers(0, 2, 4))) for _ in range(12)])
    change = compare_pair(first, second).success
    apart = [
        b - a for a, b in zip(*(e.by_task(lambda s: float(s.success)).values() for e in (first, second)), strict=True)
    ]
    assert change.test == "paired permutation"
    assert change.p_value >= float(permutation_test(apart)) > 0.05
    expected = clustered_mean(apart, range(12), 0.95).interval  # z with pairs added, against t without
    assert (change.interval.low, change.interval.high) == pytest.approx((expected.low, expected.high), abs=0.04)
    assert "pass@4" in [c.name for c in compare_pair(first, second).deltas]


def test_four_attempts_are_compared_with_one(make_result: Make) -> None:
    change = compare_pair(make_result("a", [1, 0, 0]), make_result("b", [[1, 1], [1, 0], [0, 0]])).success
    assert change.difference == pytest.approx(1 / 6)


def test_tasks_of_one_content_are_one_question(make_result: Make) -> None:
    """HTDAG's benchmark asks 23 questions 100 times: repeats are no evidence."""
    contents = [f"q{n // 10}" for n in range(60)]
    first, second = (
        make_result("a", [0] * 60, contents=contents),
        make_result("b", [1] * 40 + [0] * 20, contents=contents),
    )
    repeated = compare_pair(first, second)
    assert repeated.success.num_clusters == 6
    assert repeated.success.p_value == pytest.approx(2 / 2**4)
    assert repeated.conclusion == "no difference shown"
    apart = compare_pair(make_result("a", [0] * 60), make_result("b", [1] * 40 + [0] * 20))
    assert apart.conclusion == "better"


def test_only_tasks_that_both_have_a_score_for(make_result: Make) -> None:
    results = compare_pair(make_result("a", [1, None, 0, 0]), make_result("b", [1, 1, None, 1]))
    assert (results.success.num_tasks, results.num_left_out) == (2, 2)
    assert (results.success.baseline, results.success.trained) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [([None], [1]), ([], []), ([1], [0]), ([1], [1]), ([0] * 5, [1] * 5), ([1] * 9, [1] * 9), ([0.5, 0.2], [0.5, 0.9])],
)
def test_ends_of_the_scale_have_an_answer(first: list[float], second: list[float], make_result: Make) -> None:
    results = compare_policies([policy(make_result("a", first)), policy(make_result("b", second))])
    text = json.dumps(results.record(), allow_nan=False)
    assert json.loads(text)["comparisons"][0]["verdict"] in ("no difference shown", "better", "not known")
    (comparison,) = results.comparisons
    assert comparison.sentence
    assert comparison.power_statement
    assert [cause.answer for cause in diagnose(comparison)]
    interval = comparison.success.interval
    assert -1 <= interval.low < interval.high <= 1  # no certainty from constants


def test_all_gained_by_every_attempt_keeps_a_width(make_result: Make) -> None:
    change = compare_pair(make_result("a", [[0, 0]] * 6), make_result("b", [[1, 1]] * 6)).success
    assert change.interval.low == pytest.approx(paired_rate_interval(6, 0, 6, 0.95).low)
    assert change.interval.high == 1.0
    assert math.isfinite(change.deviation)


def test_twenty_tasks_gained_are_no_certainty(make_result: Make) -> None:
    """A bootstrap of twenty equal differences would give [1, 1]."""
    comparison = compare_pair(make_result("a", [0] * 20), make_result("b", [1] * 20))
    assert comparison.conclusion == "better"
    assert (comparison.success.interval.low, comparison.success.interval.high) == pytest.approx((0.741, 1.0), abs=5e-4)


def test_no_difference_says_how_many_tasks_would_show_it(make_result: Make) -> None:
    results = compare_pair(make_result("a", [1, 0] * 50), make_result("b", [1, 0] * 46 + [0, 1] * 3 + [1, 1]))
    assert results.conclusion == "no difference shown"
    assert "No difference shown between 'a' and 'b'" in results.sentence
    needed = results.success.num_tasks_needed
    assert needed is not None
    assert needed > 600
    assert f"needs about {needed} tasks" in results.power_statement
    same = compare_pair(make_result("a", [1, 0] * 50), make_result("b", [1, 0] * 50))
    assert same.success.num_more_tasks is None
    assert same.power_statement.endswith("; the measured difference is 0, so no number of tasks can be given.")
    assert same.power_statement.startswith("100 tasks can show ")
    assert same.power_statement.count("(power 80 %)") == 1


def test_other_panels_are_refused(make_result: Make) -> None:
    with pytest.raises(UserError, match="only results on one panel"):
        compare_pair(make_result("a", [1]), make_result("b", [1], panel="other"))
    with pytest.raises(UserError, match="only results on one panel"):
        compare_policies([policy(make_result("a", [1])), policy(make_result("b", [1], panel="other"))])


def test_environment_sets_must_be_equal(make_result: Make) -> None:
    both = policy(make_result("a", [1], panel="x"), make_result("a", [1], panel="y", environment="sat"))
    other_panel = policy(make_result("b", [1], panel="x"))
    with pytest.raises(UserError, match="not evaluated on the same panels \\(sat\\)"):
        compare_policies([both, other_panel])


def test_p_values_are_corrected_over_policies_and_environments(make_result: Make) -> None:
    base = [0] * 20 + [1] * 20
    a = policy(make_result("a", base, panel="x"), make_result("a", base, panel="y", environment="sat"))
    good = [1] * 6 + [0] * 14 + [1] * 20
    b = policy(make_result("b", good, panel="x"), make_result("b", base, panel="y", environment="sat"))
    c = policy(make_result("c", base, panel="x"), make_result("c", base, panel="y", environment="sat"))
    alone = compare_pair(a.results["x"], b.results["x"])
    assert alone.conclusion == "better"
    results = compare_policies([a, b, c])
    assert len(results.comparisons) == 4
    assert results.comparisons[0].success.p_value == alone.success.p_value
    assert results.comparisons[0].p_corrected == pytest.approx(4 * alone.success.p_value)
    assert results.comparisons[0].conclusion == "no difference shown"
    assert "after Holm over 4" in results.comparisons[0].sentence


def test_dominance_is_in_the_record(make_result: Make) -> None:
    a = policy(make_result("a", [1, 0], panel="x"), make_result("a", [0, 0], panel="y", environment="sat"))
    b = policy(make_result("b", [1, 1], panel="x"), make_result("b", [0, 0], panel="y", environment="sat"))
    records = compare_policies([a, b]).record()["policies"]
    assert records[0]["dominated_by"] == ["b"]
    assert (records[1]["on_frontier"], records[1]["pareto_score"]) == (True, 0.75)


def test_figures_and_parts_get_rows(make_result: Make) -> None:
    first = make_result("a", [1, 0], components=[{"answer": 1.0}, {"answer": 0.0}], figures={"depth": 2.0})
    second = make_result("b", [1, 1], components=[{"answer": 1.0}] * 2, figures={"depth": 3.0})
    results = {c.name: c for c in compare_pair(first, second).deltas}
    assert (results["Mean depth"].baseline, results["Mean depth"].trained) == (2.0, 3.0)
    assert results["Mean depth"].improvement == 0.5
    assert results["part answer"].difference == 0.5
    assert "Accuracy (score > 0.5)" not in results  # the same as success here


def test_the_reward_that_rose_alone_is_named(make_result: Make) -> None:
    first = make_result("a", [0.1] * 20 + [1] * 20, components=[{"format": 0.1, "answer": 0.0}] * 40)
    second = make_result("b", [0.4] * 20 + [1] * 20, components=[{"format": 0.4, "answer": 0.0}] * 40)
    reward, data, oracle = diagnose(compare_pair(first, second))
    assert reward.likely is True
    assert "part format +0.300" in reward.answer
    assert data.likely is None  # success did not move at all
    assert oracle.likely is None
    assert "50.0 points are left" in oracle.answer


def test_the_oracle_says_what_is_left(make_result: Make) -> None:
    first, second = make_result("a", [1] * 96 + [0] * 4), make_result("b", [1] * 98 + [0] * 2)
    oracle = make_result("expert", [1] * 100)
    *_, cause = diagnose(compare_pair(first, second), oracle)
    assert cause.likely is True
    assert "The oracle is +4.0 points" in cause.answer
    assert "closed 50 %" in cause.answer
    *_, cause = diagnose(compare_pair(make_result("a", [0] * 100), second), oracle)
    assert cause.likely is False


def test_a_reward_that_was_still_rising(make_result: Make, tmp_path: Path) -> None:
    rows = [{"step": n, "reward/mean": 0.01 * n, "rollout/episodes": 32.0} for n in range(1, 41)]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 41, "rewa'
    (tmp_path / "metrics.jsonl").write_text(text)
    first, second = make_result("a", [1, 0] * 20), make_result("b", [1, 1] * 20, settings={"run": str(tmp_path)})
    data = diagnose(compare_pair(first, second))[1]
    assert data.likely is True
    assert "Training saw 1280 episodes, and its reward was still rising" in data.answer


def test_policies_get_distinct_names(make_result: Make, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        make_result("same", [1, 0]).write(tmp_path / folder / "r.json")
    make_result("other", [1, 0]).write(tmp_path / "o.json")
    paths = [tmp_path / "one" / "r.json", tmp_path / "two" / "r.json", tmp_path / "o.json"]
    names = [e.name for e in read_policy_results(paths)]
    assert len(set(names)) == 3
    assert [next(iter(e.results.values())).policy for e in read_policy_results(paths)] == names
    with pytest.raises(UserError, match="given twice"):
        read_policy_results([paths[0], tmp_path / "one" / ".." / "one" / "r.json"])
    with pytest.raises(UserError, match="at least two"):
        read_policy_results(paths[:1])
    make_result("same", [1, 1]).write(tmp_path / "one" / "again.json")
    with pytest.raises(UserError, match="two results on panel"):
        read_policy_results([tmp_path / "one", paths[2]])
