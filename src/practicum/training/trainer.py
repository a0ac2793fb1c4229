"""What a training run trains: an object with numbered steps, a state, and a validation.

`rl_trainer`, `sft` and `dpo` have one each; `run` is the loop that all of them share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from practicum.evaluation.result import EvalResult
from practicum.evaluation.stats.intervals import LEVEL
from practicum.training.critic import Critic
from practicum.training.monitor.loggers import summary_stats
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory

WaitForRollouts = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]


class StepResult(NamedTuple):
    """What a step gives: its metrics, and the episodes that were played for it."""

    metrics: dict[str, float]
    episodes: Sequence[Trajectory] = ()


@dataclass(frozen=True)
class Validation:
    """The metrics of a validation. With a `problem`, nothing could be scored, and it is not compared with others."""

    metrics: dict[str, float]
    problem: str | None = None
    result: EvalResult | None = None
    """Task by task, where a panel was played."""
    episodes: Sequence[Trajectory] = ()
    """Those of the panel, where they are to be kept."""


Evaluated = EvalResult | tuple[EvalResult, Sequence[Trajectory]]
"""What the evaluation of a panel gives: its result, with the episodes where they are to be kept."""


def panel_validation(evaluated: Evaluated) -> Validation:
    """Success and reward on a validation panel, with the interval of the success rate."""
    result, episodes = evaluated if isinstance(evaluated, tuple) else (evaluated, ())
    counts = {"val/n": float(len(result.scored)), "val/errors": float(len(result.unscored))}
    if not result.scored:
        first = next((f"{a.outcome}: {a.error}" for a in result.unscored), "the panel is empty")
        return Validation(counts, f"no episode of the validation could be scored (first: {first})")
    interval = result.interval(LEVEL)
    metrics = {
        "val/success/mean": result.success_rate,
        "val/success/low": interval.low,
        "val/success/high": interval.high,
        **counts,
        **summary_stats("val/reward", [attempt.reward for attempt in result.scored]),
    }
    return Validation(metrics, None, result, episodes)


class Trainer(ABC):
    """Changes a policy, one numbered step at a time.

    What step N does depends on N, the weights, the optimizers and `state` alone, so a run that was killed continues
    from its last checkpoint as if nothing had happened.
    """

    policy: TrainablePolicy
    critic: Critic | None = None
    stops_by_exception = True
    """Whether an exception ends a step at once; otherwise only the end of the process does."""
    stops_in_rollout = False
    """Whether a step that is cancelled while it waits has not changed the weights yet."""
    gives_up_rollouts = False
    """Whether a stop gives up the rollouts of a step, instead of waiting for the slowest one (`wait_for_rollouts`)."""
    wait_for_rollouts: WaitForRollouts | None = None
    """Awaits rollouts until they are to be given up, and raises then. Set by the run."""
    keeps_engine_caches = False
    """Whether episodes go on from one step to the next, so that a step does not begin with empty caches."""
    lr_scale: float = 1.0
    clip_scale: float = 1.0
    """Factors on the learning rate and the clip range, set by the health monitor."""

    @abstractmethod
    async def step(self, step: int) -> StepResult:
        """Do step number `step`, counted from 0."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What the next step depends on besides weights and optimizers, as plain JSON."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint, whose weights and optimizers are already in place."""

    async def close(self) -> None:
        """Close what the run has opened for its steps and validations."""
        return None

    async def validate(self) -> Validation | None:
        """Measure the policy on data that is not trained on; None where there is no such data."""
        return None
