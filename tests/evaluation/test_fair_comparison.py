"""When a comparison may speak: equal settings, scored episodes, independent tasks, planned looks, one answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from practicum.evaluation.compare import Conclusion, compare_pair, compare_policies
from practicum.evaluation.diagnosis import diagnose
from practicum.evaluation.gates import Gate
from practicum.evaluation.multi_environment import frontier_shares, overall_interval
from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult, read_result, task_goal
from practicum.evaluation.stats.paired import mcnemar_exact
from practicum.task import Task

Make = Callable[..., EvalResult]


def policy(result: EvalResult, *more: EvalResult) -> PolicyResults:
    return PolicyResults(result.policy, {e.panel: e for e in (result, *more)})


def test_other_decoding_settings_give_no_verdict_and_no_gate(make_result: Make) -> None:
    """The same weights, greedy and sampled, or cut after 12 tokens: formerly 'worse'."""
    greedy = {"stage": "sft", "temperature": 0.0, "top_p": 1.0, "max_tokens": 256, "seed": 0}
    sampled = {**greedy, "temperature": 1.0, "max_tokens": 12}
    first, second = make_result("a", [1] * 60, settings=greedy), make_result("b", [0] * 60, settings=sampled)
    results = compare_pair(first, second)
    assert results.conclusion is Conclusion.SETTINGS_DIFFER
    assert not results.significant
    assert "temperature 0.0 and 1.0, max_tokens 256 and 12" in results.sentence
    assert "--different-settings" in results.sentence
    assert results.decision.gate is Gate.WITHHELD
    assert results.record()["differing_settings"] == {"temperature": [0.0, 1.0], "max_tokens": [256, 12]}
    expected = compare_pair(first, second, different_settings=True)
    assert expected.conclusion == "worse"
    assert "The settings differ: temperature 0.0 and 1.0" in expected.sentence
    gain = compare_pair(second, first, different_settings=True)
    assert gain.conclusion == "better"
    assert gain.decision.gate is Gate.WITHHELD  # a deployment needs the same settings on both sides


def test_a_script_samples_nothing_so_its_settings_do_not_count(make_result: Make) -> None:
    expert = make_result("expert", [1] * 20, settings={"stage": "scripted", "temperature": 0.0})
    assert compare_pair(make_result("a", [0] * 20, settings={"temperature": 1.0}), expert).conclusion == "better"


def test_unscored_episodes_cannot_buy_a_verdict(make_result: Make) -> None:
    """150 of 300 solved; the trained policy errs on 60 of those and gains 30: formerly '+12.5, deploy'."""
    baseline = make_result("a", [1] * 150 + [0] * 150)
    trained = make_result("b", [None] * 60 + [1] * 90 + [1] * 30 + [0] * 120)
    results = compare_pair(baseline, trained)
    assert results.conclusions_both_ways == (Conclusion.BETTER, Conclusion.WORSE)
    assert results.conclusion is Conclusion.NOT_KNOWN
    assert results.decision.gate is Gate.WITHHELD
    assert "Not known: 0 and 60 attempts have no score" in results.sentence
    assert "as failures: -10.0 points" in results.sentence
    record = json.loads(json.dumps(results.record(), allow_nan=False))
    assert record["verdict"] == "not known"
    assert record["unscored_as_failures"]["difference"] == pytest.approx(-0.1)


def test_a_few_unscored_episodes_that_change_nothing_leave_the_verdict(make_result: Make) -> None:
    results = compare_pair(make_result("a", [0] * 100), make_result("b", [None] * 2 + [1] * 60 + [0] * 38))
    assert results.conclusion == "better"
    assert results.unscored_as_failures is not None
    assert results.unscored_as_failures.trained == pytest.approx(0.6)


def test_unscored_ways_are_both_corrected_over_all_comparisons(make_result: Make) -> None:
    base, good = [0] * 40, [None] + [1] * 6 + [0] * 33
    alone = compare_pair(make_result("a", base), make_result("b", good))
    assert alone.conclusion == "better"
    several = [policy(make_result("a", base))]
    several += [policy(make_result(name, good if name == "b" else base)) for name in "bcdefg"]
    first = compare_policies(several).comparisons[0]
    assert first.p_corrected_failures == pytest.approx(6 * alone.p_corrected_failures)
    assert first.conclusion == "no difference shown"


def test_interval_and_verdict_agree_for_few_tasks_all_gained(make_result: Make) -> None:
    """Formerly 'No difference shown ... [+20.7, +100]' and '5 tasks show a difference of 117.7 points'."""
    comparison = compare_pair(make_result("a", [0] * 6), make_result("b", [1] * 6))
    assert (comparison.conclusion, comparison.success.p_value, comparison.success.test) == (
        "better",
        0.03125,
        "exact McNemar",
    )
    assert comparison.success.interval.low > 0
    assert comparison.record()["tests"]["exact McNemar"] == mcnemar_exact(6, 0) == 0.03125
    five = compare_pair(make_result("a", [0] * 5), make_result("b", [1] * 5))
    assert five.conclusion == "no difference shown"
    assert five.success.interval.low <= 0
    assert "show no difference, however large" in five.power_statement
    sixth = compare_pair(make_result("a", [0] * 6), make_result("b", [1] * 5 + [0]))
    assert (sixth.conclusion, sixth.success.p_value, sixth.success.test) == ("better", 0.03125, "mid-p McNemar")
    assert sixth.record()["tests"]["exact McNemar"] == 0.0625


@pytest.mark.parametrize("count", [3, 4, 5, 6, 8, 10, 20, 50, 100])
def test_the_interval_excludes_zero_exactly_where_the_test_rejects(count: int, make_result: Make) -> None:
    rng = np.random.default_rng(count)
    for _ in range(25):
        first, second = ((rng.random(count) < rate).astype(float).tolist() for rate in rng.random(2))
        delta = compare_pair(make_result("a", first), make_result("b", second)).success
        excludes_zero = delta.interval.low > 0 or delta.interval.high < 0
        assert excludes_zero == delta.is_significant() == (delta.p_value < 0.05)


def test_variants_of_one_goal_are_one_unit(make_result: Make) -> None:
    """300 tasks of 6 goals: what one goal gives, its variants repeat."""
    goals = [f"goal {n // 50}" for n in range(300)]
    first = make_result("a", [0] * 300, goals=goals)
    second = make_result("b", [1] * 200 + [0] * 100, goals=goals)
    results = compare_pair(first, second)
    assert (results.success.num_tasks, results.success.num_clusters) == (300, 6)
    assert results.conclusion == "no difference shown"  # 4 of 6 goals: p = 2 / 2^4
    assert "300 tasks of 6 goals" in results.sentence
    assert compare_pair(make_result("a", [0] * 300), make_result("b", [1] * 200 + [0] * 100)).conclusion == "better"
    narrow, wide = make_result("b", [1] * 200 + [0] * 100).interval(), second.interval()
    assert wide.high - wide.low > 5 * (narrow.high - narrow.low)
    assert (second.num_goals, first.metrics()["goals"]) == (6, 6)
    attempts = make_result("c", [[1, 0]] * 100 + [[0, 0]] * 100, goals=[f"goal {n // 50}" for n in range(200)])
    alone = make_result("c", [[1, 0]] * 100 + [[0, 0]] * 100)
    sizes = [e.pass_at_interval(2).high - e.pass_at_interval(2).low for e in (attempts, alone)]
    assert sizes[0] > 3 * sizes[1]


def test_the_goal_is_a_text_of_the_task_and_survives_the_file(make_result: Make, tmp_path: Path) -> None:
    assert task_goal(Task("t", "agentgym:textcraft", "test", {"goal": "oak door", "variant": 2})) == "oak door"
    assert task_goal(Task("t", "gui", "test", {"goal": [{"is": "pressed"}]})) is None
    assert task_goal(Task("t", "math", "test", {"question": "2 + 2"})) is None
    make_result("a", [1, 0], goals=["x", "x"]).write(tmp_path / "a.json")
    assert read_result(tmp_path / "a.json").num_goals == 1
    record = json.loads((tmp_path / "a.json").read_bytes())
    for row in record["individual_results"]:
        del row["goal"]  # a file written before goals were recorded
    (tmp_path / "a.json").write_text(json.dumps(record))
    assert read_result(tmp_path / "a.json").num_goals is None


def test_one_look_does_not_offer_another(make_result: Make) -> None:
    pair = make_result("a", [1, 0] * 50), make_result("b", [1, 0] * 39 + [0, 1] * 2 + [1, 1] * 9)
    once = compare_pair(*pair)
    assert once.conclusion == "better"
    planned = compare_pair(*pair, looks=4)
    assert planned.conclusion == "no difference shown"
    assert planned.success.interval.level > 1 - 0.05 / 4
    assert "Each of the 4 planned looks is tested at 0.93 %, so that all together keep 5 %" in planned.power_statement
    assert f"about {planned.success.num_more_tasks} more tasks would show it" in planned.power_statement
    few = compare_pair(make_result("a", [1, 0] * 10), make_result("b", [1, 0] * 9 + [1, 1]))
    assert "This look used the whole 5 %" in few.power_statement
    assert "more tasks" not in few.power_statement
    assert few.record()["more_tasks_to_settle"] is None


def test_a_policy_that_got_worse_closed_nothing(make_result: Make) -> None:
    """Formerly 'training closed 100 %' for a policy 29 points worse than a baseline as good as the oracle."""
    baseline, worse = make_result("a", [1] * 100), make_result("b", [1] * 71 + [0] * 29)
    *_, cause = diagnose(compare_pair(baseline, worse), make_result("expert", [1] * 100))
    assert "training went 29.0 points the other way" in cause.answer
    *_, cause = diagnose(compare_pair(baseline, make_result("b", [1] * 100)), make_result("expert", [1] * 100))
    assert "no distance that training could close" in cause.answer


def test_seconds_are_not_tested_and_nothing_scored_is_said(make_result: Make) -> None:
    deltas = {
        delta.name: delta for delta in compare_pair(make_result("a", [1, 0] * 9), make_result("b", [1] * 18)).deltas
    }
    assert math.isnan(deltas["Mean seconds"].p_value)
    assert deltas["Mean seconds"].record()["p_value"] is None
    comparison = compare_pair(make_result("a", [None] * 3), make_result("b", [1] * 3))
    assert comparison.conclusion is Conclusion.NOT_KNOWN
    assert "nothing can be compared" in comparison.sentence
    assert comparison.decision.gate is Gate.WITHHELD


def test_overall_success_pass_at_k_and_the_frontier_have_intervals(make_result: Make) -> None:
    a = policy(make_result("a", [1, 0] * 20, panel="x"), make_result("a", [0] * 40, panel="y", environment="sat"))
    b = policy(make_result("b", [1, 1] * 20, panel="x"), make_result("b", [0] * 39 + [1], panel="y", environment="sat"))
    limits = overall_interval(list(a.results.values()))
    assert 0.15 < limits.low < 0.25 < limits.high < 0.36
    interval = a.results["x"].interval()
    assert limits.high - limits.low < interval.high - interval.low  # two environments tell more than one
    shares = frontier_shares([a, b])
    assert (shares["a"], shares["b"]) == (0.0, 1.0)
    close = policy(make_result("c", [1, 0] * 20, panel="x"), make_result("c", [0] * 38 + [1] * 2, panel="y"))
    shares = frontier_shares([b, close])
    assert shares["b"] == 1.0
    assert 0.3 < (shares["c"] or 0) < 0.9  # better in one environment, and not surely so
    record = compare_policies([a, b]).record()["policies"][1]
    assert record["frontier_share"] == 1.0
    assert record["aggregate"]["overall_low"] < record["aggregate"]["overall_success_rate"]
    metrics = make_result("k", [[1, 0], [0, 0], [1, 1], [0, 1]]).metrics()
    assert metrics["pass@2_low"] < metrics["pass@2"] < metrics["pass@2_high"]  # type: ignore[operator]
