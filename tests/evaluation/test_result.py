"""Metrics of a result, and its file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from practicum.environment import Action
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.evaluation.multi_environment import aggregate
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import (
    EvalResult,
    attempt_result,
    pass_at_ks,
    read_result,
    read_results,
    result_from_episodes,
)
from practicum.evaluation.stats.intervals import jeffreys, rate_interval
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

Make = Callable[..., EvalResult]


def test_affines_metrics(make_result: Make) -> None:
    """Accuracy (> .5), success and non-zero scores differ where scores are graded."""
    rewards = [1.0, 0.6, 0.4, 0.0, 0.0]
    metrics = make_result("p", rewards).metrics()
    assert metrics["success_rate"] == 0.2
    assert metrics["accuracy"] == 0.4
    assert metrics["positive_rate"] == 0.6
    assert metrics["mean_reward"] == pytest.approx(0.4)
    assert metrics["std_reward"] == pytest.approx(statistics.stdev(rewards))
    assert metrics["median_reward"] == 0.4
    assert (metrics["success_low"], metrics["success_high"]) == (jeffreys(1, 5).low, jeffreys(1, 5).high)
    assert (metrics["jeffreys_low"], metrics["jeffreys_high"]) == (jeffreys(2, 5).low, jeffreys(2, 5).high)
    honest = rate_interval(rewards, range(5))
    assert (metrics["reward_low"], metrics["reward_high"]) == (honest.low, honest.high)
    assert metrics["level"] == 0.95


def test_several_attempts_give_mean_and_pass_at_k(make_result: Make) -> None:
    result = make_result("p", [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    metrics = result.metrics()
    assert metrics["success_rate"] == pytest.approx(5 / 12)
    assert [metrics[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([5 / 12, (0.5 + 1 + 0) / 3, 2 / 3])
    assert pass_at_ks(1) == []
    assert pass_at_ks(4) == [1, 2, 4]
    assert pass_at_ks(10) == [1, 2, 4, 8, 10]


def test_what_is_not_scored_is_counted_and_takes_no_part(make_result: Make) -> None:
    result = make_result("p", [1, None, 0, None])
    metrics = result.metrics()
    assert (metrics["success_rate"], metrics["errors"], metrics["valid_tasks"], metrics["total_tasks"]) == (
        0.5,
        2,
        2,
        4,
    )


@pytest.mark.parametrize("rewards", [[], [None, None]])
def test_nothing_scored_is_no_number(make_result: Make, rewards: list[None]) -> None:
    result = make_result("p", rewards)
    metrics = result.metrics()
    assert math.isnan(result.success_rate)
    assert metrics["success_rate"] is None
    assert (metrics["success_low"], metrics["success_high"]) == (0.0, 1.0)
    json.dumps(result.record(), allow_nan=False)


def test_one_task(make_result: Make) -> None:
    metrics = make_result("p", [1]).metrics()
    assert metrics["std_reward"] is None
    assert (metrics["success_low"], metrics["success_high"]) == (pytest.approx(0.025), 1.0)


def test_rewards_beyond_one_get_a_t_interval(make_result: Make) -> None:
    metrics = make_result("p", [2.0, 2.0, -1.0, 0.0]).metrics()
    assert metrics["reward_low"] < -0.1  # a rate could not
    assert metrics["reward_high"] > 1.5


def test_a_file_is_read_as_it_was_written(make_result: Make, tmp_path: Path) -> None:
    created = make_result(
        "π\ud800", [[1, 0.25], [None, 1], [0, 0]], components=[{"a": 1.0}] * 3, figures={"depth": 2.0}
    )
    path = tmp_path / "r.json"
    created.write(path)
    results = read_result(path)
    assert results.attempts == created.attempts
    assert (results.panel, results.attempts_per_task, results.num_tasks) == (
        created.panel,
        created.attempts_per_task,
        created.num_tasks,
    )
    assert results.metrics() == created.metrics()
    record = json.loads(path.read_bytes())
    assert record["aggregated_metrics"]["success_rate"] == created.success_rate  # HTDAG's jq line
    assert [row["success"] for row in record["individual_results"]] == [s.success for s in created.attempts]
    assert record["n"] == 5


def test_an_episode_becomes_an_attempt_result() -> None:
    (task,) = MathEnvironment().tasks("test", 1)
    turn = Turn(
        (Span(Origin.OBSERVATION, (1, 2)), Span(Origin.SAMPLED, (3, 4, 5), (0.0, 0.0, 0.0))), True, (), "x",
        Action("x", error="no"), ActionSource.POLICY, 0, StopReason.END, 1, 0.5, {"part": 0.5}, None,
        {"depth": 3, "valid": True, "site": "a", "share": 0.25},
    )  # fmt: skip
    episode = Trajectory(task, 2, "g", Outcome.TRUNCATED, (turn,), 0.5, {"part": 0.5}, Seeds(1, 2))
    attempt = attempt_result(episode, 1.5)
    assert (attempt.task, attempt.cluster, attempt.attempt) == (task.id, task.hash, 2)
    assert (attempt.turns, attempt.tokens, attempt.invalid_replies, attempt.seconds) == (1, 3, 1, 1.5)
    assert attempt.env_metrics == {"depth": 3.0, "share": 0.25}  # flags and names are no figures
    assert not attempt.success


def test_a_result_of_episodes_counts_what_was_not_scored() -> None:
    panel = Panel(tuple(MathEnvironment().tasks("test", 3)), 0)
    outcomes = (Outcome.SUCCESS, Outcome.TIMEOUT, Outcome.FAILURE)
    episodes = [
        Trajectory(task, 0, task.id, outcome, (), float(outcome is Outcome.SUCCESS), {}, Seeds(0, 0))
        for task, outcome in zip(panel.tasks, outcomes, strict=True)
    ]
    result = result_from_episodes("p", panel, episodes)
    assert (result.panel, result.environment, result.num_tasks, result.attempts_per_task) == (panel.hash, "math", 3, 1)
    summary = result.summary()
    assert (summary["success_rate"], summary["n"], summary["errors"], summary["level"]) == (0.5, 2, 1, 0.95)
    assert (summary["low"], summary["high"]) == (jeffreys(1, 2, 0.95).low, jeffreys(1, 2, 0.95).high)
    nothing = result_from_episodes("p", panel, episodes[1:2]).summary()
    assert (nothing["success_rate"], nothing["mean_reward"], nothing["n"], nothing["errors"]) == (None, None, 0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ('{"format": "practicum result 1", "low": NaN}', "NaN is no number"),
        ("[]", "is not a result"),
        ('{"format": "other"}', "is not a result"),
        ('{"format": "practicum result 1"}', "is damaged"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_broken_files_are_one_sentence(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=message):
        read_result(path)


@pytest.mark.parametrize(
    "harm",
    [
        lambda r: r["individual_results"][0].update(outcome="won"),
        lambda r: r["individual_results"][0].update(reward="much"),
        lambda r: r["individual_results"].append(r["individual_results"][0]),
        lambda r: r["individual_results"][0].pop("task_id"),
        lambda r: r.update(individual_results=3),
        lambda r: r.update(panel=7),
    ],
)
def test_damaged_rows_are_refused(harm: object, make_result: Make, tmp_path: Path) -> None:
    record = make_result("p", [1, 0]).record()
    harm(record)  # type: ignore[operator]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="is damaged"):
        read_result(path)


def test_folders_of_results(make_result: Make, tmp_path: Path) -> None:
    make_result("p", [1], panel="a").write(tmp_path / "a.json")
    make_result("p", [1], panel="b").write(tmp_path / "deep" / "b.json")
    (tmp_path / "other.json").write_text("{}")
    assert [e.panel for e in read_results([tmp_path])] == ["a", "b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no result below"):
        read_results([tmp_path / "empty"])
    with pytest.raises(UserError, match="There is no result"):
        read_results([tmp_path / "none.json"])


def test_aggregates_over_environments(make_result: Make) -> None:
    """Weighted by episodes, but success counts every environment the same."""
    results = aggregate(
        [make_result("p", [1, 1, 1, 0]), make_result("p", [0.6, 0.2], panel="b"), make_result("p", [None])]
    )
    assert (results.environments, results.episodes) == (2, 6)
    assert results.weighted_accuracy == pytest.approx(4 / 6)
    assert results.weighted_mean_score == pytest.approx(3.8 / 6)
    assert results.overall_success_rate == pytest.approx((0.75 + 0) / 2)
    assert math.isnan(aggregate([]).weighted_accuracy)
