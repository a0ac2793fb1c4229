"""The health of a training run: known bad signs, looked for in the metrics of every step.

`HealthMonitor` reads metrics and gives findings. It changes nothing itself: with `action=adjust` it says by what the
learning rate and the clip range should be multiplied, with `action=stop` which finding should end the run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from practicum.errors import UserError, did_you_mean
from practicum.evaluation.stats.trend import reversals, trend
from practicum.trajectory import Outcome

ACTIONS = ("warn", "adjust", "stop")
WARN, ACT = "warn", "act"


@dataclass
class HealthSettings:
    """What counts as a bad sign, and what happens then. `_warn` is worth saying; `_act` is worth acting on."""

    action: str = "warn"  # warn: say it; adjust: also lower the learning rate or the clip range; stop: end the run
    repeat_every: int = 10  # steps before a sign that persists is said again
    cooldown: int = 20  # steps before the same remedy is applied again
    max_adjustments: int = 3  # remedies applied over the whole run
    smooth: int = 5  # steps that noisy metrics are averaged over
    saturated: float = 0.9  # share of successes from which a flat reward or a low entropy is no bad sign
    reward_flat: float = 0.2  # smallest rise that counts, in standard deviations of the episodes' rewards
    reward_flat_window: int = 60  # steps looked back on, at most
    reward_flat_after: int = 30  # steps before the reward is judged
    reward_swing: float = 1.0  # size of a swing, in standard deviations of the episodes' rewards
    reward_swing_window: int = 30  # steps looked back on
    reward_swings_warn: int = 3  # times the reward may turn back by that much
    reward_swings_act: int = 5
    kl_warn: float = 0.1  # KL to the reference, or of one update where there is no reference
    kl_act: float = 0.5
    entropy_share: float = 0.1  # share of the first steps' entropy below which there is a warning
    entropy_floor: float = 0.002  # nats a token below which sampling no longer explores
    clip_fraction_warn: float = 0.3  # share of tokens at the clip
    clip_fraction_act: float = 0.6
    dead_groups_warn: float = 0.9  # share of groups without any difference to learn from
    dead_groups_act: float = 0.99
    repetition_warn: float = 0.3  # share of 4-grams in a reply that were there before
    repetition_act: float = 0.6
    length_clipped_warn: float = 0.3  # share of replies cut by the token limit
    length_clipped_act: float = 0.6
    mismatch_warn: float = 0.02  # mean |engine - learner| log-prob a token
    mismatch_act: float = 0.1
    errors_warn: float = 0.1  # share of episodes that could not be scored
    errors_act: float = 0.5
    memory_slope: float = 5.0  # MB a step
    memory_window: int = 30  # steps looked back on

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise UserError(f"health.action={self.action} is unknown.{did_you_mean(self.action, ACTIONS)}")
        if min(self.repeat_every, self.cooldown, self.smooth) < 1 or self.max_adjustments < 0:
            raise UserError("health.repeat_every, cooldown and smooth must be at least 1, max_adjustments at least 0.")
        if self.reward_flat_after < 3 or self.reward_flat_window < self.reward_flat_after:
            raise UserError("health.reward_flat_after must be at least 3 and at most health.reward_flat_window.")
        if min(self.reward_swing_window, self.memory_window) < 6:
            raise UserError("health.reward_swing_window and health.memory_window must be at least 6 steps.")


@dataclass(frozen=True)
class Finding:
    """A bad sign: what was seen, where the line is, why it happens, and what helps (one clause each)."""

    sign: str
    severity: str
    value: float
    threshold: float
    cause: str
    remedy: str

    def sentence(self, step: int) -> str:
        """One line for a person."""
        seen = f"{self.sign} {self.value:.3g}, limit {self.threshold:.3g}"
        return f"Step {step} ({self.severity}): {self.cause} ({seen}); {self.remedy}."


@dataclass(frozen=True)
class Adjustment:
    """What to multiply the learning rate and the clip range by, from now on."""

    lr_scale: float = 1.0
    clip_scale: float = 1.0


SCALES = {"lr": Adjustment(lr_scale=1 / 3), "clip": Adjustment(clip_scale=1 / 2)}
"""The founding papers' steps: learning rate 3e-4 to 1e-4, clip range 0.2 to 0.1."""

REMEDIES = {"reward_oscillating": "lr", "clip_fraction_high": "lr", "kl_high": "clip"}
"""Signs that one of the two steps helps against. The other signs need a person."""

