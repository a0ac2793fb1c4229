"""Every sign has a stream that shows it and one beside it that does not; healthy runs show none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from practicum.config.health import HealthSettings
from practicum.errors import UserError
from practicum.training.monitor.change_points import fall_to_nothing, reversals
from practicum.training.monitor.health import (
    ACT,
    WARN,
    Adjustment,
    HealthFinding,
    HealthMonitor,
    checked_values,
)
from practicum.training.rollout_source import repetition

Metrics = dict[str, float]
RECORDED = Path(__file__).parent / "quickstart_metrics.json"


def healthy(seed: int, steps: int = 100, begin: float = 0.25, end: float = 0.95) -> Iterator[Metrics]:
    """A run that learns: binary rewards of 16 tasks of uneven difficulty, 8 chains each, and all that goes with it."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        share = begin + (end - begin) / (1 + math.exp(-(step - 0.4 * steps) / (0.12 * steps)))
        rewards = rng.random((16, 8)) < rng.beta(2 * share, 2 * (1 - share), 16)[:, None]
        failed = float(rng.random() < 0.1)
        yield {
            "reward/mean": float(rewards.mean()),
            "reward/std": float(rewards.std(ddof=1)),
            "success/mean": float(rewards.mean()),
            "rollout/groups": 16.0,
            "rollout/episodes": 128.0,
            "outcome/timeout": failed,
            "outcome/env_error": 0.0,
            "rollout/dead_groups": float((rewards.all(1) | ~rewards.any(1)).mean()),
            "rollout/repetition": 0.05 + 0.05 * rng.random(),
            "rollout/length_clipped": 0.1 * rng.random(),
            "actor/entropy": 0.5 * math.exp(-step / 60) * (0.7 + 0.6 * rng.random()),
            "actor/kl": 0.0006 * step + 0.02 * rng.random(),
            "actor/ppo_kl": 1e-3 * rng.normal(),
            "actor/pg_clipfrac": 0.15 * rng.random(),
            "mismatch/logprob/mean": 1e-3 * rng.random(),
            "memory/rss_mb": 3000 - 500 * math.exp(-step / 3) + 20 * rng.normal(),
        }


Change = Callable[[int, Metrics, np.random.Generator], Metrics]


def watch(change: Change, settings: HealthSettings | None = None, steps: int = 100) -> dict[str, list[tuple[int, str]]]:
    """Step and severity of what is found in a healthy run that is changed in one respect, by sign."""
    monitor, rng = HealthMonitor(settings or HealthSettings()), np.random.default_rng(7)
    results: dict[str, list[tuple[int, str]]] = {}
    for step, metrics in enumerate(healthy(0, steps)):
        for finding in monitor.observe(step, metrics | change(step, metrics, rng)):
            results.setdefault(finding.sign, []).append((step, finding.severity))
    return results


def returns(smallest: float, largest: float) -> Change:
    """Episodes paid 0 or 1, and targets of the critic in that range."""
    values = {"reward/min": 0.0, "reward/max": 1.0, "critic/returns/min": smallest, "critic/returns/max": largest}
    return lambda step, metrics, rng: values


def constant(name: str, value: float) -> Change:
    return lambda step, metrics, rng: {name: value}


def reward(mean: Callable[[int], float], noise: float = 0.06, std: float = 0.4, success: float = 0.3) -> Change:
    return lambda step, metrics, rng: {
        "reward/mean": mean(step) + noise * rng.normal(),
        "reward/std": std,
        "success/mean": success,
        "rollout/dead_groups": 0.5,
    }


def success(rate: Callable[[int], float]) -> Change:
    return lambda step, metrics, rng: {"success/mean": rate(step), "rollout/dead_groups": 0.5}


def entropy(value: Callable[[int], float], success: float = 0.5) -> Change:
    return lambda step, metrics, rng: {
        "actor/entropy": value(step),
        "success/mean": success,
        "rollout/dead_groups": 0.5,
    }


def memory(value: Callable[[int], float]) -> Change:
    return lambda step, metrics, rng: {"memory/rss_mb": value(step) + 20 * rng.normal()}


def square(period: int, low: float, high: float) -> Callable[[int], float]:
    return lambda step: high if step // (period // 2) % 2 else low


