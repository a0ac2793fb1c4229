"""Results made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.trajectory import Outcome

Make = Callable[..., EvalResult]


@pytest.fixture
def make_result() -> Make:
    """`make_result("name", [1, 0, [1, 0, 1], None])`: a reward a task, several attempts, or an error."""

    def make(
        policy: str,
        rewards: Sequence[float | Sequence[float] | None],
        *,
        panel: str = "panel",
        environment: str = "math",
        turns: int = 2,
        contents: Sequence[str] | None = None,
        goals: Sequence[str] | None = None,
        components: Sequence[Mapping[str, float]] | None = None,
        figures: Mapping[str, float] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> EvalResult:
        attempts = []
        for index, value in enumerate(rewards):
            tries = [None] if value is None else list(value) if isinstance(value, Sequence) else [value]
            for attempt, reward in enumerate(tries):
                outcome = Outcome.ENV_ERROR if reward is None else Outcome.SUCCESS if reward >= 1 else Outcome.FAILURE
                attempts.append(
                    AttemptResult(
                        task=f"t{index}",
                        cluster=contents[index] if contents else f"c{index}",
                        attempt=attempt,
                        outcome=outcome,
                        reward=reward or 0.0,
                        turns=turns,
                        tokens=10 * turns,
                        invalid_replies=0,
                        components=components[index] if components else {},
                        env_metrics=figures or {},
                        seconds=0.5,
                        error="broke" if reward is None else None,
                        goal=goals[index] if goals else None,
                    )
                )
        most = max((len(r) for r in rewards if isinstance(r, Sequence)), default=1)
        return EvalResult(policy, environment, panel, len(rewards), most, tuple(attempts), settings or {})

    return make