METRICS = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "success": "success/mean",
    "groups": "rollout/groups",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "dead_groups": "rollout/dead_groups",
    "repetition": "rollout/repetition",
    "length_clipped": "rollout/length_clipped",
    "mismatch": "mismatch/logprob/mean",
    "memory": "memory/rss_mb",
}
"""Our short name of each metric that is read as it stands."""


def repetition(ids: Sequence[int], n: int = 4) -> float:
    """Share of a reply's n-grams that occurred in it before: 0 when all differ, near 1 in a loop."""
    count = len(ids) - n + 1
    return 1.0 - len(set(zip(*(ids[start:] for start in range(n)), strict=False))) / count if count > 0 else 0.0


def readings(metrics: Mapping[str, float]) -> dict[str, float]:
    """The numbers that are judged, by short name. Those that are missing or not finite are left out."""
    found = {name: float(metrics[key]) for name, key in METRICS.items() if key in metrics}
    kl = metrics.get("actor/kl", metrics.get("actor/ppo_kl"))
    if kl is not None:
        found["kl"] = float(kl)
    failed = [metrics[f"outcome/{o.value}"] for o in Outcome if not o.scored and f"outcome/{o.value}" in metrics]
    episodes = metrics.get("rollout/episodes", 0.0)
    if failed and episodes > 0:
        found["errors"] = math.fsum(failed) / episodes
    return {name: value for name, value in found.items() if math.isfinite(value)}


Points = list[tuple[int, float]]


@dataclass
class Past:
    """What a sign is judged by: the last points of every reading, and the first few values of some."""

    series: dict[str, Points] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)

    def remember(self, step: int, values: Mapping[str, float], settings: HealthSettings) -> None:
        longest = max(
            settings.smooth, settings.reward_flat_window, settings.reward_swing_window, settings.memory_window
        )
        for name, value in values.items():
            self.series[name] = [*self.series.get(name, []), (step, value)][-longest:]
        for name in ("reward", "entropy"):
            start = self.starts.setdefault(name, [])
            if name in values and len(start) < settings.smooth:
                start.append(values[name])

    def last(self, name: str, count: int) -> list[float]:
        return [value for _, value in self.series.get(name, [])[-count:]]

    def smoothed(self, name: str, count: int) -> float | None:
        """The mean of the last values, once there are that many."""
        values = self.last(name, count)
        return _mean(values) if len(values) == count else None

    def saturated(self, settings: HealthSettings) -> bool:
        shares = self.last("success", settings.smooth)
        return bool(shares) and _mean(shares) >= settings.saturated


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _reward_scale(past: Past, window: int) -> float:
    """The spread of rewards over the last steps' episodes: within steps and between them.

    A tenth of the mean at least, so that the last digits of a nearly constant reward do not look like a movement.
    """
    means, deviations = past.last("reward", window), past.last("reward_std", window)
    centre = _mean(means)
    between = _mean([(mean - centre) ** 2 for mean in means])
    within = _mean([deviation**2 for deviation in deviations])
    return max(math.sqrt(within + between), 0.1 * abs(centre))


def _reward_flat(past: Past, settings: HealthSettings) -> Finding | None:
    """No rise, and the data would have shown one: the whole interval of the rise lies below what counts as one."""
    points = past.series["reward"][-settings.reward_flat_window :]
    line = trend([step for step, _ in points], [value for _, value in points])
    if len(points) < settings.reward_flat_after or line is None or past.saturated(settings):
        return None
    span = points[-1][0] - points[0][0]
    limit = settings.reward_flat * _reward_scale(past, len(points))
    if line.low > 0 or line.high * span > limit:
        return None
    if line.high < 0:
        cause, remedy = "the reward falls", "go back to the best checkpoint with a lower learning rate"
    elif _mean([value for _, value in points]) > _mean(past.starts["reward"]) + limit:
        cause, remedy = "the reward rose and stands still", "give it other tasks, or stop here if it is good enough"
    else:
        cause, remedy = "the reward has not risen from the start", "look at the reward function first"
    return Finding("reward_flat", WARN, line.slope * span, limit, cause, remedy)