@dataclass(frozen=True)
class Case:
    """One sign: a stream that shows it, how severe it is there, and streams close to it that do not show it."""

    sign: str
    bad: Change
    severities: set[str]
    near: list[Change]


CASES = [
    Case(
        "reward_flat",
        reward(lambda step: 0.3),
        {WARN},
        [
            reward(lambda step: 0.3 + 0.004 * step),  # slow, but it rises
            reward(lambda step: 0.3, success=0.95),  # nothing left to gain
            reward(lambda step: 0.3, noise=0.4),  # too noisy to say that it does not rise
            reward(lambda step: 0.3 + 0.0008 * step, noise=0.002),  # little, but surely
        ],
    ),
    Case("reward_flat", reward(lambda step: 0.0, noise=0.0, std=0.0), {WARN}, [reward(lambda step: 0.02 * step)]),
    Case(
        "reward_flat",
        reward(lambda step: 0.9 - 0.006 * step),  # a reward that falls does not rise either
        {WARN},
        [reward(lambda step: 0.2 + 0.006 * step)],
    ),
    Case(
        "reward_oscillating",
        reward(square(6, 0.15, 0.85)),
        {WARN, ACT},
        [
            reward(square(6, 0.3, 0.6)),  # swings, but within what single episodes differ by
            reward(lambda step: 0.1 if step < 50 else 0.9),  # one steep rise
            reward(square(6, 0.50, 0.51), noise=0.0, std=0.0),  # the last digits of a constant
        ],
    ),
    Case("reward_oscillating", reward(square(12, 0.15, 0.85)), {WARN}, [reward(square(80, 0.15, 0.85))]),
    Case(
        "success_collapse",
        success(lambda step: 0.8 if step < 20 else 0.0),
        {ACT},
        [
            success(lambda step: 0.8 if step < 20 else 0.5),  # less, but not by half
            success(lambda step: 0.0 if step == 20 else 0.8),  # one bad step
            success(lambda step: 0.1 if step < 2 else 0.0 if step < 5 else 0.05),  # three of 32 may have been luck
            success(lambda step: 0.0),  # it never succeeded
        ],
    ),
    Case("kl_high", constant("actor/kl", 0.11), {WARN}, [constant("actor/kl", 0.099)]),
    Case("kl_high", constant("actor/kl", 0.51), {ACT}, []),
    Case(
        "entropy_collapse",
        entropy(lambda step: 0.5 if step < 10 else 0.04),
        {WARN},
        [
            entropy(lambda step: 0.5 if step < 10 else 0.06),
            entropy(lambda step: 0.5 if step < 10 else 0.04, success=0.95),  # sure of itself, and right
            entropy(lambda step: 0.04 if step % 5 else 0.3),  # averaged over a few steps
        ],
    ),
    Case("entropy_collapse", entropy(lambda step: 0.0019), {ACT}, [entropy(lambda step: 0.0021)]),
    Case("clip_fraction_high", constant("actor/pg_clipfrac", 0.31), {WARN}, [constant("actor/pg_clipfrac", 0.29)]),
    Case("clip_fraction_high", constant("actor/pg_clipfrac", 0.61), {ACT}, []),
    Case(
        "clip_fraction_high",
        lambda step, metrics, rng: {"actor/pg_clipfrac": 0.4 if 20 <= step < 25 else 0.1},
        {WARN},
        [lambda step, metrics, rng: {"actor/pg_clipfrac": 0.9 if step == 20 else 0.1}],  # one step is averaged out
    ),
    Case(
        "dead_groups",
        lambda step, metrics, rng: {"rollout/dead_groups": 0.95, "success/mean": 0.02},
        {WARN},
        [lambda step, metrics, rng: {"rollout/dead_groups": 0.85, "success/mean": 0.02}],
    ),
    Case("dead_groups", lambda step, metrics, rng: {"rollout/dead_groups": 1.0, "success/mean": 0.0}, {ACT}, []),
    Case("dead_groups", lambda step, metrics, rng: {"rollout/dead_groups": 1.0, "success/mean": 1.0}, {WARN}, []),
    Case("repetition_high", constant("rollout/repetition", 0.31), {WARN}, [constant("rollout/repetition", 0.29)]),
    Case("repetition_high", constant("rollout/repetition", 0.61), {ACT}, []),
    Case(
        "invalid_replies_high",
        lambda step, metrics, rng: {"rollout/invalid_replies": 0.9 if step >= 20 else 0.1},
        {ACT},
        [
            constant("rollout/invalid_replies", 0.45),
            lambda step, metrics, rng: {"rollout/invalid_replies": 0.9 if step == 20 else 0.1},  # one step
        ],
    ),
    Case("invalid_replies_high", constant("rollout/invalid_replies", 0.95), {WARN}, []),  # it never could
    Case(
        "length_clipped", constant("rollout/length_clipped", 0.31), {WARN}, [constant("rollout/length_clipped", 0.29)]
    ),
    Case("length_clipped", constant("rollout/length_clipped", 0.61), {ACT}, []),
    Case("mismatch_high", constant("mismatch/logprob/mean", 0.021), {WARN}, [constant("mismatch/logprob/mean", 0.019)]),
    Case("mismatch_high", constant("mismatch/logprob/mean", 0.11), {ACT}, []),
    Case("errors_high", constant("outcome/env_error", 14.0), {WARN}, [constant("outcome/env_error", 11.0)]),
    Case("errors_high", constant("outcome/engine_error", 66.0), {ACT}, []),
    Case("returns_out_of_range", returns(-0.6, 0.9), {WARN}, [returns(-0.4, 1.4)]),
    Case("returns_out_of_range", returns(0.1, 3.1), {ACT}, []),
    Case(
        "memory_growing",
        memory(lambda step: 3000 + 8 * step),
        {WARN},
        [
            memory(lambda step: 3000 + 3 * step),
            memory(lambda step: 3000 + (800 if step > 50 else 0)),  # one jump is no leak
            memory(lambda step: 3000 + 200 * math.sin(step / 3)),
        ],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sign)
def test_each_sign_is_seen_and_its_neighbour_is_not(case: Case) -> None:
    results = watch(case.bad)
    assert {severity for _, severity in results.pop(case.sign, [])} == case.severities
    assert results == {}  # and nothing else
    for change in case.near:
        assert case.sign not in watch(change)


def test_a_sign_is_dated_by_the_metric_and_not_by_the_mean_over_several_steps() -> None:
    """Success is 0 and all groups are alike from step 2 on; means over five steps are known at step 5 or later."""
    monitor = HealthMonitor(HealthSettings())
    results: dict[tuple[str, str], tuple[int, int | None, str]] = {}
    for step in range(1, 12):
        gone = {"success/mean": 0.0, "reward/mean": 0.0, "rollout/dead_groups": 1.0, "actor/entropy": 0.001}
        well = {"success/mean": 0.8, "reward/mean": 0.8, "rollout/dead_groups": 0.2, "actor/entropy": 0.5}
        metrics = {"reward/std": 0.4, "rollout/groups": 16.0, **(well if step == 1 else gone)}
        for finding in monitor.observe(step, metrics):
            results.setdefault((finding.sign, finding.severity), (step, finding.since, finding.sentence(step)))
    assert set(results) == {("success_collapse", ACT), ("dead_groups", ACT), ("entropy_collapse", ACT)}
    assert {since for _, since, _ in results.values()} == {2}
    step, _, sentence = results["success_collapse", ACT]
    assert step < 5 < results["dead_groups", ACT][0]
    assert ", since step 2)" in sentence


COLLAPSING = {
    "success/mean": [0.396, 0.375, 0.0625, 0.0, 0.0, 0.0417, 0.0, 0.0],
    "rollout/invalid_replies": [0.019, 0.031, 0.100, 0.134, 0.179, 0.134, 0.951, 0.905],
    "rollout/dead_groups": [0.875, 0.625, 0.875, 1.0, 1.0, 0.875, 1.0, 1.0],
}
"""A GRPO run of eight tasks a step with a learning rate that was too high."""


def test_a_short_run_that_collapses_is_reported_in_three_steps_and_dated_at_the_first() -> None:
    monitor = HealthMonitor(HealthSettings())
    results: dict[str, tuple[int, str, int | None]] = {}
    texts: dict[str, str] = {}
    for step in range(1, 9):
        metrics = {name: values[step - 1] for name, values in COLLAPSING.items()}
        for finding in monitor.observe(step, {**metrics, "rollout/groups": 8.0}):
            results.setdefault(finding.sign, (step, finding.severity, finding.since))
            texts.setdefault(finding.sign, finding.sentence(step))
    assert results == {
        "success_collapse": (6, ACT, 3),
        "dead_groups": (7, WARN, 7),
        "invalid_replies_high": (8, ACT, 7),
    }
    assert "(dead_groups 0.95 as the mean of steps 3 to 7, limit 0.9)" in texts["dead_groups"]


@pytest.mark.parametrize(("groups", "rate", "since"), [(8, 0.4, 12), (16, 0.3, 30), (32, 0.15, 8)])
def test_a_fall_to_nothing_is_found_within_three_steps(groups: int, rate: float, since: int) -> None:
    late = 0
    for seed in range(20):
        points = noisy_success(seed, groups, rate, since - 1)
        fallen = [(since + step, 0.0, float(groups)) for step in range(12)]
        falls = [fall_to_nothing([*points, *fallen[:count]]) for count in range(1, 13)]
        first = next(step for step, fall in enumerate(falls) if fall is not None)
        late += first > 3
        assert abs(falls[-1].since - since) <= 1 if falls[-1] else False
    assert late <= 2


def noisy_success(seed: int, groups: int, rate: float, steps: int) -> list[tuple[int, float, float]]:
    """A steady rate with as much noise as there can be: all chains of a task end alike."""
    solved = np.random.default_rng(seed).binomial(groups, rate, steps)
    return [(step, count / groups, float(groups)) for step, count in enumerate(solved, 1)]


def test_steady_runs_of_few_tasks_are_seldom_reported_as_collapsed() -> None:
    alarms = runs = 0
    for groups, rate, steps in ((4, 0.1, 40), (8, 0.1, 40), (8, 0.4, 60), (16, 0.2, 60), (8, 0.7, 60)):
        for seed in range(60):
            monitor, runs = HealthMonitor(HealthSettings()), runs + 1
            observed = (
                monitor.observe(step, {"success/mean": share, "rollout/groups": count})
                for step, share, count in noisy_success(seed, groups, rate, steps)
            )
            alarms += any(finding.sign == "success_collapse" for falls in observed for finding in falls)
    assert runs == 300
    assert alarms <= 5


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_shows_nothing(seed: int) -> None:
    monitor = HealthMonitor(HealthSettings())
    assert [finding for step, metrics in enumerate(healthy(seed)) for finding in monitor.observe(step, metrics)] == []


@pytest.mark.parametrize("run", json.loads(RECORDED.read_text()).values(), ids=list(json.loads(RECORDED.read_text())))
def test_recorded_quickstarts_show_nothing(run: Mapping[str, list[float | None]]) -> None:
    """Metrics that `practicum quickstart` wrote: two ordinary runs and one that learned slowly (27 % to 63 %)."""
    monitor = HealthMonitor(HealthSettings())
    for step in range(100):
        metrics = {name: value for name, values in run.items() if (value := values[step]) is not None}
        assert monitor.observe(step, metrics) == []


def test_a_recorded_run_whose_reward_is_shuffled_is_flat() -> None:
    """The same numbers without their order: the noise is real, the rise is gone."""
    run = json.loads(RECORDED.read_text())["seed 0"]
    monitor, results = HealthMonitor(HealthSettings()), []
    for step, index in enumerate(np.random.default_rng(0).permutation(100)):
        results += monitor.observe(
            step, {name: run[name][index] for name in ("reward/mean", "reward/std", "success/mean")}
        )
    assert {finding.sign for finding in results} == {"reward_flat"}
    assert "look at the reward function" in results[0].remedy


def test_few_tasks_a_step_are_no_oscillation() -> None:
    """The mean over four tasks swings by luck; the number of groups says so."""
    seen = []
    for groups in ({}, {"rollout/groups": 4.0}):
        rng, monitor = np.random.default_rng(3), HealthMonitor(HealthSettings())
        signs = set()
        for step in range(100):
            rewards = rng.random((4, 8)) < rng.beta(0.3, 0.3, 4)[:, None]
            metrics = {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std(ddof=1)), **groups}
            signs |= {finding.sign for finding in monitor.observe(step, metrics)}
        seen.append("reward_oscillating" in signs)
    assert seen == [True, False]


