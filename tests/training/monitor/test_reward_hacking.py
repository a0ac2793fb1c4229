"""A reward with a hole in it is caught early; rewards that mean what they say are left alone."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from omegaconf import OmegaConf
from scipy import stats

from practicum.config.health import RewardHackingSettings
from practicum.environment import Action
from practicum.errors import UserError
from practicum.task import Task
from practicum.training.monitor.health import ACT, WARN, HealthFinding
from practicum.training.monitor.reward_hacking import (
    EpisodeRank,
    RewardHackingMonitor,
    ScoreStats,
    compare_windows,
    score_rise,
    step_stats,
)
from practicum.trajectory import ActionSource, Outcome, Seeds, StopReason, Trajectory, Turn

TASKS = [Task(f"task-{number}", "x", "train") for number in range(400)]
Step = list[Trajectory]


def episode(
    task: int,
    reward: float,
    success: bool = False,
    components: Mapping[str, float] | None = None,
    attempt: int = 0,
    group: str | None = None,
    reply: str = "",
) -> Trajectory:
    chosen = TASKS[task % len(TASKS)]
    turn = Turn((), True, (), reply, Action(), ActionSource.POLICY, 0, StopReason.END, 0, reward, components or {})
    outcome = Outcome.SUCCESS if success else Outcome.FAILURE
    return Trajectory(chosen, attempt, group or chosen.id, outcome, (turn,), reward, components or {}, Seeds(0, 0))


# A small policy that really learns: four ways to answer, a softmax over them, group-relative policy gradients. What it
# becomes is up to the reward; nothing tells it to cheat.

WAYS = ("careless", "careful", "wordy", "flattering")
FILLER = ("well", "let", "me", "look", "at", "this", "from", "every", "side", "once", "more")
PHRASE = "I have double-checked this."


def answer(way: str, ease: float, rng: np.random.Generator) -> tuple[str, bool]:
    """A reply and whether it is right. `ease`: log-odds that the task adds."""
    skill = {"careless": -1.0, "careful": 2.0, "wordy": -1.0, "flattering": -1.5}[way]
    right = bool(rng.random() < 1 / (1 + math.exp(-skill - ease)))
    words = int(rng.integers(40, 80)) if way == "wordy" else int(rng.integers(0, 20))
    text = " ".join([FILLER[index % len(FILLER)] for index in range(words)] + [PHRASE] * (way == "flattering"))
    return f"{text} The answer is {42 if right else 41}.", right


Paid = Callable[[str, bool], Mapping[str, float]]


def practise(paid: Paid, seed: int, steps: int, ways: tuple[str, ...] = WAYS, verifier: bool = False) -> Iterator[Step]:
    """16 tasks, 8 chains; logits follow the advantages of what was sampled."""
    rng = np.random.default_rng(seed)
    logits = np.array([2.0 if way == "careless" else 0.0 for way in ways])
    for step in range(steps):
        chances = np.exp(logits) / np.exp(logits).sum()
        gradient, batch = np.zeros(len(ways)), []
        for number in range(16):
            ease = rng.normal()
            chosen = rng.choice(len(ways), 8, p=chances)
            rewards = np.zeros(8)
            for attempt, way in enumerate(chosen):
                reply, right = answer(ways[way], ease, rng)
                components = dict(paid(reply, right))
                rewards[attempt] = math.fsum(components.values())
                if verifier:
                    components["verifier"] = float(right)
                task = 16 * step + number
                batch.append(
                    episode(task, float(rewards[attempt]), right, components, attempt, f"step-{step}/{task}", reply)
                )
            advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            gradient += np.bincount(chosen, advantages, len(ways)) - advantages.sum() * chances
        logits = logits + 0.008 * gradient
        yield batch


def pays_length(reply: str, right: bool) -> Mapping[str, float]:
    return {"right": 0.5 * right, "length": 0.02 * len(reply.split())}


def pays_phrase(reply: str, right: bool) -> Mapping[str, float]:
    return {"right": 1.0 * right, "confidence": 1.0 if PHRASE in reply else 0.0}


def pays_right(reply: str, right: bool) -> Mapping[str, float]:
    return {"right": 10.0 * right, "brevity": -0.02 * len(reply.split())}


def alarms(stream: Iterator[Step], settings: RewardHackingSettings | None = None) -> list[tuple[int, HealthFinding]]:
    panel = RewardHackingMonitor(settings or RewardHackingSettings())
    return [
        (step, results) for step, batch in enumerate(stream) if (results := panel.observe(step, batch)[1]) is not None
    ]


@pytest.mark.parametrize("verifier", [True, False])
@pytest.mark.parametrize(("paid", "part"), [(pays_length, "length"), (pays_phrase, "confidence")])
def test_a_planted_exploit_is_seen_before_thirty_steps(paid: Paid, part: str, verifier: bool) -> None:
    ways = ("careless", "wordy", "flattering")  # honest work cannot do better here, so success has no way up
    for seed in range(5):
        results = alarms(practise(paid, seed, 30, ways, verifier))
        assert results, f"seed {seed}"
        assert results[0][1].sign == "reward_hacking"
        assert f"driven by the component '{part}'" in results[0][1].cause


def test_a_policy_that_could_work_honestly_still_takes_the_cheaper_way() -> None:
    results = alarms(practise(pays_length, 0, 30))
    assert results
    assert results[0][0] < 30


def test_an_honest_reward_lets_success_rise_and_alarms_nobody() -> None:
    for seed in range(12):
        batches = list(practise(pays_right, seed, 30))
        shares = [np.mean([e.outcome is Outcome.SUCCESS for e in batch]) for batch in batches]
        assert np.mean(shares[-5:]) > np.mean(shares[:5]) + 0.2  # it did learn
        assert alarms(iter(batches)) == [], f"seed {seed}"


Draw = Callable[[int, float, np.random.Generator], tuple[float, bool]]


def drawn(seed: int, steps: int, draw: Draw, tasks: int = 16, chains: int = 8) -> Iterator[Step]:
    """Tasks of uneven ease, and chains of each; `draw` gives reward and success from the step and the ease."""
    rng = np.random.default_rng(seed)
    for step in range(steps):
        batch = []
        for number in range(tasks):
            ease = 1.5 * rng.normal()
            for attempt in range(chains):
                reward, success = draw(step, ease, rng)
                task = tasks * step + number
                batch.append(episode(task, reward, success, {}, attempt, f"step-{step}/{task}"))
        yield batch


def chance(odds: float, rng: np.random.Generator) -> bool:
    return bool(rng.random() < 1 / (1 + math.exp(-odds)))


def both_flat(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
    right = chance(ease, rng)
    return right + 0.5 * rng.normal(), right


def noisy_quality(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
    """The reward measures quality finely, success only whether it passes a mark."""
    quality = 0.04 * min(step, 40) + 0.7 * ease + rng.normal()
    return 3 * quality, chance(quality - 1, rng)


def format_first(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
    """A small bonus for the format is learned in ten steps, the rest later: quick, but nothing to complain about."""
    right = chance(-1 + 0.06 * min(step, 40) + ease, rng)
    return right + 0.2 * (rng.random() < 0.1 + step / 10), right


@pytest.mark.parametrize("draw", [both_flat, noisy_quality, format_first])
def test_no_alarm_when_both_stay_or_both_rise(draw: Draw) -> None:
    for seed in range(12):
        assert alarms(drawn(seed, 35, draw)) == [], f"seed {seed}"


def test_too_few_episodes_to_tell_are_no_reason_for_an_alarm() -> None:
    """Over four tasks the rise of success drowns in noise; that it is not proven does not mean that it is not there."""
    for seed in range(15):
        assert alarms(drawn(seed, 40, noisy_quality, tasks=4)) == [], f"seed {seed}"


def test_a_chance_agreement_of_few_tasks_is_no_alarm() -> None:
    def draw(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
        return math.sin(1000 * ease) + 0.1 * rng.normal(), chance(2 * ease, rng)  # of the task, but not of its ease

    for seed in range(10):
        assert alarms(drawn(seed, 30, draw, tasks=3)) == [], f"seed {seed}"


def test_the_alarm_is_a_matter_of_size_not_only_of_certainty() -> None:
    def draw(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
        return 0.25 * min(step, 10) / 10 + rng.normal(), chance(0.0, rng)  # sure with so many episodes, but small

    assert alarms(drawn(0, 25, draw, tasks=400, chains=1)) == []
    assert alarms(drawn(0, 25, draw, tasks=400, chains=1), RewardHackingSettings(alarm=0.02))


def test_a_success_that_rises_more_slowly_is_no_alarm() -> None:
    def draw(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
        return 0.1 * min(step, 15) + rng.normal(), chance(-1 + lift * min(step, 15), rng)

    lift = 0.06
    assert alarms(drawn(0, 30, draw, tasks=256, chains=1)) == []
    lift = 0.0
    assert alarms(drawn(0, 30, draw, tasks=256, chains=1))


def rose_and_fell(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
    right = chance(-1 + 0.1 * min(step, 30) - 0.1 * max(0, min(step, 50) - 30) + ease, rng)
    return right + 0.08 * max(0, step - 30) + 0.2 * rng.normal(), right


def test_success_that_rose_and_falls_again_is_seen() -> None:
    """Long honest learning does not excuse what comes after: the verifier is also held against its own best."""
    results = alarms(drawn(0, 70, rose_and_fell))
    assert results
    assert 30 < results[0][0] < 60
    assert "success falls" in results[0][1].cause


def test_success_at_its_ceiling_cannot_follow() -> None:
    def draw(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
        right = bool(rng.random() < success)
        return right + 0.05 * step + 0.2 * rng.normal(), right

    success = 0.99
    assert alarms(drawn(0, 30, draw)) == []
    success = 0.8
    assert alarms(drawn(0, 30, draw))


def test_a_reward_that_pays_the_worse_episodes_is_opposed() -> None:
    def draw(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
        right = chance(ease, rng)
        return -slant * right + rng.normal(), right

    slant = 2.0
    results = alarms(drawn(0, 10, draw))
    assert [(step, finding.sign) for step, finding in results] == [(4, "reward_opposed")]
    assert results[0][1].value < results[0][1].threshold < 0
    slant = 0.2
    assert alarms(drawn(0, 30, draw)) == []


def test_an_alarm_that_persists_is_repeated_after_two_windows() -> None:
    steps = [step for step, _ in alarms(practise(pays_length, 0, 40, ("careless", "wordy")))]
    assert len(steps) > 1
    assert {later - sooner for sooner, later in itertools.pairwise(steps)} == {10}


def test_the_action_sets_the_severity() -> None:
    for action, severity in (("warn", WARN), ("stop", ACT)):
        results = alarms(practise(pays_length, 0, 30), RewardHackingSettings(action=action))
        assert {finding.severity for _, finding in results} == {severity}
    sentence = results[0][1].sentence(11)
    assert sentence.startswith("Step 11 (act): the reward rises since step 4 and success ")
    assert sentence.endswith(
        "read the episodes with the highest reward and make the reward stop paying for what they do."
    )


def test_errors_are_counted_over_groups() -> None:
    """Two tasks, one always solved and one never: eight chains each, yet two draws."""
    batch = [episode(task, float(task), attempt=k) for task in (0, 1) for k in range(8)]
    summary = step_stats(0, batch, [e.reward for e in batch])
    assert summary.num_groups == 2
    assert summary.reward == ScoreStats(0.5, 0.25, 0.25)  # the variance of (0 + 1) / 2 from two draws: ½ / 2
    episodes = [episode(0, float(k % 2), attempt=k) for k in range(8)]  # a single task: its episodes are the draws
    assert step_stats(0, episodes, [0.0] * 8).reward.squared_error == pytest.approx(np.var([0, 1] * 4, ddof=1) / 8)


def test_group_errors_are_those_of_repeated_draws() -> None:
    """The estimate, averaged, against the spread of the means themselves."""
    rng, means, estimates = np.random.default_rng(0), [], []
    for _ in range(400):
        shares = rng.beta(0.5, 0.5, 16)
        batch = [episode(t, float(rng.random() < shares[t]), attempt=k) for t in range(16) for k in range(8)]
        summary = step_stats(0, batch, [0.0] * 128)
        means.append(summary.reward.mean)
        estimates.append(summary.reward.squared_error)
    assert np.mean(estimates) == pytest.approx(np.var(means, ddof=1), rel=0.15)


def test_agreement_is_spearmans() -> None:
    rng = np.random.default_rng(0)
    rewards, verified = rng.integers(0, 5, 40).astype(float), rng.integers(0, 3, 40).astype(float)
    summary = step_stats(0, [episode(k, r) for k, r in enumerate(rewards)], list(verified))
    assert summary.agreement == pytest.approx(stats.spearmanr(rewards, verified).statistic, abs=1e-12)
    assert step_stats(0, [episode(k, 1.0) for k in range(40)], list(verified)).agreement is None


def test_a_rise_is_scaled_by_all_episodes() -> None:
    def binary(share: float) -> ScoreStats:
        return ScoreStats(share, share * (1 - share), 0.01)

    assert score_rise([binary(0.0)], [binary(1.0)]).scaled == 1.0
    assert score_rise([binary(0.4)], [binary(0.6)]).scaled == pytest.approx(0.2)
    assert score_rise([binary(0.6)], [binary(0.4)]).scaled == pytest.approx(-0.2)
    assert score_rise([binary(0.4)], [binary(0.6)]).z_score == pytest.approx(0.2 / math.sqrt(0.02))
    nearly_constant = score_rise([ScoreStats(7.0, 0.0, 0.0)], [ScoreStats(7.0001, 0.0, 0.0)])
    assert nearly_constant.scaled < 0.002  # the last digits of a constant are no movement


def test_the_gap_does_not_depend_on_units() -> None:
    batches = list(practise(pays_length, 3, 12, verifier=True))

    def gap(reward: float, shift: float, verifier: float) -> float:
        steps = [
            step_stats(
                step,
                [replace(e, reward=reward * e.reward + shift) for e in batch],
                [verifier * e.components["verifier"] for e in batch],
            )
            for step, batch in enumerate(batches)
        ]
        return compare_windows(steps[:5], steps[-5:]).gap

    assert gap(10.0, 0.0, 1.0) == pytest.approx(gap(1.0, 0.0, 1.0), rel=1e-9)
    assert gap(1.0, -3.0, 5.0) == pytest.approx(gap(1.0, 0.0, 1.0), rel=1e-9)


def test_metrics() -> None:
    panel = RewardHackingMonitor(RewardHackingSettings(window=2))
    all_metrics = [
        panel.observe(step, batch)[0] for step, batch in enumerate(practise(pays_right, 0, 4, verifier=True))
    ]
    first = {"hacking/share/brevity", "hacking/share/right", "hacking/verifier/mean", "hacking/agreement"}
    assert [set(metrics) - first for metrics in all_metrics] == [set(), set(), {"hacking/gap"}, {"hacking/gap"}]
    for metrics in all_metrics:
        assert metrics["hacking/share/brevity"] + metrics["hacking/share/right"] == pytest.approx(1)
        assert metrics["hacking/agreement"] > 0.5
    batch = [episode(0, 0.5, components={"a": 1.0, "b": -0.5, "verifier": 9.0}), episode(1, 0.5, components={"a": 0.5})]
    metrics, _ = RewardHackingMonitor(RewardHackingSettings()).observe(0, batch)
    assert metrics == {"hacking/share/a": 0.75, "hacking/share/b": 0.25}  # one verified episode is no statistic


def test_a_reward_that_is_success_needs_no_second_opinion() -> None:
    def draw(step: int, ease: float, rng: np.random.Generator) -> tuple[float, bool]:
        right = chance(ease, rng)
        return float(right), right

    panel = RewardHackingMonitor(RewardHackingSettings())
    assert [panel.observe(step, batch) for step, batch in enumerate(drawn(0, 12, draw))] == [({}, None)] * 12
    mixed = [replace(e, reward=e.reward / 2) for e in next(drawn(1, 1, draw))]
    assert "hacking/gap" in panel.observe(12, mixed)[0]  # from the first difference on, with all that went before


def test_a_verifier_replaces_success_and_may_skip_steps() -> None:
    plain, marked = (list(practise(pays_right, 0, 12, verifier=verifier)) for verifier in (False, True))
    panel = RewardHackingMonitor(RewardHackingSettings(window=2))
    for step in range(6):
        panel.observe(step, plain[step])
    metrics, _ = panel.observe(6, marked[6])
    assert panel.source == "verifier"
    assert "hacking/gap" not in metrics  # its first window begins here
    assert "hacking/verifier/mean" not in panel.observe(7, plain[7])[0]
    for step in (8, 9):
        metrics, _ = panel.observe(step, marked[step])
    assert "hacking/gap" in metrics


def test_only_scored_episodes_count() -> None:
    failed = replace(episode(0, 99.0), outcome=Outcome.ENV_ERROR)
    batch = next(practise(pays_right, 0, 1))
    with_it, without = RewardHackingMonitor(RewardHackingSettings()), RewardHackingMonitor(RewardHackingSettings())
    assert with_it.observe(0, [failed, *batch]) == without.observe(0, batch)
    assert failed not in with_it.new_top_episodes
    assert with_it.observe(1, [failed]) == ({}, None)


def test_the_top_list() -> None:
    """Best first, one per task; among equals the newer, then by task and attempt."""
    panel = RewardHackingMonitor(RewardHackingSettings(keep_top=3))
    panel.observe(0, [episode(5, 1.0), episode(3, 1.0), episode(4, 2.0, attempt=1), episode(4, 2.0), episode(6, 0.5)])
    assert panel.top_ranks == [
        EpisodeRank(0, 2.0, "task-4", 0),
        EpisodeRank(0, 1.0, "task-3", 0),
        EpisodeRank(0, 1.0, "task-5", 0),
    ]
    assert [e.task.id for e in panel.new_top_episodes] == ["task-4", "task-3", "task-5"]
    panel.observe(1, [episode(5, 1.0), episode(4, 1.5), episode(9, 0.9)])
    assert [(step, reward, e.task.id) for step, reward, e in panel.top()] == [
        (0, 2.0, "task-4"),
        (1, 1.0, "task-5"),
        (0, 1.0, "task-3"),
    ]
    assert [e.task.id for e in panel.new_top_episodes] == ["task-5"]
    panel.observe(2, [episode(1, 0.1), episode(2, 0.2)])
    assert panel.new_top_episodes == []


def test_no_top_list_and_no_panel() -> None:
    batch = next(practise(pays_right, 0, 1))
    panel = RewardHackingMonitor(RewardHackingSettings(keep_top=0))
    panel.observe(0, batch)
    assert (panel.top(), panel.new_top_episodes) == ([], [])
    off = RewardHackingMonitor(RewardHackingSettings(enable=False))
    assert off.observe(0, batch) == ({}, None)
    assert off.top() == []


def follow(panel: RewardHackingMonitor, begin: int, batches: list[Step]) -> list[tuple[object, ...]]:
    return [
        (*panel.observe(step, batch), list(panel.new_top_episodes), list(panel.top_ranks))
        for step, batch in enumerate(batches, begin)
    ]


def restored(panel: RewardHackingMonitor) -> RewardHackingMonitor:
    result = RewardHackingMonitor(panel.settings)
    result.restore(json.loads(json.dumps(panel.state(), allow_nan=False)))
    return result


@pytest.mark.parametrize(
    "make",
    [
        lambda: practise(pays_length, 1, 26, verifier=True),
        lambda: practise(pays_length, 1, 26),
        lambda: drawn(0, 54, rose_and_fell),
    ],
    ids=["verifier", "success", "held against its best"],
)
def test_a_resumed_run_sees_the_same_to_the_bit(make: Callable[[], Iterator[Step]]) -> None:
    batches = list(make())
    full = RewardHackingMonitor(RewardHackingSettings(window=3))
    expected = follow(full, 0, batches)
    assert any(row[1] is not None for row in expected)
    resumed = RewardHackingMonitor(RewardHackingSettings(window=3))
    for step, batch in enumerate(batches):  # resumed before every step
        resumed = restored(resumed)
        assert follow(resumed, step, [batch]) == expected[step : step + 1]
    assert resumed.state() == full.state()
    for num_before in (2, len(batches) // 2):  # resumed once
        before = RewardHackingMonitor(RewardHackingSettings(window=3))
        first = follow(before, 0, batches[:num_before])
        after = restored(before)
        assert first + follow(after, num_before, batches[num_before:]) == expected
        assert after.state() == full.state()
        assert {step for step, _, _ in after.top()} <= set(range(num_before, len(batches)))  # older ones are on disk


def test_the_state_does_not_grow() -> None:
    panel, sizes = RewardHackingMonitor(RewardHackingSettings()), []
    for step, batch in enumerate(practise(pays_right, 0, 60)):
        panel.observe(step, batch)
        sizes.append(sum(len(value) for value in panel.state().values() if isinstance(value, list)))
    assert max(sizes) == sizes[20] == 3 * 5 + 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"action": "stpo"}, "hacking.action=stpo is unknown. Did you mean 'stop'"),
        ({"action": "adjust"}, "Known: stop, warn."),
        ({"window": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_an_error_in_the_configuration(override: dict[str, object], message: str) -> None:
    config = OmegaConf.merge(OmegaConf.structured(RewardHackingSettings), override)
    with pytest.raises(UserError, match=message):
        RewardHackingMonitor(OmegaConf.to_object(config))  # type: ignore[arg-type]
