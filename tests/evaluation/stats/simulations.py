"""How often intervals cover and tests reject, by exact sums or by simulation.

`python -m tests.evaluation.stats.simulations [DRAWS]` prints the tables of docs/evaluation.md; test_coverage.py checks
the same cases with fewer draws.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from practicum.evaluation.metric_delta import metric_delta
from practicum.evaluation.multi_environment import overall_interval
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.evaluation.stats.intervals import (
    Interval,
    clustered_mean,
    jeffreys,
    paired_rate_interval,
    pass_at,
    rate_interval,
)
from practicum.evaluation.stats.multiple_testing import look_penalty
from practicum.evaluation.stats.paired import mcnemar
from practicum.evaluation.stats.power import mcnemar_detectable, mcnemar_power, mcnemar_tasks_needed
from practicum.trajectory import Outcome

Rng = np.random.Generator
LEVEL = 0.95
UNEQUAL = tuple(range(1, 13)) * 3 + (3,) * 6
"""Tasks of each of 42 goals, from 1 to 12."""


@dataclass(frozen=True)
class Case:
    """A name, and one draw: whether the interval covered, or whether a difference was shown where there is none."""

    name: str
    draw: Callable[[Rng], bool]

    def share(self, draws: int, seed: int = 0) -> float:
        rng = np.random.default_rng([seed, sum(self.name.encode())])
        return float(np.mean([self.draw(rng) for _ in range(draws)]))


def holds(interval: Interval, value: float) -> bool:
    return interval.low - 1e-12 <= value <= interval.high + 1e-12


def scipys(method: str) -> Callable[[int, int, float], Interval]:
    """The interval of a rate that scipy calls so."""

    def interval(successes: int, count: int, level: float) -> Interval:
        limits = stats.binomtest(successes, count).proportion_ci(level, method)
        return Interval(max(0.0, float(limits.low)), min(1.0, float(limits.high)), level)

    return interval


def agresti_coull(successes: int, count: int, level: float) -> Interval:
    """Wald's interval with z²/2 successes and as many failures added."""
    z = float(stats.norm.ppf(0.5 + level / 2))
    total = count + z * z
    rate = (successes + z * z / 2) / total
    margin = z * math.sqrt(rate * (1 - rate) / total)
    return Interval(max(0.0, rate - margin), min(1.0, rate + margin), level)


RATE_INTERVALS: dict[str, Callable[[int, int, float], Interval]] = {
    "modified Jeffreys": jeffreys,
    "Wilson": scipys("wilson"),
    "Agresti-Coull": agresti_coull,
    "Clopper-Pearson": scipys("exact"),
}


def rate_coverage(name: str, count: int, rates: Sequence[float] | np.ndarray, level: float = LEVEL) -> np.ndarray:
    """The chance that the interval of `count` tasks holds each rate, summed over all numbers of successes."""
    limits = [RATE_INTERVALS[name](s, count, level) for s in range(count + 1)]
    low, high = (np.array([getattr(interval, end) for interval in limits]) for end in ("low", "high"))
    is_inside = (low[:, None] - 1e-12 <= np.asarray(rates)) & (np.asarray(rates) <= high[:, None] + 1e-12)
    return (stats.binom.pmf(np.arange(count + 1)[:, None], count, rates) * is_inside).sum(axis=0)


def jeffreys_coverage(count: int, rates: Sequence[float] | np.ndarray, level: float = LEVEL) -> np.ndarray:
    return rate_coverage("modified Jeffreys", count, rates, level)


def mean_width(name: str, count: int, rates: np.ndarray) -> float:
    """The width that the interval has on average, over all rates."""
    limits = [RATE_INTERVALS[name](s, count, LEVEL) for s in range(count + 1)]
    widths = np.array([interval.high - interval.low for interval in limits])
    return float((stats.binom.pmf(np.arange(count + 1)[:, None], count, rates) * widths[:, None]).sum(axis=0).mean())


