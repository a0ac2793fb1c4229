"""The log that a training run reads instead of playing episodes (`data.from_trajectories`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.agent import Agent
from practicum.config.train import TrainConfig
from practicum.environment import Environment
from practicum.errors import UserError
from practicum.training.bandit_source import BanditSource, LoggedState, tabulate_actions
from practicum.training.logged_source import LoggedSource, TrajectoryLog, read_trajectory_log, signal_groups
from practicum.training.rollout_source import RolloutSource
from practicum.training.settings import RLSettings, estimator_settings, validates
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory


@dataclass(frozen=True)
class LoggedData:
    """A log and what a run draws from it: groups of episodes, or states with their actions."""

    log: TrajectoryLog
    groups: Sequence[list[Trajectory]] = ()
    states: Sequence[LoggedState] = ()

    @property
    def units(self) -> Sequence[object]:
        """What one epoch goes through."""
        return self.groups or self.states

    def make_source(
        self, policy: TrainablePolicy, agent: Agent, settings: RLSettings, say: Callable[[str], None]
    ) -> RolloutSource:
        self.log.check_tokens(policy, settings.estimation.train_roles)
        if self.states:
            return BanditSource(policy, self.states, agent, settings, say)
        return LoggedSource(policy, list(self.groups), agent, settings, say)


def read_logged_data(config: TrainConfig, environment: Environment, reply_format: str) -> LoggedData:
    """The episodes of `data.from_trajectories`, in the form that `algorithm.offline.method` needs."""
    method, seed = config.algorithm.offline.method, config.trainer.seed
    log = read_trajectory_log(Path(str(config.data.from_trajectories)))
    environments = sorted({episode.task.environment for episode in log.episodes})
    if validates(config) and environment.name not in environments:
        raise UserError(
            f"Validation would be on '{environment.name}', but the log is of {', '.join(environments)}; "
            "set agent.environment."
        )
    formats = sorted({str(episode.provenance.get("format", reply_format)) for episode in log.episodes})
    if formats != [reply_format] and (validates(config) or method == "bandit"):
        raise UserError(
            f"The log's replies are in the format {', '.join(formats)}, not {reply_format}; set agent.agent_type."
        )
    if method == "bandit":
        return LoggedData(
            log, states=tabulate_actions(log, config.algorithm.offline.top_percent, seed, config.agent.train_roles)
        )
    return LoggedData(log, groups=signal_groups(log, seed, estimator_settings(config)))
