"""Evaluation results as text for a terminal: the table of one result, and one line per environment of several."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from practicum.evaluation.multi_environment import aggregate, overall_interval
from practicum.evaluation.result import EvalResult, pass_at_ks
from practicum.evaluation.runner import EvalRunner
from practicum.evaluation.settings import EvalSettings
from practicum.utils.tables import number, percent, percent_interval, shortened, table
from practicum.utils.terminal import fit, printable, wrap

MAX_ERROR_CHARACTERS = 300


def describe(runner: EvalRunner, result: EvalResult) -> str:
    """The table of one result and its last line."""
    settings, policy = runner.settings, runner.policy
    metrics, interval = result.metrics(settings.level), result.interval(settings.level)
    level = f"{100 * settings.level:g} %"
    rows = [
        ("Success rate", percent(metrics["success_rate"]), percent_interval(interval.low, interval.high)),
        ("Accuracy (score > 0.5)", percent(metrics["accuracy"]), ""),
        ("Non-zero scores", percent(metrics["positive_rate"]), ""),
        ("Mean score", number(metrics["mean_reward"]), f"[{number(metrics['reward_low'])}, "
         f"{number(metrics['reward_high'])}]"),
        ("Standard deviation", number(metrics["std_reward"]), ""),
        ("Median score", number(metrics["median_reward"]), ""),
        ("Mean / median turns", f"{number(metrics['mean_turns'])} / {number(metrics['median_turns'])}", ""),
        ("Unusable replies", percent(metrics["invalid_reply_rate"]), ""),
    ]  # fmt: skip
    rows += [
        (f"pass@{k}", percent(metrics[f"pass@{k}"]),
         percent_interval(metrics[f"pass@{k}_low"], metrics[f"pass@{k}_high"]))
        for k in pass_at_ks(result.attempts_per_task)
    ]  # fmt: skip
    rows += [(name, number(value), "") for name, value in metrics.items() if name.startswith(("part/", "figure/"))]
    source = f" (found {policy.stage}: {shortened(policy.name, 32)})" if policy.name != settings.policy else ""
    each = f" × {result.attempts_per_task} attempts" if result.attempts_per_task > 1 else ""
    name = shortened(printable(result.policy), 32)
    goals = f" of {result.num_goals} goals" if result.num_goals is not None else ""
    head = f"{name}{source} on {settings.environment}: {result.num_tasks} {settings.split} tasks{goals}{each}"
    rate = "nothing scored" if not result.scored else (
        f"success {percent(result.success_rate)} {percent_interval(interval.low, interval.high)} ({level})"
    )  # fmt: skip
    last = f"panel {result.panel}: {rate}, n = {len(result.scored)}, not scored {len(result.unscored)}"
    num_requested = settings.num_tasks
    if num_requested is not None and num_requested > result.num_tasks:
        head += f" (--tasks {num_requested}: there are no more)"
    lines = [fit(head, sys.stdout), table(["Metric", "Value", f"{level} interval"], rows), fit(last, sys.stdout)]
    lines += describe_unscored(result, settings)
    lines += describe_published(settings.make_environment().published_scores(runner.log.panel.tasks))
    if settings.out is not None:
        lines.append(f"result in {settings.out}, episodes and panel in {settings.run_folder}")
    return "\n".join(lines)


def describe_published(scores: Mapping[str, tuple[float, float]]) -> list[str]:
    """The published success rates to compare the result with, where there are any."""
    if not scores:
        return []
    rows = [(name, percent(score), f"± {percent(error)}") for name, (score, error) in scores.items()]
    return ["published success rates, with standard errors:", table(["Policy", "Value", "Error"], rows)]


def describe_unscored(result: EvalResult, settings: EvalSettings) -> list[str]:
    """Why attempts were not scored, the first error, and what helps."""
    if not result.unscored:
        return []
    outcomes = Counter(attempt.outcome.value for attempt in result.unscored)
    first = " ".join(printable(result.unscored[0].error or "it gave no reason").split())
    lines = [f"not scored: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}"]
    lines += wrap(f"first: {first[:MAX_ERROR_CHARACTERS]}", sys.stdout)
    return [*lines, *(["the same command again runs these, and only these"] if settings.out is not None else [])]


def describe_all(results: list[EvalResult], settings: EvalSettings) -> list[str]:
    """One line per environment, and the mean over environments: each counts once, however many tasks it has."""
    rows = []
    for result in results:
        metrics = result.metrics(settings.level)
        limits = percent_interval(metrics["success_low"], metrics["success_high"])
        rows.append([
            result.environment, f"{percent(metrics['success_rate'])} {limits}", number(metrics["mean_reward"]),
            str(len(result.scored)), str(len(result.unscored)), result.panel,
        ])  # fmt: skip
    headers = ["Environment", f"Success [{100 * settings.level:g} %]", "Score", "n", "Not scored", "Panel"]
    lines = [table(headers, rows)]
    if all(result.scored for result in results):
        total, overall = aggregate(results), overall_interval(results, settings.level)
        lines += wrap(
            f"overall: success {percent(total.overall_success_rate)} {percent_interval(overall.low, overall.high)} "
            f"(mean of environments), accuracy {percent(total.weighted_accuracy)} and score "
            f"{number(total.weighted_mean_score)} (weighted by tasks)",
            sys.stdout,
        )
    return [*lines, *([f"results in {Path(settings.out).parent}"] if settings.out is not None else [])]
