"""The health of a training run: known bad signs are looked for in the metrics of every step.

`HealthMonitor` reads metrics and returns findings. It changes nothing itself: with `action=adjust` it says by what the
learning rate and the clip range should be multiplied, with `action=stop` which finding should end the run. Each check
has a likely cause and a remedy; `HealthLog` writes findings, adjustments and stops into `health.jsonl`.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from practicum.config.fields import check_fields
from practicum.config.health import HealthSettings
from practicum.errors import UserError
from practicum.evaluation.stats.trend import Trend, trend
from practicum.training.monitor.change_points import STEPS_SINCE, fall_from_best, fall_to_nothing, reversals
from practicum.training.monitor.loggers import MetricsFile
from practicum.trajectory import Outcome

WARN, ACT = "warn", "act"

METRIC_NAMES = {
    "reward": "reward/mean",
    "reward_std": "reward/std",
    "success": "success/mean",
    "groups": "rollout/groups",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "dead_groups": "rollout/dead_groups",
    "repetition": "rollout/repetition",
    "invalid_replies": "rollout/invalid_replies",
    "length_clipped": "rollout/length_clipped",
    "mismatch": "mismatch/logprob/mean",
    "policy_loss": "actor/pg_loss",
    "value_loss": "critic/vf_loss",
    "memory": "memory/rss_mb",
    "reward_min": "reward/min",
    "reward_max": "reward/max",
    "returns_min": "critic/returns/min",
    "returns_max": "critic/returns/max",
}
"""The short name of each metric that is checked as it is logged."""


@dataclass(frozen=True)
class HealthFinding:
    """A bad sign: its name, its value and the limit, the likely cause and a remedy (one clause each)."""

    sign: str
    severity: str
    value: float
    threshold: float
    cause: str
    remedy: str
    since: int | None = None
    """The first of the last steps that are all beyond the limit, where a mean over several steps is reported later."""
    mean_from: int | None = None
    """The first of the steps that the value is the mean of; None where it is that of one step or no mean."""

    def sentence(self, step: int) -> str:
        """Return the finding as one line for a person."""
        measured = f"{self.sign} {self.value:.3g}"
        measured += "" if self.mean_from is None else f" as the mean of steps {self.mean_from} to {step}"
        measured += f", limit {self.threshold:.3g}"
        measured += "" if self.since is None or self.since >= step else f", since step {self.since}"
        return f"Step {step} ({self.severity}): {self.cause} ({measured}); {self.remedy}."


def checked_values(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the values that are checked, by short name; those that are missing or not finite are left out."""
    values = {name: float(metrics[key]) for name, key in METRIC_NAMES.items() if key in metrics}
    kl = metrics.get("actor/kl", metrics.get("actor/ppo_kl"))
    if kl is not None:
        values["kl"] = float(kl)
    unscored = [metrics[f"outcome/{o.value}"] for o in Outcome if not o.scored and f"outcome/{o.value}" in metrics]
    episodes = metrics.get("rollout/episodes", 0.0)
    if unscored and episodes > 0:
        values["errors"] = math.fsum(unscored) / episodes
    return {name: value for name, value in values.items() if math.isfinite(value)}