def paired_coverage(gain: float, loss: float, count: int, level: float = LEVEL) -> float:
    """The chance that the interval of a paired difference holds it, summed over tasks gained and lost."""
    total = 0.0
    for gained in range(count + 1):
        for lost in range(count - gained + 1):
            mass = stats.multinomial.pmf([gained, lost, count - gained - lost], count, [gain, loss, 1 - gain - loss])
            if mass > 1e-12 and holds(paired_rate_interval(gained, lost, count, level), gain - loss):
                total += mass
    return total


def attempts_of(rng: Rng, rate: float, spread: float, sizes: Sequence[int]) -> tuple[list[float], list[int]]:
    """Success flags of clusters of these sizes, whose own rates vary by `spread` (small: much) around the rate."""
    own = rng.beta(spread * rate, spread * (1 - rate), len(sizes)) if 0 < rate < 1 else np.full(len(sizes), rate)
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    return (rng.random(len(clusters)) < own[clusters]).astype(float).tolist(), clusters.tolist()


def rate_case(name: str, rate: float, spread: float, sizes: Sequence[int]) -> Case:
    return Case(name, lambda rng: holds(rate_interval(*attempts_of(rng, rate, spread, sizes), LEVEL), rate))


def fraction_case(a: float, b: float, tasks: int) -> Case:
    def draw(rng: Rng) -> bool:
        return holds(rate_interval(rng.beta(a, b, tasks).tolist(), range(tasks), LEVEL), a / (a + b))

    return Case(f"graded score, Beta({a:g}, {b:g}), {tasks} tasks", draw)


def pass_case(k: int, tasks: int, attempts: int) -> Case:
    """Task rates are uniform, so pass@k is k / (k + 1)."""

    def draw(rng: Rng) -> bool:
        values = [pass_at(k, int(c), attempts) for c in rng.binomial(attempts, rng.random(tasks))]
        return holds(rate_interval(values, range(tasks), LEVEL), k / (k + 1))

    return Case(f"pass@{k} of {attempts} attempts, {tasks} tasks", draw)


def overall_case(rates: Sequence[float], tasks: int) -> Case:
    def draw(rng: Rng) -> bool:
        results = [make_result(f"e{n}", (rng.random(tasks) < rate).astype(float)) for n, rate in enumerate(rates)]
        return holds(overall_interval(results, LEVEL), float(np.mean(rates)))

    return Case(f"mean of {len(rates)} environments ({', '.join(map(str, rates))}), {tasks} tasks each", draw)


def mean_case() -> Case:
    clusters = np.repeat(np.arange(len(UNEQUAL)), UNEQUAL)

    def draw(rng: Rng) -> bool:
        values = rng.normal(1, 1, len(clusters)) + rng.normal(0, 1, len(UNEQUAL))[clusters]
        return holds(clustered_mean(values.tolist(), clusters.tolist(), LEVEL).interval, 1.0)

    return Case("mean on any scale, 42 goals of 1 to 12 tasks", draw)


@dataclass(frozen=True)
class Pair:
    """By-task values of two policies on the same tasks, their clusters, and what single attempts are like."""

    first: np.ndarray
    second: np.ndarray
    clusters: Sequence[int]
    share: float | None = 1.0
    attempts: int = 1

    def delta(self, alpha: float = 0.05):  # type: ignore[no-untyped-def]
        first, second = ({str(n): float(v) for n, v in enumerate(side)} for side in (self.first, self.second))
        clusters = {str(n): str(cluster) for n, cluster in enumerate(self.clusters)}
        return metric_delta("x", first, second, clusters, rate=True, level=1 - alpha, share=self.share,
                            attempts=self.attempts, draws=400)  # fmt: skip


def attempts_pair(rate: float, spread: float, tasks: int, k: tuple[int, int]) -> Callable[[Rng], Pair]:
    """Two equal policies with k attempts at tasks of different difficulty."""

    def make(rng: Rng) -> Pair:
        own = rng.beta(spread * rate, spread * (1 - rate), tasks)
        return Pair(rng.binomial(k[0], own) / k[0], rng.binomial(k[1], own) / k[1], range(tasks), 1.0, min(k))

    return make


