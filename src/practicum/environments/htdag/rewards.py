"""Rewards of a plan: HTDAG's published one, and the default, which pays only for what the executor confirms.

The published reward pays for the shape of a DAG (depth, parallelism, few calls, short time) and takes every valid DAG
for a completed request, so a policy that ignores the request can have all of it. The default keeps its range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from practicum.environments.htdag.executor import Execution

MIN_REWARD, MAX_REWARD = -2.0, 2.0
STEP_REWARD = -0.01
"""Reward of every decision but the last."""
PUBLISHED_TIMEOUT_REWARD = -1.0
REFUSED_REWARD, MIN_REFUSED_REWARD = -0.05, -0.5
"""Default: for each refused part of a reply, and for all of an episode together."""
MIN_STEPS_REWARD = -0.2
"""Default: the least that all decisions of an episode cost together."""
TIMEOUT_REWARD = -0.5
COMPLETED_REWARD, NOT_COMPLETED_REWARD = 1.0, -0.5
COVERAGE_WEIGHT, ORDER_WEIGHT, SPEED_WEIGHT, CALLS_WEIGHT = 0.4, 0.2, 0.3, 0.1
WASTE_WEIGHT, INFEASIBLE_WEIGHT = -0.3, -0.3


@dataclass(frozen=True, slots=True)
class DecompositionResult:
    """What the published reward is computed from."""

    task_completed: bool
    dag_valid: bool
    has_cycles: bool
    decomposition_depth: int
    parallel_ratio: float
    execution_time: float
    llm_calls: int
    unnecessary_steps: int = 0


def published_components(result: DecompositionResult) -> dict[str, float]:
    """Return the parts of the published reward; their sum is clipped to [-2, 2]."""
    depth, ratio = result.decomposition_depth, result.parallel_ratio
    calls, seconds = result.llm_calls, result.execution_time
    return {
        "completion": 1.0 if result.task_completed else -1.0,
        "depth": 0.5 if 2 <= depth <= 4 else -0.2 if depth == 1 else -0.3 if depth > 5 else 0.0,
        "parallelism": 0.3 if ratio >= 0.3 else 0.2 if ratio >= 0.2 else 0.0,
        "calls": 0.2 if calls <= 10 else 0.1 if calls <= 15 else -0.1,
        "time": 0.2 if seconds <= 10 else 0.1 if seconds <= 20 else 0.0,
        "cycles": -0.5 if result.has_cycles else 0.0,
        "unnecessary": -0.3 * min(result.unnecessary_steps, 3),
        "invalid": 0.0 if result.dag_valid else -1.0,
    }


def default_components(execution: Execution, calls: int, needed_calls: int) -> dict[str, float]:
    """Return the parts of the default reward at the end of an episode.

    Speed and few calls pay only if the request is solved; coverage, order and waste are measured by the executor.
    """
    solved = execution.success
    return {
        "completion": COMPLETED_REWARD if solved else NOT_COMPLETED_REWARD,
        "coverage": COVERAGE_WEIGHT * execution.coverage,
        "order": ORDER_WEIGHT * execution.order * execution.coverage,
        "speed": SPEED_WEIGHT * execution.speed if solved else 0.0,
        "calls": CALLS_WEIGHT * min(1.0, needed_calls / max(1, calls)) if solved else 0.0,
        "waste": WASTE_WEIGHT * execution.waste,
        "infeasible": INFEASIBLE_WEIGHT * (1 - execution.feasibility),
    }


def clipped(components: Mapping[str, float]) -> float:
    """Return the sum of the parts within [-2, 2]."""
    return min(MAX_REWARD, max(MIN_REWARD, sum(components.values())))