def _reward_oscillating(past: Past, settings: HealthSettings) -> Finding | None:
    """Wild swings: the reward turns back again and again by as much as single episodes differ.

    The mean over few tasks swings by luck alone. Where the number of groups is known, a swing must be four standard
    errors, with all chains of a task counted as one.
    """
    values = past.last("reward", settings.reward_swing_window)
    groups = past.last("groups", 1)
    luck = 4 / math.sqrt(max(1.0, groups[0])) if groups else 0.0
    size = max(settings.reward_swing, luck) * _reward_scale(past, len(values))
    count = reversals(values, size) if size > 0 else 0
    cause, remedy = "the reward oscillates wildly", "lower the learning rate to a third (3e-4 to 1e-4)"
    limits = settings.reward_swings_warn, settings.reward_swings_act
    return _above("reward_oscillating", count, limits, (cause, remedy), (cause, remedy))


def _entropy(past: Past, settings: HealthSettings) -> Finding | None:
    value = past.smoothed("entropy", settings.smooth)
    if value is None or past.saturated(settings):
        return None
    cause, remedy = "the policy hardly explores any more", "raise entropy_coeff (0.01 to 0.05)"
    if value < settings.entropy_floor:
        return Finding("entropy_collapse", ACT, value, settings.entropy_floor, cause, remedy)
    limit = settings.entropy_share * _mean(past.starts["entropy"])
    return Finding("entropy_collapse", WARN, value, limit, cause, remedy) if value < limit else None


def _dead_groups(past: Past, settings: HealthSettings) -> Finding | None:
    value = past.smoothed("dead_groups", settings.smooth)
    limits = settings.dead_groups_warn, settings.dead_groups_act
    cause = "nearly all groups have equal rewards, so there is nothing to compare"
    if past.saturated(settings):  # nearly all solved: most groups are rightly dead, and no harm is done if all are
        return _above("dead_groups", value, (limits[1], math.inf), (cause, "give it harder tasks"), ("", ""))
    advice = cause, "give it easier tasks, more chains a task, or imitation first"
    return _above("dead_groups", value, limits, advice, advice)


def _memory(past: Past, settings: HealthSettings) -> Finding | None:
    """Memory grows steadily: in both halves of the window too, so that one jump or a cache that fills is no leak."""
    points, limit = past.series["memory"][-settings.memory_window :], settings.memory_slope
    half = len(points) // 2
    lines = [trend([s for s, _ in part], [v for _, v in part]) for part in (points, points[:half], points[half:])]
    whole = lines[0]
    if whole is None or len(points) < settings.memory_window:
        return None
    if any(line is None or line.slope <= limit or line.low <= 0 for line in lines):
        return None
    cause, remedy = "memory grows steadily, in MB a step", "look for what is kept (episodes, caches) before it runs out"
    return Finding("memory_growing", WARN, whole.slope, limit, cause, remedy)


Advice = tuple[str, str]


def _above(
    sign: str, value: float | None, limits: tuple[float, float], warning: Advice, alarm: Advice
) -> Finding | None:
    """A finding when the value is beyond a limit; `limits` and the advice (cause, remedy) are for warn and act."""
    if value is None or value <= min(limits):
        return None
    severity, limit, advice = (ACT, limits[1], alarm) if value > limits[1] else (WARN, limits[0], warning)
    return Finding(sign, severity, float(value), float(limit), *advice)


def _level(
    sign: str,
    name: str,
    limits: Callable[[HealthSettings], tuple[float, float]],
    warning: Advice,
    alarm: Advice | None = None,
    at_once: bool = False,
) -> tuple[tuple[str, ...], Judge]:
    """A sign that is one reading beyond a limit: of this step (`at_once`) or averaged over a few."""

    def judge(past: Past, settings: HealthSettings) -> Finding | None:
        value = past.smoothed(name, 1 if at_once else settings.smooth)
        return _above(sign, value, limits(settings), warning, alarm or warning)

    return (name,), judge


Judge = Callable[[Past, HealthSettings], Finding | None]