@dataclass
class MetricHistory:
    """What a check reads: the last points (step, value) of every metric, and the first few values of some."""

    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    first_values: dict[str, list[float]] = field(default_factory=dict)

    def append(self, step: int, values: Mapping[str, float], settings: HealthSettings) -> None:
        """Add the values of a step and drop what no check looks back on."""
        longest = max(
            settings.smooth,
            settings.reward_flat_window,
            settings.reward_swing_window,
            settings.memory_window,
            settings.loss_window,
        )
        for name, value in values.items():
            self.series[name] = [*self.series.get(name, []), (step, value)][-longest:]
        for name in ("reward", "entropy", "invalid_replies"):
            first = self.first_values.setdefault(name, [])
            if name in values and len(first) < settings.smooth:
                first.append(values[name])

    def last_values(self, name: str, count: int) -> list[float]:
        """Return the last values of a metric, at most `count`."""
        return [value for _, value in self.series.get(name, [])[-count:]]

    def moving_average(self, name: str, count: int) -> float | None:
        """Return the mean of the last `count` values, or None if there are not yet that many."""
        values = self.last_values(name, count)
        return _mean(values) if len(values) == count else None

    def first_step(self, name: str, beyond: Callable[[float], bool]) -> int | None:
        """Return the first of the last steps whose values are all beyond a limit; None if the last one is not."""
        first = None
        for step, value in reversed(self.series.get(name, [])):
            if not beyond(value):
                break
            first = step
        return first

    def is_saturated(self, settings: HealthSettings) -> bool:
        """Return whether nearly all episodes of the last steps succeeded."""
        rates = self.last_values("success", settings.smooth)
        return bool(rates) and _mean(rates) >= settings.saturated


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _reward_scale(history: MetricHistory, window: int) -> float:
    """The standard deviation of the episodes' rewards over the last steps: within steps and between them.

    At least a tenth of the mean, so that the last digits of a nearly constant reward do not count as a movement.
    """
    means, deviations = history.last_values("reward", window), history.last_values("reward_std", window)
    centre = _mean(means)
    between = _mean([(mean - centre) ** 2 for mean in means])
    within = _mean([deviation**2 for deviation in deviations])
    return max(math.sqrt(within + between), 0.1 * abs(centre))