def goals_pair(first: float, second: float, spread: float, sizes: Sequence[int]) -> Callable[[Rng], Pair]:
    """Two policies whose success depends on the goal, each in its own way."""

    def make(rng: Rng) -> Pair:
        a, clusters = attempts_of(rng, first, spread, sizes)
        b, _ = attempts_of(rng, second, spread, sizes)
        return Pair(np.array(a), np.array(b), clusters)

    return make


def shapes_pair(rate: float, tasks: int, concentration: float) -> Callable[[Rng], Pair]:
    """Scores of 0 or 1 against graded ones of the same mean."""

    def make(rng: Rng) -> Pair:
        first = (rng.random(tasks) < rate).astype(float)
        second = rng.beta(concentration * rate, concentration * (1 - rate), tasks)
        return Pair(first, second, range(tasks), None)

    return make


def difference_case(name: str, make: Callable[[Rng], Pair], difference: float = 0.0) -> Case:
    return Case(name, lambda rng: holds(make(rng).delta().interval, difference))


def level_case(name: str, make: Callable[[Rng], Pair]) -> Case:
    return Case(name, lambda rng: bool(make(rng).delta().is_significant()))


def looks_case(looks: int, tasks: int, planned: bool, differing: float = 0.3) -> Case:
    """Equal policies: tasks are added, as many as the last look asked for, until one shows."""
    alpha = 0.05 / look_penalty(looks) if planned else 0.05
    needed = functools.cache(lambda gained, lost, count: mcnemar_tasks_needed(gained / count, lost / count, alpha))

    def draw(rng: Rng) -> bool:
        count, gained, lost, more = 0, 0, 0, tasks
        for _ in range(looks):
            up, down, _ = rng.multinomial(more, [differing / 2, differing / 2, 1 - differing])
            count, gained, lost = count + more, gained + int(up), lost + int(down)
            if mcnemar(gained, lost, count) < alpha:
                return True
            expected = needed(gained, lost, count)
            more = min(20 * count, max(1, (expected or 21 * count) - count))
        return False

    return Case(f"{looks} look(s) from {tasks} tasks, {'planned' if planned else 'each at 5 %'}", draw)


def make_result(name: str, flags: np.ndarray) -> EvalResult:
    attempts = tuple(
        AttemptResult(f"t{n}", f"c{n}", 0, Outcome.SUCCESS if flag else Outcome.FAILURE, float(flag), 1, 1, 0)
        for n, flag in enumerate(flags)
    )
    return EvalResult(name, "e", name, len(flags), 1, attempts)


COVERAGE = (
    rate_case("success, 20 tasks x 8 attempts, 40 %", 0.4, 2, (8,) * 20),
    rate_case("success, 20 tasks x 8 attempts, 10 %", 0.1, 3, (8,) * 20),
    rate_case("success, 80 tasks x 4 attempts, 40 %", 0.4, 0.5, (4,) * 80),
    rate_case("success, 80 tasks x 4 attempts, 2 %", 0.02, 1, (4,) * 80),
    rate_case("success, 42 goals of 1 to 12 tasks, 40 %", 0.4, 0.5, UNEQUAL),
    rate_case("success, 42 goals of 1 to 12 tasks, 5 %", 0.05, 2, UNEQUAL),
    fraction_case(2, 3, 60),
    fraction_case(2, 3, 10),
    fraction_case(0.5, 0.5, 60),
    fraction_case(8, 2, 20),
    pass_case(2, 40, 4),
    pass_case(4, 40, 4),
    overall_case((0.5, 0.9, 0.05), 50),
    overall_case((0.0, 1.0, 0.3), 100),
    mean_case(),
    difference_case("difference, 8 attempts each, 20 tasks", attempts_pair(0.4, 2, 20, (8, 8))),
    difference_case("difference, 1 attempt against 8, 50 tasks", attempts_pair(0.4, 2, 50, (1, 8))),
    difference_case("difference, 42 goals, 30 % to 50 %", goals_pair(0.3, 0.5, 0.5, UNEQUAL), 0.2),
    difference_case("difference, 42 goals, 90 % to 97 %", goals_pair(0.9, 0.97, 0.5, UNEQUAL), 0.07),
    difference_case("difference, 0 or 1 against graded, 30 %, 50 tasks", shapes_pair(0.3, 50, 4)),
)
LEVELS = (
    level_case("42 goals of 1 to 12 tasks", goals_pair(0.4, 0.4, 0.5, UNEQUAL)),
    level_case("10 goals of 8 tasks", goals_pair(0.4, 0.4, 1, (8,) * 10)),
    level_case("8 attempts each, 20 tasks", attempts_pair(0.4, 2, 20, (8, 8))),
    level_case("1 attempt against 8, 10 %, 20 tasks", attempts_pair(0.1, 50, 20, (1, 8))),
    level_case("0 or 1 against graded, 10 %, 20 tasks", shapes_pair(0.1, 20, 10)),
    level_case("0 or 1 against graded, 10 %, 50 tasks", shapes_pair(0.1, 50, 10)),
    level_case("0 or 1 against graded, 50 %, 20 tasks", shapes_pair(0.5, 20, 4)),
)
LOOKS = tuple(looks_case(looks, 60, True) for looks in (1, 2, 3, 5))
UNPLANNED = tuple(looks_case(looks, 60, False) for looks in (2, 3, 5))
PAIRED = ((0.15, 0.05, 100), (0.1, 0.1, 60), (0.3, 0.05, 20), (0.02, 0.0, 20), (0.0, 0.0, 20), (0.05, 0.0, 60),
          (0.6, 0.3, 10), (1.0, 0.0, 5))  # fmt: skip


