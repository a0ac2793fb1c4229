"""Planners on the panel of requests: results in the form that HTDAG publishes, beside its expected ranges."""

from __future__ import annotations

import datetime
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from practicum import __version__
from practicum.data.run_folder import write_atomic
from practicum.environments.htdag.environment import MAX_STEPS
from practicum.environments.htdag.planning import PlanningEpisode
from practicum.environments.htdag.policies import POLICIES
from practicum.environments.htdag.requests import ENVIRONMENT, create_benchmark_tasks, draw_requests, goals_of
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.evaluation.runner import evaluate
from practicum.evaluation.settings import EvalSettings
from practicum.evaluation.stats.intervals import Interval, rate_interval
from practicum.task import Task
from practicum.trajectory import Outcome

FOLDER = Path("data/htdag_benchmarks")
BASELINE_FILE, TRAINING_FILE, TASKS_FILE = "baseline_results.json", "training_results.json", "benchmark_tasks.json"
BASELINE_EVAL, TRAINING_EVAL = "baseline_eval.json", "training_eval.json"
"""The same results as `practicum compare` and `promote` read them."""
MAX_TOKENS = 64
"""Tokens of a reply, at most; the expert's longest has 35 of the tiny model's."""
BASELINES = ("random", "heuristic", "adapt", "expert")
EXPECTED_RANGES: Mapping[str, tuple[float, float]] = {
    "success_rate": (0.70, 0.85),
    "mean_depth": (2.0, 4.0),
    "mean_subtasks": (5.0, 15.0),
    "parallelism_ratio": (0.20, 0.40),
    "mean_execution_time": (5.0, 30.0),
    "mean_llm_calls": (5.0, 15.0),
}
"""What HTDAG expects of its untrained planner."""
EXPECTED_SUCCESS_RATES = (0.50, 0.95)
"""Success rates outside of this range hint at a fault of the planner or of the requests."""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """One request planned and executed. The first ten names are HTDAG's."""

    task_id: str
    task_description: str
    success: bool
    decomposition_depth: int
    num_subtasks: int
    parallel_tasks: int
    """Leaves that are not on the longest chain."""
    has_cycles: bool
    """Whether an order was refused because it would have been cyclic."""
    execution_time: float
    llm_calls: int
    error_message: str | None
    num_steps: int
    """Leaves."""
    coverage: float
    order: float
    waste: float
    reward: float
    components: Mapping[str, float]
    """Parts of the reward, summed over the decisions."""
    template: str


def benchmark_panel() -> Panel:
    """Return the panel of `create_benchmark_tasks` for `practicum eval` and `compare`."""
    return Panel(tuple(create_benchmark_tasks()), 0, {"max_turns": MAX_STEPS})


def run_policy(name: str, tasks: Sequence[Task] | None = None) -> list[PlanResult]:
    """Return the results of a scripted policy; None are the requests of the panel."""
    if name not in POLICIES:
        raise UserError(f"Unknown planning policy '{name}'.{did_you_mean(name, POLICIES)}")
    results = []
    for index, task in enumerate(create_benchmark_tasks() if tasks is None else tasks):
        episode, policy = PlanningEpisode(max_steps=MAX_STEPS), POLICIES[name](index)
        episode.reset(task.fields["request"], goals_of(task.fields))
        components: Counter[str] = Counter()
        while not episode.done:
            step = episode.step(policy(episode))
            components.update(step.components)  # adds them up
        results.append(result_of(task, bool(step.success), episode.total, components, episode.info()))
    return results


def held_out_panel(count: int, seed: int = 1) -> Panel:
    """Return a larger panel than the benchmark's: `count` requests of the test templates in turn."""
    return Panel(tuple(draw_requests("test", count, seed)), 0, {"max_turns": MAX_STEPS})


def evaluate_policy(
    policy: str, out: Path | None = None, url: str | None = None, progress: bool = True, panel: Panel | None = None
) -> tuple[EvalResult, list[PlanResult]]:
    """Evaluate a model (folder, run, hub id, or a server's) greedily, by default on the panel; `out` is a file."""
    panel = panel or benchmark_panel()
    settings = EvalSettings(
        environment=ENVIRONMENT,
        policy=policy,
        url=url,
        panel=panel,
        max_turns=MAX_STEPS,
        max_tokens=MAX_TOKENS,
        out=out,
    )
    evaluated = evaluate(settings, progress=progress)
    tasks = {task.id: task for task in panel.tasks}
    results = [
        result_of(tasks[attempt.task], attempt.success, attempt.reward, attempt.components, attempt.env_metrics)
        for attempt in evaluated.scored
    ]
    return evaluated, results


def eval_result(results: Sequence[PlanResult], policy: str, panel: Panel | None = None) -> EvalResult:
    """Return a scripted policy's results, by default on the panel, as `practicum compare` reads them."""
    panel = panel or benchmark_panel()
    tasks = {task.id: task for task in panel.tasks}
    attempts = tuple(
        AttemptResult(
            task=result.task_id,
            cluster=tasks[result.task_id].hash,
            attempt=0,
            outcome=Outcome.SUCCESS if result.success else Outcome.FAILURE,
            reward=result.reward,
            turns=result.llm_calls,
            tokens=0,
            invalid_replies=0,
            components=result.components,
            env_metrics={
                "depth": float(result.decomposition_depth),
                "dag_size": float(result.num_subtasks + 1),
                "steps": float(result.num_steps),
                "parallelism": result.parallel_tasks / result.num_steps if result.num_steps else 0.0,
                "execution_time": result.execution_time,
                "llm_calls": float(result.llm_calls),
                "coverage": result.coverage,
                "order": result.order,
                "waste": result.waste,
                "cycles": float(result.has_cycles),
            },
            goal=result.template,
        )
        for result in results
    )
    settings = {"policy": policy, "stage": "scripted", "panel": panel.hash}
    return EvalResult(policy, ENVIRONMENT, panel.hash, len(panel.tasks), 1, attempts, settings)