def test_what_a_flat_reward_means_depends_on_what_was_before() -> None:
    def causes(mean: Callable[[int], float]) -> list[str]:
        monitor, rng = HealthMonitor(HealthSettings()), np.random.default_rng(1)
        metrics = ({"reward/mean": mean(step) + 0.02 * rng.normal(), "reward/std": 0.4} for step in range(150))
        return [finding.cause for step, m in enumerate(metrics) for finding in monitor.observe(step, m)]

    assert set(causes(lambda step: 0.3)) == {"the reward has not risen from the start"}
    assert set(causes(lambda step: min(0.7, 0.2 + 0.01 * step))) == {"the reward rose and no longer does"}
    assert set(causes(lambda step: 0.8 - 0.004 * step)) == {"the reward falls"}


def test_kl_falls_back_on_that_of_one_update() -> None:
    assert checked_values({"actor/ppo_kl": 0.6})["kl"] == 0.6
    assert checked_values({"actor/kl": 0.01, "actor/ppo_kl": 0.6})["kl"] == 0.01


def test_unscored_episodes_are_counted_against_all() -> None:
    counts = {"outcome/timeout": 2.0, "outcome/judge_error": 1.0, "rollout/episodes": 12.0}
    assert checked_values(counts)["errors"] == 0.25
    assert "errors" not in checked_values({"outcome/timeout": 2.0})
    assert "errors" not in checked_values({"rollout/episodes": 12.0})