def _reward_flat(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """No rise, and the data would have shown one: the whole interval of the rise is below what counts as one."""
    points = history.series["reward"][-settings.reward_flat_window :]
    if len(points) < settings.reward_flat_after or history.is_saturated(settings):
        return None
    line = trend([step for step, _ in points], [value for _, value in points])
    if line is None:
        return None
    span = points[-1][0] - points[0][0]
    limit = settings.reward_flat * _reward_scale(history, len(points))
    if line.low > 0 or line.high * span > limit:
        return None
    if line.high < 0:
        cause, remedy = "the reward falls", "go back to the best checkpoint with a lower learning rate"
    elif _mean([value for _, value in points]) > _mean(history.first_values["reward"]) + limit:
        cause, remedy = "the reward rose and no longer does", "give it other tasks, or stop here if it is good enough"
    else:
        cause, remedy = "the reward has not risen from the start", "look at the reward function first"
    return HealthFinding("reward_flat", WARN, line.slope * span, limit, cause, remedy)


def _reward_oscillating(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """The reward reverses again and again by as much as single episodes differ.

    The mean over few tasks varies by chance alone. Where the number of groups is known, a swing must be four standard
    errors, with all chains of a task counted as one.
    """
    values = history.last_values("reward", settings.reward_swing_window)
    groups = history.last_values("groups", 1)
    by_chance = 4 / math.sqrt(max(1.0, groups[0])) if groups else 0.0
    size = max(settings.reward_swing, by_chance) * _reward_scale(history, len(values))
    count = reversals(values, size) if size > 0 and len(values) > 2 else 0
    cause, remedy = "the reward oscillates wildly", "lower the learning rate to a third (3e-4 to 1e-4)"
    limits = settings.reward_swings_warn, settings.reward_swings_act
    return _above("reward_oscillating", count, limits, (cause, remedy), (cause, remedy))


def _entropy_collapse(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    value = history.moving_average("entropy", settings.smooth)
    if value is None or history.is_saturated(settings):
        return None
    cause, remedy = "the policy hardly explores any more", "raise entropy_coeff (0.01 to 0.05)"
    if value < settings.entropy_floor:
        finding = HealthFinding("entropy_collapse", ACT, value, settings.entropy_floor, cause, remedy)
        return _dated(finding, history, "entropy", below=True, steps=settings.smooth)
    limit = settings.entropy_share * _mean(history.first_values["entropy"])
    finding = HealthFinding("entropy_collapse", WARN, value, limit, cause, remedy)
    return _dated(finding, history, "entropy", below=True, steps=settings.smooth) if value < limit else None


def _dead_groups(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    value = history.moving_average("dead_groups", settings.smooth)
    limits = settings.dead_groups_warn, settings.dead_groups_act
    cause = "nearly all groups have equal rewards, so there is nothing to compare"
    if history.is_saturated(settings):  # nearly all solved: most groups must be dead, and no harm is done if all are
        finding = _above("dead_groups", value, (limits[1], math.inf), (cause, "give it harder tasks"), ("", ""))
        return _dated(finding, history, "dead_groups", steps=settings.smooth)
    advice = cause, "give it easier tasks, more chains per task, or SFT first"
    finding = _above("dead_groups", value, limits, advice, advice)
    return _dated(finding, history, "dead_groups", steps=settings.smooth)


def _success_collapse(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """Success fell, surely and by more than half, and has stayed there for at least two steps.

    The tasks of a step are counted, not its episodes, which are not independent. The best step of the history is taken
    at the lower end of its interval, all steps since the fall together at the upper end of theirs. Steps of few tasks
    have no such best step; there all steps before a fall to nearly nothing are taken together.
    """
    recent = [rate for _, rate in history.series["success"]]
    if recent[-1] >= settings.success_fall * max(recent):  # nearly every step of nearly every run
        return None
    groups = dict(history.series["groups"])
    rates = [(step, rate, groups[step]) for step, rate in history.series["success"] if groups.get(step, 0) >= 1]
    fall = fall_from_best(rates, settings.success_fall)
    if fall is None:
        fall = fall_to_nothing(rates)
        if fall is None or any(rate >= settings.success_fall * fall.before for _, rate, _ in rates[-STEPS_SINCE:]):
            return None
    cause = "success has collapsed"
    remedy = "go back to a checkpoint before it, with a lower learning rate or a higher kl_coef"
    limit = settings.success_fall * fall.before
    return HealthFinding("success_collapse", ACT, fall.after, limit, cause, remedy, fall.since)


def _invalid_replies(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """Most replies of at least two steps cannot be used: grave where they could be before, else a model to teach first.

    Not averaged over more steps, because a step has hundreds of replies.
    """
    points, limit = history.series["invalid_replies"], settings.invalid_replies
    since = history.first_step("invalid_replies", lambda share: share > limit)
    beyond = [share for step, share in points if since is not None and step >= since]
    if len(beyond) < 2:
        return None
    if len(beyond) == len(points) and min(history.first_values["invalid_replies"]) > limit:
        severity, cause = WARN, "most replies cannot be used, from the start"
        remedy = "train on demonstrations (SFT) first, or use a reply format that the model knows"
    else:
        severity, cause = ACT, "most replies can no longer be used"
        remedy = "go back to a checkpoint before it, with a lower learning rate or a higher kl_coef"
    return HealthFinding("invalid_replies_high", severity, beyond[-1], limit, cause, remedy, since)


def _returns_out_of_range(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """The critic's targets are outside what the rewards of the last steps allow: its values feed on themselves.

    A return is at least the smallest and at most the largest reward of an episode, or 0. The excess is measured in
    widths of that range.
    """
    window = settings.reward_swing_window
    low = min(0.0, *history.last_values("reward_min", window))
    high = max(0.0, *history.last_values("reward_max", window))
    smallest, largest = history.last_values("returns_min", 1)[0], history.last_values("returns_max", 1)[0]
    excess = max(low - smallest, largest - high) / (high - low) if high > low else 0.0
    advice = (
        "the critic's targets are outside what the rewards allow, in widths of the rewards' range",
        "set algorithm.bootstrap_truncated=false, or lower critic.optim.lr",
    )
    limits = settings.returns_excess_warn, settings.returns_excess_act
    return _above("returns_out_of_range", excess, limits, advice, advice)


def _policy_loss_rising(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """The policy loss rises beyond its noise, and the reward does not: updates undo each other.

    A flat policy loss is no bad sign: with advantages around 0 and one pass over a batch its mean is 0 at every step.
    """
    points = history.series["policy_loss"][-settings.loss_window :]
    if len(points) < settings.loss_window or history.is_saturated(settings):
        return None
    line = _trend_of(points)
    reward = _trend_of(history.series["reward"][-settings.loss_window :])
    if line is None or line.low <= 0 or (reward is not None and reward.low > 0):
        return None
    span = points[-1][0] - points[0][0]
    residuals = [value - line.slope * (step - points[0][0]) for step, value in points]
    noise = math.sqrt(_mean([(value - _mean(residuals)) ** 2 for value in residuals]))
    rise = line.slope * span / noise if noise > 0 else math.inf
    cause, remedy = (
        "the policy loss rises instead of falling, in standard deviations of its noise",
        "lower the learning rate to a third, or the clip range (0.2 to 0.1)",
    )
    return _above("policy_loss_rising", rise, (settings.policy_loss_rise, math.inf), (cause, remedy), ("", ""))


def _value_loss_growing(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """The value loss grows over the window instead of settling: the critic cannot follow its targets."""
    points = history.series["value_loss"][-settings.loss_window :]
    if len(points) < settings.loss_window:
        return None
    line, third = _trend_of(points), len(points) // 3
    before, now = (_mean([value for _, value in part]) for part in (points[:third], points[-third:]))
    if line is None or line.low <= 0 or before <= 0:
        return None
    cause, remedy = (
        "the value loss grows instead of settling, as a factor",
        "lower critic.optim.lr, or warm the critic up first (trainer.critic_warmup=10)",
    )
    return _above("value_loss_growing", now / before, (settings.value_loss_growth, math.inf), (cause, remedy), ("", ""))


def _trend_of(points: Sequence[tuple[int, float]]) -> Trend | None:
    return trend([step for step, _ in points], [value for _, value in points])


def _memory_growing(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
    """Memory grows steadily: in both halves of the window too, so that one jump or a cache that fills is no leak."""
    points, limit = history.series["memory"][-settings.memory_window :], settings.memory_slope
    if len(points) < settings.memory_window:
        return None
    half = len(points) // 2
    lines = [trend([s for s, _ in part], [v for _, v in part]) for part in (points, points[:half], points[half:])]
    line = lines[0]
    if line is None or any(part is None or part.slope <= limit or part.low <= 0 for part in lines):
        return None
    cause, remedy = (
        "memory grows steadily, in MB per step",
        "look for what is kept (episodes, caches) before it runs out",
    )
    return HealthFinding("memory_growing", WARN, line.slope, limit, cause, remedy)


Advice = tuple[str, str]
"""A cause and a remedy."""
Check = Callable[[MetricHistory, HealthSettings], HealthFinding | None]


@dataclass(frozen=True)
class HealthCheck:
    """A check and the metrics, by short name, without which it is not run in a step."""

    needs: tuple[str, ...]
    check: Check


def _above(
    sign: str, value: float | None, limits: tuple[float, float], warning: Advice, alarm: Advice
) -> HealthFinding | None:
    """A finding if the value is above a limit; `limits` and the advice are those for warn and for act."""
    if value is None or value <= min(limits):
        return None
    severity, limit, advice = (ACT, limits[1], alarm) if value > limits[1] else (WARN, limits[0], warning)
    return HealthFinding(sign, severity, float(value), float(limit), *advice)


def _dated(
    finding: HealthFinding | None, history: MetricHistory, name: str, below: bool = False, steps: int = 1
) -> HealthFinding | None:
    """The finding with the step since which the metric itself, not only its mean over `steps`, is beyond the limit."""
    if finding is None:
        return None
    limit = finding.threshold
    since = history.first_step(name, (lambda value: value < limit) if below else (lambda value: value > limit))
    mean_from = history.series[name][-steps:][0][0] if steps > 1 else None
    return replace(finding, since=since, mean_from=mean_from)


def _limit_check(
    sign: str,
    name: str,
    limits: Callable[[HealthSettings], tuple[float, float]],
    warning: Advice,
    alarm: Advice | None = None,
    averaged: bool = True,
) -> HealthCheck:
    """A check of one metric against limits: its average over a few steps, or (`averaged=False`) its last value."""

    def check(history: MetricHistory, settings: HealthSettings) -> HealthFinding | None:
        steps = settings.smooth if averaged else 1
        finding = _above(sign, history.moving_average(name, steps), limits(settings), warning, alarm or warning)
        return _dated(finding, history, name, steps=steps)

    return HealthCheck((name,), check)


HEALTH_CHECKS: dict[str, HealthCheck] = {
    "kl_high": _limit_check(
        "kl_high",
        "kl",
        lambda s: (s.kl_warn, s.kl_act),
        ("the policy is moving far from the reference", "raise kl_coef if it goes on growing"),
        ("training is unstable", "halve the clip range (0.2 to 0.1)"),
        averaged=False,
    ),
    "mismatch_high": _limit_check(
        "mismatch_high",
        "mismatch",
        lambda s: (s.mismatch_warn, s.mismatch_act),
        ("engine and learner disagree about the same tokens", "check that every update reaches the engine"),
        averaged=False,
    ),
    "reward_flat": HealthCheck(("reward", "reward_std"), _reward_flat),
    "reward_oscillating": HealthCheck(("reward", "reward_std"), _reward_oscillating),
    "success_collapse": HealthCheck(("success", "groups"), _success_collapse),
    "entropy_collapse": HealthCheck(("entropy",), _entropy_collapse),
    "clip_fraction_high": _limit_check(
        "clip_fraction_high",
        "clip_fraction",
        lambda s: (s.clip_fraction_warn, s.clip_fraction_act),
        ("updates are too large: many tokens are clipped", "lower the learning rate to a third (3e-4 to 1e-4)"),
    ),
    "dead_groups": HealthCheck(("dead_groups",), _dead_groups),
    "policy_loss_rising": HealthCheck(("policy_loss", "reward"), _policy_loss_rising),
    "value_loss_growing": HealthCheck(("value_loss",), _value_loss_growing),
    "repetition_high": _limit_check(
        "repetition_high",
        "repetition",
        lambda s: (s.repetition_warn, s.repetition_act),
        ("replies repeat themselves", "go back to a checkpoint before it, with a higher kl_coef"),
    ),
    "invalid_replies_high": HealthCheck(("invalid_replies",), _invalid_replies),
    "length_clipped": _limit_check(
        "length_clipped",
        "length_clipped",
        lambda s: (s.length_clipped_warn, s.length_clipped_act),
        ("many replies are cut by the token limit", "raise agent.max_tokens_per_turn, or reward length less"),
    ),
    "errors_high": _limit_check(
        "errors_high",
        "errors",
        lambda s: (s.errors_warn, s.errors_act),
        ("many episodes cannot be scored", "read the errors of the unscored episodes and fix their environment"),
    ),
    "returns_out_of_range": HealthCheck(
        ("reward_min", "reward_max", "returns_min", "returns_max"), _returns_out_of_range
    ),
    "memory_growing": HealthCheck(("memory",), _memory_growing),
}
"""All checks by the sign they find. Findings come in this order."""


def sign_metrics(sign: str) -> list[str]:
    """The logged metrics in which a sign can be seen, the first one first; none for an unknown sign."""
    if sign not in HEALTH_CHECKS:
        return SUPERVISED_METRICS.get(sign, [])
    names = [name for need in HEALTH_CHECKS[sign].needs for name in KL_METRICS if need == "kl"]
    return [*names, *(METRIC_NAMES[need] for need in HEALTH_CHECKS[sign].needs if need in METRIC_NAMES)]


KL_METRICS = ("actor/kl", "actor/ppo_kl")
SUPERVISED_METRICS = {
    "loss_flat": ["dpo/loss", "actor/loss"],
    "overfitting": ["eval/loss", "dpo/loss", "actor/loss"],
    "reward_hacking": ["hacking/gap", "hacking/verifier/mean"],
}
"""Metrics of the signs of other monitors."""


HEALTH_FILE = "health.jsonl"


class HealthLog(MetricsFile):
    """Writes `health.jsonl`: a new run begins a new file, a resumed one keeps the lines up to its checkpoint."""

    def write_findings(self, step: int, findings: Sequence[HealthFinding]) -> None:
        for finding in findings:
            values = {name: value for name, value in vars(finding).items() if value is not None}
            self._write(step, "finding", values)

    def write_adjustment(self, step: int, adjustment: Adjustment) -> None:
        self._write(step, "adjustment", vars(adjustment))

    def write_stop(self, step: int, finding: HealthFinding) -> None:
        """Record that the run ends because of this finding."""
        self._write(step, "stop", {"sign": finding.sign})

    def _write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        record = {name: None if _not_finite(value) else value for name, value in values.items()}
        try:
            self._file.write(json.dumps({"step": step, "kind": kind, **record}, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise UserError(f"Cannot write '{self.path}': {error.strerror}; free some space.") from error


def _not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@dataclass(frozen=True)
class Adjustment:
    """What to multiply the learning rate and the clip range by, from now on."""

    lr_scale: float = 1.0
    clip_scale: float = 1.0


ADJUSTMENTS = {"lr": Adjustment(lr_scale=1 / 3), "clip": Adjustment(clip_scale=1 / 2)}
"""HTDAG's adjustments: learning rate 3e-4 to 1e-4, clip range 0.2 to 0.1."""

ADJUSTMENT_FOR_SIGN = {"reward_oscillating": "lr", "clip_fraction_high": "lr", "kl_high": "clip"}
"""Signs that one of the two adjustments helps against. The other signs need a person."""


class HealthMonitor:
    """Checks the metrics of one step after the other. The same metrics give the same findings, resumed or not."""

    def __init__(self, settings: HealthSettings) -> None:
        check_fields(settings, "health.")
        if settings.reward_flat_window < settings.reward_flat_after:
            raise UserError("health.reward_flat_after must be at most health.reward_flat_window.")
        self.settings = settings
        self.history = MetricHistory()
        self.step = 0
        self.last_reported: dict[str, int] = {}  # sign: step
        self.at_act: set[str] = set()  # signs whose severity was `act` when last checked
        self.last_adjusted: dict[str, int] = {}  # adjustment: step
        self.num_adjustments = 0

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[HealthFinding]:
        """Return the findings of this step.

        A sign that persists is left out until `repeat_every` steps have passed, except where its severity has just
        become `act`.
        """
        values = checked_values(metrics)
        self.step = step
        self.history.append(step, values, self.settings)
        findings = []
        for sign, health_check in HEALTH_CHECKS.items():
            if not all(name in values for name in health_check.needs):
                continue
            finding = health_check.check(self.history, self.settings)
            worse = finding is not None and finding.severity == ACT and sign not in self.at_act
            self.at_act.discard(sign)
            if finding is None:
                continue
            if finding.severity == ACT:
                self.at_act.add(sign)
            reported = self.last_reported.get(sign)
            if worse or reported is None or step - reported >= self.settings.repeat_every:
                self.last_reported[sign] = step
                findings.append(finding)
        return findings

    def adjustment(self, findings: Sequence[HealthFinding]) -> Adjustment | None:
        """With `action=adjust`, return the scales that these findings call for and count them as applied."""
        if self.settings.action != "adjust":
            return None
        lr, clip, any_due = 1.0, 1.0, False
        signs = (finding.sign for finding in findings if finding.severity == ACT)
        for name in dict.fromkeys(ADJUSTMENT_FOR_SIGN[sign] for sign in signs if sign in ADJUSTMENT_FOR_SIGN):
            last = self.last_adjusted.get(name)
            due = last is None or self.step - last >= self.settings.cooldown
            if not due or self.num_adjustments >= self.settings.max_adjustments:
                continue
            self.last_adjusted[name] = self.step
            self.num_adjustments += 1
            lr, clip, any_due = lr * ADJUSTMENTS[name].lr_scale, clip * ADJUSTMENTS[name].clip_scale, True
        return Adjustment(lr, clip) if any_due else None

    def should_stop(self, findings: Sequence[HealthFinding]) -> HealthFinding | None:
        """With `action=stop`, return the first finding whose severity is `act`."""
        if self.settings.action != "stop":
            return None
        return next((finding for finding in findings if finding.severity == ACT), None)

    def state(self) -> dict[str, Any]:
        """Return all state in JSON's own types, except that of memory, which belongs to the process."""
        series = {name: points for name, points in self.history.series.items() if name != "memory"}
        return {
            "step": self.step,
            "series": {name: [[step, value] for step, value in points] for name, points in series.items()},
            "starts": copy.deepcopy(self.history.first_values),
            "said": {sign: step for sign, step in self.last_reported.items() if sign != "memory_growing"},
            "acute": sorted(self.at_act),
            "applied": dict(self.last_adjusted),
            "adjustments": self.num_adjustments,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`, to the bit."""
        series = {name: [(int(s), float(v)) for s, v in points] for name, points in state["series"].items()}
        first_values = {name: [float(v) for v in values] for name, values in state["starts"].items()}
        self.history = MetricHistory(series, first_values)
        self.step = int(state["step"])
        self.last_reported = {sign: int(step) for sign, step in state["said"].items()}
        self.at_act = set(state["acute"])
        self.last_adjusted = {name: int(step) for name, step in state["applied"].items()}
        self.num_adjustments = int(state["adjustments"])
