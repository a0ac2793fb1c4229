"""What does not go with `trainer.max_staleness`: rollouts beside the training whose weights change between turns."""

from __future__ import annotations

from practicum.config.train import TrainConfig
from practicum.errors import UserError

KEY = "trainer.max_staleness"
CLOCK = "which tasks are drawn would depend on how long episodes take"


def check_asynchrony(config: TrainConfig, num_ranks: int) -> None:
    """Refuse settings that rollouts beside the training cannot honour."""
    value = config.trainer.max_staleness
    rollout, agent = config.actor_rollout_ref.rollout, config.agent
    refused = (
        (rollout.name != "local", f"actor_rollout_ref.rollout.name={rollout.name}", "use the engine local"),
        (
            config.trainer.overlap,
            "trainer.overlap=true",
            "max_staleness=1 does the same without waiting; set it to false",
        ),
        (config.algorithm.filter_groups.enable, "algorithm.filter_groups", CLOCK),
        (config.data.curriculum.enable, "data.curriculum", CLOCK),
        (agent.stream, "agent.stream=true", "several rollouts run at the same time"),
        (
            config.data.from_trajectories is not None,
            "data.from_trajectories",
            "a log is trained on, nothing is rolled out",
        ),
        (
            any(role.adapter for role in agent.roles.values()),
            "roles with adapters of their own",
            "one model is trained",
        ),
        (num_ranks > 1, f"{num_ranks} learner ranks", "use rollout workers beside one rank"),
    )
    for is_set, feature, reason in refused:
        if is_set:
            raise UserError(f"{KEY}={value} does not go with {feature} yet: {reason}.")