def test_what_is_missing_or_not_finite_is_not_judged() -> None:
    monitor = HealthMonitor(HealthSettings())
    for step in range(100):
        assert monitor.observe(step, {"reward/mean": 0.5, "actor/kl": math.nan, "memory/rss_mb": math.inf}) == []
    assert monitor.observe(100, {}) == []


@pytest.mark.parametrize(
    ("ids", "n", "share"),
    [
        ([], 4, 0.0),
        ([1, 2, 3], 4, 0.0),
        ([1, 2, 3, 4, 5], 4, 0.0),
        ([7] * 8, 4, 0.8),  # 5 4-grams, one distinct
        ([1, 2, 1, 2, 1], 2, 0.5),  # 12 21 12 21
        ([1, 2, 3, 4, 9, 1, 2, 3, 4], 4, 1 / 6),
    ],
)
def test_repetition(ids: list[int], n: int, share: float) -> None:
    assert repetition(ids, n) == pytest.approx(share)


def kl_stream(values: list[float], settings: HealthSettings) -> list[tuple[int, str]]:
    monitor = HealthMonitor(settings)
    return [(step, f.severity) for step, kl in enumerate(values) for f in monitor.observe(step, {"actor/kl": kl})]


def test_a_sign_that_persists_is_repeated_now_and_then() -> None:
    settings = HealthSettings(repeat_every=10)
    assert kl_stream([0.2] * 25, settings) == [(0, WARN), (10, WARN), (20, WARN)]
    assert kl_stream([0.2, 0.0] * 8, settings) == [(0, WARN), (10, WARN)]  # coming and going does not flood either