def mcnemar_level(differing: float, count: int, alpha: float = 0.05) -> float:
    """How often McNemar's test rejects where nothing differs, summed exactly."""
    return mcnemar_power(differing / 2, differing / 2, count, alpha)


def detectable_power(count: int) -> float:
    """The power that the promised difference has, where tasks are lost as seldom as the promise assumes."""
    loss = 0.5 / (count + 1)
    smallest = mcnemar_detectable(loss, count)
    return mcnemar_power(loss + smallest, loss, count) if math.isfinite(smallest) else math.nan


def main(draws: int) -> None:
    rates = np.linspace(0.0, 1.0, 2001)
    print(f"| tasks | {' | '.join(RATE_INTERVALS)} |\n|---|{'---|' * len(RATE_INTERVALS)}")
    for count in (10, 20, 30, 50, 100, 300, 400, 1000):
        cells = []
        for name in RATE_INTERVALS:
            limits = rate_coverage(name, count, rates)
            shares = f"{100 * limits.mean():.1f} {100 * limits.min():.1f} {100 * limits.max():.0f}"
            cells.append(f"{shares}, {100 * mean_width(name, count, rates):.1f}")
        print(f"| {count} | {' | '.join(cells)} |")
    print("\n| difference of success | tasks | coverage |\n|---|---|---|")
    for gain, loss, count in PAIRED:
        coverage = 100 * paired_coverage(gain, loss, count)
        print(f"| gained {100 * gain:.0f} %, lost {100 * loss:.0f} % | {count} | {coverage:.1f} % |")
    print(f"\n| {draws:,} draws | covered |\n|---|---|")
    for case in COVERAGE:
        print(f"| {case.name} | {100 * case.share(draws):.1f} % |", flush=True)
    print("\n| nothing differs | shown |\n|---|---|")
    for count in (10, 20, 50, 100, 300):
        values = ", ".join(f"{100 * mcnemar_level(differing, count):.1f} %" for differing in (0.1, 0.3, 0.6, 0.9, 1.0))
        print(f"| McNemar, {count} tasks, 10, 30, 60, 90, 100 % differ | {values} |")
    for case in (*LEVELS, *LOOKS, *UNPLANNED):
        print(f"| {case.name} | {100 * case.share(draws):.1f} % |", flush=True)
    print("\n| tasks | detectable | its power |\n|---|---|---|")
    for count in (8, 9, 10, 20, 50, 300):
        smallest = mcnemar_detectable(0.5 / (count + 1), count)
        result = (
            f"{100 * smallest:.1f} points | {100 * detectable_power(count):.1f} %"
            if math.isfinite(smallest)
            else "none | –"
        )
        print(f"| {count} | {result} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
