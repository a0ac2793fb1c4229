"""`python -m practicum.rubric_manager.train KEY=VALUE...`: the paper's loop, by `recipe=rubric-reinforce`.

It prints a line per episode: the score of the synthetic rubric, that of the ground truth, and the reward.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Mapping, Sequence

from practicum.config.resolve import resolve_train
from practicum.errors import UserError
from practicum.training.build import build_run
from practicum.utils.tables import percent

RECIPE = "recipe=rubric-reinforce"
CHECK_EPISODES = 10
"""Episodes after which a run goes on only if enough of its rubrics are valid."""
MIN_VALIDITY = 0.5


def episode_line(metrics: Mapping[str, float]) -> str:
    """Return the line of a step from its metrics: scores are means over its episodes with a valid rubric."""
    values = [metrics.get(f"figure/{name}/mean") for name in ("synthetic", "ground_truth")]
    texts = ["none" if value is None else f"{value:.3f}" for value in values]
    return f"Synthetic: {texts[0]}, GT: {texts[1]}, Reward: {metrics.get('reward/mean', 0.0):.3f}"


class EpisodeCheck:
    """Counts episodes and valid rubrics; after the first ones it says whether the run should go on."""

    def __init__(self, count: int = CHECK_EPISODES, min_validity: float = MIN_VALIDITY) -> None:
        self.count, self.min_validity = count, min_validity
        self.num_episodes = self.num_valid = 0.0
        self.lowest, self.highest = math.inf, -math.inf

    def observe(self, metrics: Mapping[str, float]) -> str | None:
        """Return None, or once the sentence of a run that should stop."""
        before, episodes = self.num_episodes, metrics.get("rollout/episodes", 1.0)
        self.num_episodes += episodes
        self.num_valid += episodes * metrics.get("figure/valid/mean", 0.0)
        mean = metrics.get("reward/mean", 0.0)
        self.lowest = min(self.lowest, metrics.get("reward/min", mean))
        self.highest = max(self.highest, metrics.get("reward/max", mean))
        if not before < self.count <= self.num_episodes:
            return None
        share = self.num_valid / self.num_episodes
        if share < self.min_validity:
            return (
                f"Only {percent(share, digits=0)} of the first {self.num_episodes:.0f} rubrics are valid, "
                f"{percent(self.min_validity, digits=0)} are needed: warm-start the model by SFT on "
                "ground-truth rubrics first (docs/rubric.md)."
            )
        if self.lowest == self.highest:
            return f"The first {self.num_episodes:.0f} episodes have the same reward: there is nothing to learn from."
        return None


async def main(argv: Sequence[str]) -> None:
    """Train by the recipe with further keys; UserError where the check after the first episodes fails."""
    recipe = [] if any(key.startswith("recipe=") for key in argv) else [RECIPE]
    run = build_run(resolve_train([*recipe, *argv]).config)
    check, on_step = EpisodeCheck(), run.on_step
    problems: list[str] = []

    def show(step: int, metrics: dict[str, float]) -> None:
        print(episode_line(metrics), flush=True)
        if on_step is not None:
            on_step(step, metrics)
        sentence = check.observe(metrics)
        if sentence is not None:
            problems.append(sentence)
            run.request_stop()

    run.on_step = show
    try:
        await run.train()
    except KeyboardInterrupt:  # that is how a run ends that was asked to stop
        if not problems:
            raise
        raise UserError(problems[0]) from None
    finally:
        await run.policy.close()


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"practicum: {error}")