def test_what_is_to_be_acted_on_is_said_at_once() -> None:
    settings = HealthSettings(repeat_every=10)
    assert kl_stream([0.2] * 3 + [0.6] * 12, settings) == [(0, WARN), (3, ACT), (13, ACT)]
    assert kl_stream([0.6, 0.6, 0.0, 0.6], settings) == [(0, ACT), (3, ACT)]  # back again is new


def test_an_act_limit_below_the_warn_limit_still_acts() -> None:
    assert kl_stream([0.3], HealthSettings(kl_warn=0.4, kl_act=0.2)) == [(0, ACT)]


def test_the_sentence_says_what_why_and_what_to_do() -> None:
    (finding,) = HealthMonitor(HealthSettings()).observe(12, {"actor/kl": 0.625})
    assert finding.sentence(12) == (
        "Step 12 (act): training is unstable (kl_high 0.625, limit 0.5); halve the clip range (0.2 to 0.1)."
    )


def adjustments(settings: HealthSettings, streams: list[Metrics]) -> list[tuple[int, Adjustment]]:
    monitor, results = HealthMonitor(settings), []
    for step, metrics in enumerate(streams):
        if (due := monitor.adjustment(monitor.observe(step, metrics))) is not None:
            results.append((step, due))
    return results


ADJUST = HealthSettings(action="adjust", repeat_every=1, cooldown=20, max_adjustments=3)