SIGNS: dict[str, tuple[tuple[str, ...], Judge]] = {
    "kl_high": _level(
        "kl_high",
        "kl",
        lambda s: (s.kl_warn, s.kl_act),
        ("the policy is moving far from where it came from", "raise kl_coef if it goes on growing"),
        ("training is unstable", "halve the clip range (0.2 to 0.1)"),
        at_once=True,
    ),
    "mismatch_high": _level(
        "mismatch_high",
        "mismatch",
        lambda s: (s.mismatch_warn, s.mismatch_act),
        ("engine and learner disagree about the same tokens", "check that every update reaches the engine"),
        at_once=True,
    ),
    "reward_flat": (("reward", "reward_std"), _reward_flat),
    "reward_oscillating": (("reward", "reward_std"), _reward_oscillating),
    "entropy_collapse": (("entropy",), _entropy),
    "clip_fraction_high": _level(
        "clip_fraction_high",
        "clip_fraction",
        lambda s: (s.clip_fraction_warn, s.clip_fraction_act),
        ("updates are too large: many tokens stand at the clip", "lower the learning rate to a third (3e-4 to 1e-4)"),
    ),
    "dead_groups": (("dead_groups",), _dead_groups),
    "repetition_high": _level(
        "repetition_high",
        "repetition",
        lambda s: (s.repetition_warn, s.repetition_act),
        ("replies repeat themselves", "go back to a checkpoint before it, with a higher kl_coef"),
    ),
    "length_clipped": _level(
        "length_clipped",
        "length_clipped",
        lambda s: (s.length_clipped_warn, s.length_clipped_act),
        ("many replies are cut by the token limit", "raise agent.max_tokens_per_turn, or pay less for length"),
    ),
    "errors_high": _level(
        "errors_high",
        "errors",
        lambda s: (s.errors_warn, s.errors_act),
        ("many episodes cannot be scored", "read the errors of the unscored episodes and mend their environment"),
    ),
    "memory_growing": (("memory",), _memory),
}
"""Each sign: the readings without which it is not judged, and its judge. Findings come in this order."""


class HealthMonitor:
    """Watches a run, one step after the other. The same metrics give the same findings, resumed or not."""

    def __init__(self, settings: HealthSettings) -> None:
        self.settings = settings
        self.past = Past()
        self.step = 0
        self.said: dict[str, int] = {}  # sign: the step it was last reported at
        self.acute: set[str] = set()  # signs that stood at `act` when last judged
        self.applied: dict[str, int] = {}  # remedy: the step it was last applied at
        self.adjustments = 0

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Finding]:
        """Findings of this step.

        A sign that persists is left out until `repeat_every` steps have passed, except where it has just become one to
        act on.
        """
        values = readings(metrics)
        self.step = step
        self.past.remember(step, values, self.settings)
        found = []
        for sign, (needed, judge) in SIGNS.items():
            if not all(name in values for name in needed):
                continue
            finding = judge(self.past, self.settings)
            worse = finding is not None and finding.severity == ACT and sign not in self.acute
            self.acute.discard(sign)
            if finding is None:
                continue
            if finding.severity == ACT:
                self.acute.add(sign)
            if worse or sign not in self.said or step - self.said[sign] >= self.settings.repeat_every:
                self.said[sign] = step
                found.append(finding)
        return found

    def adjustment(self, findings: Sequence[Finding]) -> Adjustment | None:
        """With `action=adjust`: the scales that these findings call for. Counts them as applied."""
        if self.settings.action != "adjust":
            return None
        lr, clip, any_due = 1.0, 1.0, False
        for remedy in dict.fromkeys(REMEDIES[f.sign] for f in findings if f.severity == ACT and f.sign in REMEDIES):
            waited = remedy not in self.applied or self.step - self.applied[remedy] >= self.settings.cooldown
            if not waited or self.adjustments >= self.settings.max_adjustments:
                continue
            self.applied[remedy] = self.step
            self.adjustments += 1
            lr, clip, any_due = lr * SCALES[remedy].lr_scale, clip * SCALES[remedy].clip_scale, True
        return Adjustment(lr, clip) if any_due else None

    def should_stop(self, findings: Sequence[Finding]) -> Finding | None:
        """With `action=stop`: the first finding to act on."""
        if self.settings.action != "stop":
            return None
        return next((finding for finding in findings if finding.severity == ACT), None)

    def state(self) -> dict[str, Any]:
        """Everything it remembers, in JSON's own types; except of memory, which is a process's own."""
        series = {name: points for name, points in self.past.series.items() if name != "memory"}
        return {
            "step": self.step,
            "series": {name: [[step, value] for step, value in points] for name, points in series.items()},
            "starts": copy.deepcopy(self.past.starts),
            "said": {sign: step for sign, step in self.said.items() if sign != "memory_growing"},
            "acute": sorted(self.acute),
            "applied": dict(self.applied),
            "adjustments": self.adjustments,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`, to the bit."""
        series = {name: [(int(s), float(v)) for s, v in points] for name, points in state["series"].items()}
        self.past = Past(series, {name: [float(v) for v in values] for name, values in state["starts"].items()})
        self.step = int(state["step"])
        self.said = {sign: int(step) for sign, step in state["said"].items()}
        self.acute = set(state["acute"])
        self.applied = {remedy: int(step) for remedy, step in state["applied"].items()}
        self.adjustments = int(state["adjustments"])