def result_of(
    task: Task, success: bool, reward: float, components: Mapping[str, float], info: Mapping[str, Any]
) -> PlanResult:
    """Return the result of a finished episode from the figures that it gave with its last step."""
    reasons = {
        "not everything is covered": info["coverage"] < 1,
        "a required order is not kept": info["order"] < 1,
        "some leaves cannot be executed": info["feasibility"] < 1,
        "too much is unneeded": info["waste"] > 0,
    }
    failed = "" if success else "; ".join(reason for reason, holds in reasons.items() if holds)
    return PlanResult(
        task_id=task.id,
        task_description=task.fields["request"],
        success=success,
        decomposition_depth=int(info["depth"]),
        num_subtasks=int(info["dag_size"]) - 1,
        parallel_tasks=round(info["parallelism"] * info["steps"]),
        has_cycles=info["cycles"] > 0,
        execution_time=float(info["execution_time"]),
        llm_calls=int(info["llm_calls"]),
        error_message=failed or None,
        num_steps=int(info["steps"]),
        coverage=float(info["coverage"]),
        order=float(info["order"]),
        waste=float(info["waste"]),
        reward=reward,
        components=dict(components),
        template=str(task.fields.get("template", task.id)),
    )


def aggregate(results: Sequence[PlanResult]) -> dict[str, float | int | None]:
    """Return HTDAG's aggregated metrics: shapes over solved requests, times and cycles over all; sample deviations.

    `parallelism_ratio` divides by leaves: tasks that were decomposed do not run. Success has a 95 % interval over
    templates. None is a figure without any result to compute it from.
    """
    solved = [result for result in results if result.success]
    interval = success_interval(results)

    def mean(values: Sequence[float]) -> float | None:
        return statistics.fmean(values) if values else None

    def deviation(values: Sequence[float]) -> float | None:
        return statistics.stdev(values) if len(values) > 1 else None

    metrics: dict[str, float | int | None] = {
        "total_tasks": len(results),
        "success_rate": mean([float(result.success) for result in results]),
        "success_low": interval.low,
        "success_high": interval.high,
    }
    columns: tuple[tuple[str, Sequence[PlanResult], Callable[[PlanResult], float]], ...] = (
        ("depth", solved, lambda result: result.decomposition_depth),
        ("subtasks", solved, lambda result: result.num_subtasks),
        ("parallel_tasks", solved, lambda result: result.parallel_tasks),
        ("execution_time", results, lambda result: result.execution_time),
        ("llm_calls", solved, lambda result: result.llm_calls),
        ("reward", results, lambda result: result.reward),
        ("coverage", results, lambda result: result.coverage),
        ("waste", results, lambda result: result.waste),
    )
    for name, rows, value in columns:
        values = [float(value(row)) for row in rows]
        metrics[f"mean_{name}"], metrics[f"std_{name}"] = mean(values), deviation(values)
    steps = sum(result.num_steps for result in solved)
    metrics["parallelism_ratio"] = sum(result.parallel_tasks for result in solved) / steps if steps else None
    metrics["cycle_error_rate"] = mean([float(result.has_cycles) for result in results])
    return metrics


def success_interval(results: Sequence[PlanResult]) -> Interval:
    """Return the 95 % interval of the success rate; requests of one template are one cluster."""
    return rate_interval([float(result.success) for result in results], [result.template for result in results])


def sanity_warning(success_rate: float | None) -> str | None:
    """Return HTDAG's warning about a success rate below 50 % or above 95 %, or None."""
    low, high = EXPECTED_SUCCESS_RATES
    if success_rate is None or low <= success_rate <= high:
        return None
    return (
        f"A success rate of {100 * success_rate:.1f} % is {'below 50' if success_rate < low else 'above 95'} %: "
        "look at the planner and at the requests before you train."
    )


def record(results: Sequence[PlanResult], policy: str) -> dict[str, Any]:
    """Return the content of a results file in HTDAG's form."""
    return {
        "metadata": {
            "collection_date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "num_tasks": len(results),
            "planner_version": f"practicum {__version__}, {policy}",
        },
        "aggregated_metrics": aggregate(results),
        "individual_results": [asdict(result) for result in results],
    }


def write_results(results: Sequence[PlanResult], policy: str, path: Path) -> None:
    write_atomic(path, (json.dumps(record(results, policy), indent=1, ensure_ascii=False) + "\n").encode())


def write_tasks(path: Path) -> None:
    """Write the panel in HTDAG's form: {"tasks": [...]}."""
    rows = [{"id": task.id, **dict(task.fields)} for task in create_benchmark_tasks()]
    text = json.dumps({"tasks": rows}, indent=1, ensure_ascii=False, default=_plain)
    write_atomic(path, f"{text}\n".encode())


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)
