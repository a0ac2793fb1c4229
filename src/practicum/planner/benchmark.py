"""Planners on the panel of requests: results in the form that HTDAG publishes, beside its expected ranges."""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from practicum import __version__
from practicum.data.run_folder import write_atomic
from practicum.environments.htdag.planning import PlanningEpisode
from practicum.environments.htdag.policies import POLICIES
from practicum.environments.htdag.requests import create_benchmark_tasks, goals_of
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.stats.intervals import Interval, rate_interval
from practicum.task import Task

FOLDER = Path("data/htdag_benchmarks")
BASELINE_FILE, TASKS_FILE = "baseline_results.json", "benchmark_tasks.json"
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
SANE_SUCCESS = (0.50, 0.95)
"""Success rates outside of this ask for a look at the planner, or at the requests."""


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
    template: str


def run_policy(name: str, tasks: Sequence[Task] | None = None) -> list[PlanResult]:
    """Return the results of a scripted policy; None are the requests of the panel."""
    if name not in POLICIES:
        raise UserError(f"Unknown planning policy '{name}'.{did_you_mean(name, POLICIES)}")
    results = []
    for index, task in enumerate(create_benchmark_tasks() if tasks is None else tasks):
        episode, policy = PlanningEpisode(), POLICIES[name](index)
        episode.reset(task.fields["request"], goals_of(task.fields))
        while not episode.done:
            episode.step(policy(episode))
        results.append(result_of(task, episode))
    return results


def result_of(task: Task, episode: PlanningEpisode) -> PlanResult:
    """Return the result of a finished episode."""
    execution, dag = episode.execution, episode.dag
    assert execution is not None, "the episode has ended"
    reasons = {
        "not everything is covered": execution.coverage < 1,
        "a required order is not kept": execution.order < 1,
        "some leaves cannot be executed": execution.infeasible > 0,
        "too much is unneeded": execution.waste > 0,
    }
    failed = "" if execution.success else "; ".join(reason for reason, holds in reasons.items() if holds)
    return PlanResult(
        task_id=task.id,
        task_description=task.fields["request"],
        success=execution.success,
        decomposition_depth=dag.depth,
        num_subtasks=len(dag) - 1,
        parallel_tasks=len(dag.leaves) - round(dag.makespan(lambda node: 1.0)),
        has_cycles=episode.refused["cycle"] > 0,
        execution_time=execution.seconds,
        llm_calls=episode.state.llm_call_count,
        error_message=failed or None,
        num_steps=len(dag.leaves),
        coverage=execution.coverage,
        order=execution.order,
        waste=execution.waste,
        reward=episode.total,
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
    low, high = SANE_SUCCESS
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