def test_the_papers_steps() -> None:
    assert adjustments(ADJUST, [{"actor/kl": 0.6}]) == [(0, Adjustment(1.0, 0.5))]
    assert adjustments(ADJUST, [{"actor/pg_clipfrac": 0.7}] * 5) == [(4, Adjustment(1 / 3, 1.0))]
    swings = [{"reward/mean": float(step % 2), "reward/std": 0.1} for step in range(10)]
    assert adjustments(ADJUST, swings) == [(7, Adjustment(1 / 3, 1.0))]
    both = [{"actor/kl": 0.6 if step == 4 else 0.0, "actor/pg_clipfrac": 0.7} for step in range(5)]
    assert adjustments(ADJUST, both) == [(4, Adjustment(1 / 3, 0.5))]


def test_a_remedy_needs_time_and_has_an_end() -> None:
    steps = [step for step, _ in adjustments(ADJUST, [{"actor/kl": 0.6}] * 200)]
    assert steps == [0, 20, 40]
    assert adjustments(replace(ADJUST, max_adjustments=0), [{"actor/kl": 0.6}] * 50) == []


def test_one_adjustment_a_step_however_often_it_is_asked_for() -> None:
    monitor = HealthMonitor(ADJUST)
    findings = monitor.observe(0, {"actor/kl": 0.6})
    assert monitor.adjustment(findings) == Adjustment(1.0, 0.5)
    assert monitor.adjustment(findings) is None


def test_warnings_and_signs_without_a_remedy_adjust_nothing() -> None:
    assert adjustments(ADJUST, [{"actor/kl": 0.2}] * 5) == []
    assert adjustments(ADJUST, [{"mismatch/logprob/mean": 0.5}] * 5) == []


@pytest.mark.parametrize(("action", "adjusts", "stops"), [("warn", 0, 0), ("adjust", 1, 0), ("stop", 0, 1)])
def test_each_action_does_its_own(action: str, adjusts: int, stops: int) -> None:
    monitor = HealthMonitor(HealthSettings(action=action))
    mild, bad = monitor.observe(0, {"actor/kl": 0.2}), monitor.observe(1, {"actor/kl": 0.6, "actor/pg_clipfrac": 0.0})
    assert monitor.adjustment(mild) is None
    assert monitor.should_stop(mild) is None
    assert (monitor.adjustment(bad) is not None) == bool(adjusts)
    assert (monitor.should_stop(bad) == bad[0]) == bool(stops)


def troubled(seed: int, steps: int) -> list[Metrics]:
    """A run in which everything goes wrong at some time, with metrics that come and go."""
    rng, results = np.random.default_rng(seed), []
    for step, metrics in enumerate(healthy(seed, steps, 0.25, 0.6)):
        metrics |= {"memory/rss_mb": 3000 + 9 * step + 10 * rng.normal(), "actor/entropy": 0.5 * 0.9**step}
        if step % 30 > 12:
            metrics |= {"actor/kl": 0.4 + 0.2 * rng.random(), "actor/pg_clipfrac": 0.5 + 0.3 * rng.random()}
        if step > 20:
            metrics |= {"reward/mean": 0.1 + 0.8 * float(rng.random() < 0.5), "outcome/timeout": float(step)}
        results.append({name: value for name, value in metrics.items() if rng.random() < 0.97})
    return results


def follow(
    monitor: HealthMonitor, begin: int, stream: list[Metrics]
) -> list[tuple[list[HealthFinding], Adjustment | None]]:
    return [
        (findings := monitor.observe(step, metrics), monitor.adjustment(findings))
        for step, metrics in enumerate(stream, begin)
    ]


def restored(monitor: HealthMonitor) -> HealthMonitor:
    result = HealthMonitor(monitor.settings)
    result.restore(json.loads(json.dumps(monitor.state(), allow_nan=False)))
    return result


def test_a_resumed_run_finds_the_same_to_the_bit() -> None:
    settings, stream = HealthSettings(action="adjust", repeat_every=3, cooldown=7, max_adjustments=5), troubled(1, 80)
    for metrics in stream:
        metrics.pop("memory/rss_mb", None)  # a process's own, see below
    full = HealthMonitor(settings)
    expected = follow(full, 0, stream)
    assert len({finding.sign for findings, _ in expected for finding in findings}) >= 5
    assert sum(due is not None for _, due in expected) >= 3
    resumed = HealthMonitor(settings)
    for step, metrics in enumerate(stream):  # resumed before every step
        resumed = restored(resumed)
        assert follow(resumed, step, [metrics]) == expected[step : step + 1]
    assert resumed.state() == full.state()
    for num_before in (1, 37):  # resumed once
        before = HealthMonitor(settings)
        first = follow(before, 0, stream[:num_before])
        after = restored(before)
        assert first + follow(after, num_before, stream[num_before:]) == expected
        assert after.state() == full.state()


def test_memory_is_a_processs_own_and_no_part_of_the_state() -> None:
    monitor = HealthMonitor(HealthSettings())
    findings = [monitor.observe(step, {"memory/rss_mb": 3000.0 + 20 * step}) for step in range(60)]
    assert "memory_growing" in {finding.sign for results in findings for finding in results}
    assert "memory" not in json.dumps(monitor.state())


def test_a_state_is_a_copy() -> None:
    monitor = HealthMonitor(HealthSettings())
    monitor.observe(0, {"actor/kl": 0.6, "reward/mean": 0.5, "reward/std": 0.1})
    state = monitor.state()
    kept = json.dumps(state)
    monitor.observe(1, {"actor/kl": 0.6, "reward/mean": 0.5, "reward/std": 0.1})
    other = HealthMonitor(HealthSettings())
    other.restore(state)
    other.observe(1, {"actor/kl": 0.6, "reward/mean": 0.7, "reward/std": 0.1})
    assert json.dumps(state) == kept


def test_histories_do_not_grow() -> None:
    monitor = HealthMonitor(HealthSettings())
    for step in range(500):
        monitor.observe(step, troubled_once(step))
    assert max(len(points) for points in monitor.state()["series"].values()) == 60
    assert max(len(values) for values in monitor.state()["starts"].values()) == 5


def troubled_once(step: int) -> Metrics:
    return {"reward/mean": step % 7 / 7, "reward/std": 0.3, "actor/entropy": 0.1, "memory/rss_mb": 1000.0 + step}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"action": "wran"}, "health.action=wran is unknown. Did you mean 'warn'?"),
        ({"action": "pray"}, "Known: adjust, stop, warn."),
        ({"smooth": 0}, "at least 1"),
        ({"reward_flat_after": 70}, "at most health.reward_flat_window"),
        ({"memory_window": 2}, "at least 6"),
    ],
)
def test_wrong_settings_are_an_error_in_the_configuration(override: dict[str, object], message: str) -> None:
    config = OmegaConf.merge(OmegaConf.structured(HealthSettings), override)
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        HealthMonitor(OmegaConf.to_object(config))  # type: ignore[arg-type]


def test_settings_go_through_the_configuration() -> None:
    config = OmegaConf.merge(OmegaConf.structured(HealthSettings), {"action": "stop", "kl_act": 1})
    assert OmegaConf.to_object(config) == HealthSettings(action="stop", kl_act=1.0)


@pytest.mark.parametrize(
    ("values", "size", "count"),
    [
        ([], 1.0, 0),
        ([0, 1, 2, 3, 9], 1.0, 0),  # steep, never back
        ([0, 1, 0, 1, 0], 1.0, 3),  # the first rise is no reversal
        ([0, 1, 0, 1, 0], 1.1, 0),
        ([0, 0.6, 0.4, 1.0, 0.5, 0.1, 0.5, 0.9], 0.8, 2),  # 0 up to 1, down to 0.1, up to 0.9
        ([1, 0, 1, 0], 1.0, 2),
    ],
)
def test_reversals_of_a_series_are_counted(values: list[float], size: float, count: int) -> None:
    assert reversals(values, size) == count
